"""What a network is: operators, and the graph that joins them."""

from relutrim.graph.graph import Network as Network
from relutrim.graph.graph import Node as Node
from relutrim.graph.graph import Output as Output
from relutrim.graph.graph import Port as Port
from relutrim.graph.graph import TailStep as TailStep
from relutrim.graph.operators import *  # noqa: F403
