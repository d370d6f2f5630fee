"""Sequences in the order of their tokens: those with a common prefix are neighbours.

Owns what two sequences share in a tree, on which `prepare` and trainers must agree. Leaves the tree to
`packhorse.rollouts`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def by_prefix(rows: Sequence[NDArray[np.integer]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sorts rows of tokens, so that every common prefix is one of neighbours.

    A node of a tree is a token and the next one. So two rows share one node less than tokens, unless they are equal.

    Example:
        >>> order, shared = by_prefix([np.array([1, 2, 4]), np.array([1, 2, 3]), np.array([1, 2, 3])])
        >>> order.tolist(), shared.tolist()
        ([1, 2, 0], [0, 3, 1])

    Args:
        rows: R rows of token ids from 0: integers, none empty.

    Returns:
        The rows in order, equal ones as they come, and the nodes that each shares with the one before it, 0 for the
        first: int64 [R] each.
    """
    keys = [row.astype(">i8").tobytes() for row in rows]
    order = sorted(range(len(rows)), key=keys.__getitem__)
    shared = np.zeros(len(rows), dtype=np.int64)
    for at in range(1, len(rows)):
        before, index = order[at - 1], order[at]
        is_equal = keys[before] == keys[index]
        shared[at] = len(rows[index]) if is_equal else max(_common(rows[before], rows[index]) - 1, 0)
    return np.array(order, dtype=np.int64), shared


def _common(one: NDArray[np.integer], other: NDArray[np.integer]) -> int:
    """How many tokens two rows begin with in common."""
    num = min(len(one), len(other))
    differs = one[:num] != other[:num]
    at = int(differs.argmax()) if num else 0
    return at if num and differs[at] else num
