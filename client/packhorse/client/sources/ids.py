"""From ids to the rows of a table: the row's number itself, or what an id column says.

Owns the look-up and its refusals; leaves reading a column to the sources.
"""

import numpy as np
from numpy.typing import NDArray

from packhorse.client.sources.base import TokenSourceError


class RowLookup:
    """Which row holds an id. Legend: N rows.

    Of an id column it keeps the sorted ids, and the rows that they came from where the column is not sorted: 8 to 16
    bytes a row. Forks share it where it was made before.
    """

    def __init__(self, where: str, num_rows: int, ids: NDArray[np.int64] | None = None) -> None:
        """Makes the look-up; O(N log N) where an id column is not sorted.

        Args:
            where: the data, for messages.
            num_rows: N.
            ids: of every row: int64 [N]; None where a row's number is its id.

        Raises:
            TokenSourceError: two rows have the same id.
        """
        self._where = where
        self._num_rows = num_rows
        self._order: NDArray[np.integer] | None = None
        if ids is not None and not (ids[1:] > ids[:-1]).all():
            order = np.argsort(ids, kind="stable")
            ids = ids[order]
            is_repeated = ids[1:] == ids[:-1]
            if is_repeated.any():
                i = int(is_repeated.argmax())
                raise TokenSourceError(
                    f"{where}: rows {order[i]} and {order[i + 1]} both have the id {ids[i]}; ids must be distinct"
                )
            self._order = order.astype(np.uint32) if num_rows < 1 << 32 else order
        self._sorted_ids = ids

    def rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the rows of ids: int64 [S].

        Raises:
            TokenSourceError: an id is missing.
        """
        if self._sorted_ids is None:
            is_missing = (ids < 0) | (ids >= self._num_rows)
            rows = ids
        else:
            rows = np.searchsorted(self._sorted_ids, ids)
            is_missing = rows == self._num_rows
            if self._num_rows:
                rows = np.minimum(rows, self._num_rows - 1)
                is_missing |= self._sorted_ids[rows] != ids
        if is_missing.any():
            held = f"its {self._num_rows} ids are those of a column"
            if self._sorted_ids is None:
                held = f"it holds ids 0 to {self._num_rows - 1}" if self._num_rows else "it is empty"
            raise TokenSourceError(
                f"{self._where}: no sequence with id {ids[is_missing.argmax()]}; {held}. "
                "Use the data that the dataset was prepared from"
            )
        return rows if self._order is None else self._order[rows].astype(np.int64)
