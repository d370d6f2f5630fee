"""The greatest number for each room, such as the most members of a group: `MostByRoom`.

It is an array for short rooms and a dict for long ones, so its memory depends on the rooms that occur, not on the
longest that may. Counting the rooms of a task is in `counting`.
"""

import numpy as np
from numpy.typing import NDArray

from packhorse.prepare.counting import MOST_DENSE, grown


class MostByRoom:
    """Keeps the greatest of the numbers that are put for each room.

    Example:
        >>> most = MostByRoom()
        >>> most.put(np.array([5, 2**31, 5]), np.array([1, 2, 3]))
        >>> most.numbers()
        {5: 3, 2147483648: 2}
    """

    def __init__(self) -> None:
        self._dense = np.zeros(1, dtype=np.int64)
        self._sparse: dict[int, int] = {}

    def put(self, rooms: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        """Compares numbers of at least 0 with those that were put for their rooms before: int64 [n] both."""
        is_long = rooms >= MOST_DENSE
        if is_long.any():
            for room, number in zip(rooms[is_long].tolist(), numbers[is_long].tolist(), strict=True):
                self._sparse[room] = max(self._sparse.get(room, 0), number)
            rooms, numbers = rooms[~is_long], numbers[~is_long]
        if len(rooms):
            self._dense = grown(self._dense, int(rooms.max()) + 1)
            np.maximum.at(self._dense, rooms, numbers)

    def numbers(self) -> dict[int, int]:
        """Returns room → number, by ascending room, without rooms whose number is 0."""
        present = np.flatnonzero(self._dense)
        dense = zip(present.tolist(), self._dense[present].tolist(), strict=True)
        return {**dict(dense), **dict(sorted(self._sparse.items()))}
