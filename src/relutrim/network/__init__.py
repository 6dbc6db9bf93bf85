"""What a network is: operators, and the graph that joins them."""

from relutrim.network.graph import Network, Node, Output, Port, TailStep
from relutrim.network.operators import Add, Affine, Linear, Operator, Relu, Reshape, Scale

__all__ = [
    "Add",
    "Affine",
    "Linear",
    "Network",
    "Node",
    "Operator",
    "Output",
    "Port",
    "Relu",
    "Reshape",
    "Scale",
    "TailStep",
]
