"""Which requested numbers are a walk: `stride_of`.

A walk is a set of evenly spaced numbers, close together: a rank's share, a worker's batches, or a thread pool reading
in order. What comes next in a walk is read or made ahead: bins by `bins/_read_ahead`, rows by `bins/_rows_ahead`.
"""

from collections.abc import Sequence
from math import gcd

REMEMBERED = 64
"""How many of the latest numbers decide whether they are a walk."""

_FEWEST = 4
"""The fewest numbers that can be a walk."""


def stride_of(seen: Sequence[int], *, sparsest: int) -> int:
    """Returns the stride of a walk through these numbers; 0 if they are not a walk.

    Example:
        >>> stride_of([8, 2, 4, 6], sparsest=4), stride_of([8, 2, 4, 900], sparsest=4)
        (2, 0)

    Args:
        seen: positions or indices, in any order.
        sparsest: they are a walk only if they hold at least one in this many multiples of the stride.
    """
    first = min(seen)
    stride = gcd(*(number - first for number in seen))
    if len(seen) < _FEWEST or not stride or max(seen) - first > sparsest * len(seen) * stride:
        return 0
    return stride
