"""Sequences sorted by their tokens, so that those with a common prefix are neighbours.

Owns the number of nodes that neighbours share in a prefix tree, on which prepare and trainers must agree. Leaves the
tree itself to `packhorse.rollouts`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def by_prefix(rows: Sequence[NDArray[np.integer]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sorts rows of tokens, and counts the nodes that each row shares with the one before it.

    A node of the tree is a token together with the token that it predicts. So rows that begin with n common tokens
    share n - 1 nodes: the last common token predicts different ones, or nothing in one row. Equal rows share all nodes.

    Example:
        >>> order, shared = by_prefix([np.array([1, 2, 4]), np.array([1, 2, 3]), np.array([1, 2, 3])])
        >>> order.tolist(), shared.tolist()
        ([1, 2, 0], [0, 3, 1])

    Args:
        rows: R rows of token ids from 0: integers, none empty.

    Returns:
        Two arrays, int64 [R] each. First, the indices of the rows in sorted order; equal rows stay in their order.
        Second, for each row in this order, the nodes that it shares with the one before; 0 for the first.
    """
    # Bytes of big-endian integers from 0 compare as the integers do.
    keys = [row.astype(">i8").tobytes() for row in rows]
    order = sorted(range(len(rows)), key=keys.__getitem__)
    shared = np.zeros(len(rows), dtype=np.int64)
    for at in range(1, len(rows)):
        before, row = rows[order[at - 1]], rows[order[at]]
        is_equal = keys[order[at - 1]] == keys[order[at]]
        shared[at] = len(row) if is_equal else max(_common_tokens(before, row) - 1, 0)
    return np.array(order, dtype=np.int64), shared


def _common_tokens(one: NDArray[np.integer], other: NDArray[np.integer]) -> int:
    """Returns the length of the common prefix of two rows, in tokens."""
    shorter = min(len(one), len(other))
    differs = one[:shorter] != other[:shorter]
    return int(differs.argmax()) if differs.any() else shorter
