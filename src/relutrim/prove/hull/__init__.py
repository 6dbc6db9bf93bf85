"""Branch and bound with the convex hulls of single neurons, for the few that cheap bounds leave open.

Each ReLU ``x = max(0, w v + b)`` over a box of inputs ``v`` and a state ``z`` has a convex hull with one
inequality for every subset of its inputs (Anderson et al., *Strong mixed-integer programming formulations for
trained neural networks*, 2020; Tjandraatmadja et al., 2020). Mixtures of them are part of a dual bound, whose
multipliers are found by subgradient steps, for many nodes at once. The steps are only hints: every bound is
evaluated again, rounding included.
"""
