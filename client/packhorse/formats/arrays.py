"""Checks of arrays too large for memory, a chunk at a time."""

import numpy as np
from numpy.typing import NDArray

CHUNK_ELEMENTS = 1 << 20
"""Elements that a check of a whole array loads at a time, so that its memory stays bounded."""


def first_descent(values: NDArray[np.int64]) -> int | None:
    """Returns the first i with values[i] < values[i - 1], or None."""
    for begin in range(0, max(len(values) - 1, 0), CHUNK_ELEMENTS):
        chunk = values[begin : begin + CHUNK_ELEMENTS + 1]
        descents = np.flatnonzero(chunk[1:] < chunk[:-1])
        if descents.size:
            return begin + int(descents[0]) + 1
    return None
