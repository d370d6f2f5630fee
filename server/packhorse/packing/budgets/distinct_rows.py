"""The distinct rows of a table of sizes, found by one sort of numbers that stand for whole rows."""

import numpy as np
from numpy.typing import NDArray

_MOST_KEYS = 2**62
"""Most combinations of values that are written as one int64 each."""


def distinct_rows(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the index of one row of each distinct value, in ascending order, and for each row the rank of its value.

    Example:
        >>> distinct_rows(np.array([[5, 1], [3, 0], [5, 1]]))
        (array([1, 0]), array([1, 0, 1]))

    Args:
        rows: int64 [n, d], each value in [0, 2^31).

    Returns:
        Indices of the m distinct rows, int64 [m], and ranks in [0, m), int64 [n].
    """
    # A key is one number for each row, and keys have the order of the rows: the columns so far are its digits.
    keys, num_keys = np.zeros(len(rows), dtype=np.int64), 1
    for column in rows.T:
        num_values = int(column.max(initial=0)) + 1
        if num_keys * num_values > _MOST_KEYS:  # ranks have the same order and are smaller
            keys, num_keys = np.unique(keys, return_inverse=True)[1], len(rows)
        keys, num_keys = keys * num_values + column, num_keys * num_values
    _, first, ranks = np.unique(keys, return_index=True, return_inverse=True)
    return first, ranks
