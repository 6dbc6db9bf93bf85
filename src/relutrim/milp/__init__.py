"""The paper's way: mixed-integer programs over the whole network, and the solvers that take them."""
