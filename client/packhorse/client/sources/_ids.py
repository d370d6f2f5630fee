"""From ids to the rows of a table: the row's number itself, or what an id column says.

Owns the look-up and its refusals; leaves reading a column to the sources.
"""

import copy
from abc import abstractmethod
from typing import NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from packhorse.client.sources.base import TokenSource, TokenSourceError


def refuse_row_numbers(where: str, id_column: str, why: str, way_out: str) -> NoReturn:
    """Raises the TokenSourceError of a source that has rows only, for a dataset whose ids come from a column.

    Args:
        where: the source's data.
        id_column: of the dataset's input.
        why: what the source lacks.
        way_out: what to pass instead.
    """
    raise TokenSourceError(
        f"the dataset's ids come from the column {id_column!r} of its input, but {where} {why}; row numbers would give "
        f"other sequences' tokens. {way_out}, or prepare the dataset without --id-column"
    )


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


class TableSource(TokenSource):
    """A source of a table's rows, which may have a column of ids."""

    _id_column: str | None
    """Where ids stand; None where a row's number is its sequence's id."""
    _lookup: RowLookup | None
    """Made when first needed."""

    def for_ids(self, id_column: str) -> Self:
        """Returns a source that looks ids up in their column, where the data has it; see `TokenSource.for_ids`.

        One that was told `id_column` stays as it is: its caller knows where these ids stand.
        """
        if not id_column or self._id_column is not None:
            return self
        if not self._has_column(id_column):
            way_out = f"Say which column holds these ids with {type(self).__name__}(..., id_column=...)"
            refuse_row_numbers(self.where, id_column, "has no such column", way_out)
        self._check_id_column(id_column)
        by_column = copy.copy(self)
        by_column._id_column, by_column._lookup = id_column, None
        return by_column

    @abstractmethod
    def _has_column(self, name: str) -> bool:
        """Whether all of the data has the column."""

    @abstractmethod
    def _check_id_column(self, name: str) -> None:
        """Refuses a column that does not hold integers; a TokenSourceError."""
