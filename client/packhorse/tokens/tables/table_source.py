"""`TableSource`: a base class for sources of a table's rows, which may have a column of ids.

Leaves finding the row of an id to `row_lookup`, which column holds tokens to `_token_columns`, lists of Arrow data to
`_list_columns`, and opening tables to `arrow`, `remote_arrow`, `parquet` and `mds`.
"""

import copy
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.arrow import nulls_of, values_of
from packhorse.tokens.base import TokenSource, TokenSourceError
from packhorse.tokens.tables.row_lookup import RowLookup, refuse_row_numbers

_MASK_COLUMNS = ("loss_mask", "assistant_masks", "assistant_mask", "completion_mask", "labels")
"""Usual names of a column that is a loss mask."""


def ids_of(arrays: Iterable[Any], num_rows: int, column: str, where: str) -> NDArray[np.int64]:
    """Returns the ids in the Arrow arrays of an id column: int64 [num_rows].

    Raises:
        TokenSourceError: an id is null, or does not fit int64.
    """
    ids = np.empty(num_rows, dtype=np.int64)
    row = 0
    for array in arrays:
        if array.null_count:
            null = row + int(np.argmax(nulls_of(array)))
            raise TokenSourceError(
                f"{where}: row {null}, column {column!r} is null; leave the row out, or give it an id"
            )
        values = values_of(array)
        if values.dtype == np.uint64 and len(values) and int(values.max()) > np.iinfo(np.int64).max:
            raise TokenSourceError(f"{where}: column {column!r} holds {values.max()}, which int64 cannot hold")
        ids[row : row + len(values)] = values
        row += len(values)
    return ids


class TableSource(TokenSource):
    """A source of a table's rows, which may have a column of ids. Legend: N rows, S sequences."""

    _id_column: str | None
    """Column of ids; None if a row's number is its sequence's id."""
    _lookup: RowLookup | None
    """The rows of ids; made when first needed."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows."""

    def __getstate__(self) -> dict[str, Any]:
        state: Any = super().__getstate__()
        return {**state, "_lookup": None}

    def sign_of_mask(self) -> str:
        """Returns a sentence if a column has a name that is usual for a mask; otherwise ""."""
        name = next(filter(self._has_column, _MASK_COLUMNS), None)
        return "" if name is None else f"it has a column {name!r}"

    def for_ids(self, id_column: str) -> Self:
        """Returns a source that looks ids up in their column; see `TokenSource.for_ids`.

        A source that was made with an `id_column` is returned as it is.
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

    def origin(self, sequence_id: int) -> str:
        """Returns the row, numbered over all of the data."""
        (row,) = self._rows(np.array([sequence_id])).tolist()
        return f"row {row} of {self.where}"

    def _rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the row of each id: int64 [S]; a TokenSourceError if an id is missing."""
        if self._lookup is None:
            ids_of_rows = None if self._id_column is None else self._ids_in(self._id_column)
            self._lookup = RowLookup(self.where, len(self), ids_of_rows)
        return self._lookup.rows(ids)

    @abstractmethod
    def _has_column(self, name: str) -> bool:
        """Returns whether every file of the table has the column."""

    @abstractmethod
    def _check_id_column(self, name: str) -> None:
        """Raises a TokenSourceError if a column does not hold integers."""

    @abstractmethod
    def _ids_in(self, column: str) -> NDArray[np.int64]:
        """Returns the ids of all rows, in their order, from a column: int64 [N]."""
