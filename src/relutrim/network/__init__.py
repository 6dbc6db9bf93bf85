"""What a network is: operators, and the graph that joins them."""

from relutrim.network.graph import Network, Node, Output, Port, TailStep
from relutrim.network.operators import (
    Add,
    Affine,
    AveragePool,
    Concat,
    Convolution,
    Linear,
    MaxPool,
    Mean,
    Operator,
    Relu,
    Reshape,
    Scale,
    Take,
    Transpose,
)

__all__ = [
    "Add",
    "Affine",
    "AveragePool",
    "Concat",
    "Convolution",
    "Linear",
    "MaxPool",
    "Mean",
    "Network",
    "Node",
    "Operator",
    "Output",
    "Port",
    "Relu",
    "Reshape",
    "Scale",
    "TailStep",
    "Take",
    "Transpose",
]
