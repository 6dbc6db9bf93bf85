"""How large a value may become: a few bytes in a file can ask for more memory than there is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from relutrim.errors import UnsupportedError

LARGEST_VALUE = 2**27
"""Numbers in one value; in float64 that is a gigabyte."""


def check_size(shape: Sequence[int], what: str = "it makes a value") -> None:
    """Refuse shapes that nothing here could hold, before anything is allocated."""
    # A value without numbers costs nothing, but the lists of its indices do.
    if max(math.prod(shape), *shape, 0) > LARGEST_VALUE:
        shown = " x ".join(str(size) for size in shape)
        raise UnsupportedError(
            f"{what} of {shown} numbers, more than the {LARGEST_VALUE} that relutrim holds; check its "
            "attributes, or cut the network into smaller parts"
        )
