"""Bounds from linear programs over the convex hulls of single neurons, for the few that cheap bounds leave
open.

Each ReLU ``x = max(0, w v + b)`` over a box of inputs ``v`` and a state ``z`` has a convex hull with one
inequality for every subset of its inputs (Anderson et al., *Strong mixed-integer programming formulations for
trained neural networks*, 2020; Tjandraatmadja et al., 2020). They are added as cuts where a solution violates
them. The solver's duals are only hints: every bound is the Lagrangian evaluated anew, rounding included, so
no solver has to be trusted.
"""
