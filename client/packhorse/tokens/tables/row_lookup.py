"""`RowLookup`: which row of a file or table holds an id; and refusing ids of a column where only rows are known.

Leaves reading a column of ids to `table_source`.
"""

from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from packhorse.parameters import parameter
from packhorse.tokens.base import TokenSourceError


class RowLookup:
    """Which row holds an id. Legend: N rows.

    If ids come from a column, it holds them sorted and, if the column was not sorted, their rows: 8 to 16 bytes a row.
    Forks share it.
    """

    def __init__(self, where: str, num_rows: int, ids: NDArray[np.int64] | None = None) -> None:
        """Takes the ids of all rows, int64 [N], and sorts them if needed; None if a row's number is its id.

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
        """Returns the row of each id: int64 [S]; a TokenSourceError if an id is missing."""
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
            held = f"its {self._num_rows} ids come from a column"
            if self._sorted_ids is None:
                held = f"it holds ids 0 to {self._num_rows - 1}" if self._num_rows else "it is empty"
            raise TokenSourceError(
                f"{self._where}: no sequence with id {ids[is_missing.argmax()]}; {held}. "
                "Use the data that the dataset was prepared from"
            )
        return rows if self._order is None else self._order[rows].astype(np.int64)


def refuse_row_numbers(where: str, id_column: str, why: str, way_out: str) -> NoReturn:
    """Raises the TokenSourceError for a source that only knows row numbers, if the dataset's ids come from a column."""
    raise TokenSourceError(
        f"the dataset's ids come from the column {id_column!r} of its input, but {where} {why}; row "
        f"numbers would give other sequences' tokens. {way_out}, or prepare the dataset without "
        + parameter("id_column")
    )
