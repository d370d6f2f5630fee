"""Numbers by room, in memory that follows the rooms that occur, not the longest that may."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.prepare._counting import MOST_DENSE, grown


class ByRoom:
    """A number for each room that occurs, put together by a ufunc of NumPy.

    Example:
        >>> most = ByRoom(np.maximum)
        >>> most.put(np.array([5, 2**31, 5]), np.array([1, 2, 3]))
        >>> most.numbers()
        {5: 3, 2147483648: 2}

    Args:
        together: puts two numbers of a room together: `np.add` or `np.maximum`; 0 is what a room has before.
    """

    def __init__(self, together: "np.ufunc") -> None:
        self._together: Any = together
        self._dense = np.zeros(1, dtype=np.int64)
        self._sparse: dict[int, int] = {}

    def put(self, rooms: NDArray[np.int64], numbers: NDArray[np.int64] | int) -> None:
        """Adds numbers of rooms: int64 [n] each, or one number for all."""
        numbers = np.broadcast_to(np.asarray(numbers), rooms.shape)
        is_long = rooms >= MOST_DENSE
        if is_long.any():
            for room, number in zip(rooms[is_long].tolist(), numbers[is_long].tolist(), strict=True):
                self._sparse[room] = int(self._together(self._sparse.get(room, 0), number))
            rooms, numbers = rooms[~is_long], numbers[~is_long]
        if len(rooms):
            self._dense = grown(self._dense, int(rooms.max()) + 1)
            self._together.at(self._dense, rooms, numbers)

    def numbers(self) -> dict[int, int]:
        """Returns room → number, by ascending room, without zeros."""
        present = np.flatnonzero(self._dense)
        dense = zip(present.tolist(), self._dense[present].tolist(), strict=True)
        return {**dict(dense), **dict(sorted(self._sparse.items()))}
