"""Tables that are decoded a row group at a time: Parquet on a disk or in a store, Arrow in a store.

Owns which row group holds a row, which decoded ones are kept, and decoding those of coming sequences ahead; leaves
opening and reading files to `sources.parquet` and `sources.arrow`.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from packhorse.client.sources._node_cache import FetchAhead
from packhorse.client.sources._tables import (
    ListColumn,
    RowLookup,
    TableSource,
    check_id_type,
    choose_column,
    ids_of,
    token_dtype_of,
)
from packhorse.client.sources.base import FetchSource, TokenSourceError
from packhorse.formats.object_store import for_each

DEFAULT_KEPT_BYTES = 1 << 28
_DECODING_THREADS = 8
"""Enough to wait for a store; with sixteen, decoding took a third more processor time."""


class GroupedFile(Protocol):
    """A file of row groups; it pickles by path or URL."""

    where: str
    """Its path or URL, for messages."""
    size_bytes: int

    def look(self) -> tuple[Any, list[int]]:
        """Returns its Arrow schema, and the number of rows of each row group."""
        ...

    def read(self, group: int, column: str) -> Any:
        """Returns one column of a row group: Arrow data with `schema`, `nbytes` and one column."""
        ...


class RowGroupSource(TableSource, FetchSource):
    """A source of row groups, each decoded when one of its sequences is needed, or will be soon."""

    def __init__(
        self,
        files: Sequence[GroupedFile],
        *,
        column: str | None,
        id_column: str | None,
        kept_bytes: int,
        ahead_bytes: int,
    ) -> None:
        """Looks at every file, in the order that numbers rows; see `ParquetSource` for the columns.

        Args:
            files: at least one.
            column: of tokens.
            id_column: of ids.
            kept_bytes: size of the decoded row groups that each process keeps; one always stays.
            ahead_bytes: about how much of the files is decoded ahead.
        """
        super().__init__()
        if not files:
            raise TokenSourceError("there is no file to read tokens from; give at least one")
        self._files = tuple(files)
        self._id_column = id_column
        self._where = files[0].where if len(files) == 1 else f"{files[0].where} and {len(files) - 1} more"
        group_rows: list[int] = []
        num_groups: list[int] = []
        looks = for_each(files, lambda file: file.look()) if ahead_bytes else [file.look() for file in files]
        for file, (schema, rows) in zip(files, looks, strict=True):
            column = choose_column(schema, column, file.where)
            token_dtype_of(schema, column, file.where)
            if id_column is not None:
                check_id_type(schema, id_column, file.where)
            num_groups.append(len(rows))
            group_rows += rows
        assert column is not None  # there is at least one file
        self._column = column
        # Row groups are numbered over all files.
        self._group_ends = np.cumsum(num_groups, dtype=np.int64)
        self._row_ends = np.cumsum(group_rows, dtype=np.int64)
        group_bytes = sum(file.size_bytes for file in files) // max(1, len(group_rows))
        ahead = -(-ahead_bytes // max(1, group_bytes))
        self._lookup: RowLookup | None = None
        self._groups = FetchAhead(self._decode, ahead=ahead, threads=_DECODING_THREADS, keep_bytes=kept_bytes)

    def __len__(self) -> int:
        return int(self._row_ends[-1]) if len(self._row_ends) else 0

    @property
    def where(self) -> str:
        """The files."""
        return self._where

    def _expect(self, ids: NDArray[np.int64]) -> None:
        if self._groups.ahead:
            groups = self._groups_of(self._rows(ids))
            self._groups.expect(list(dict.fromkeys(groups.tolist())))

    def origin(self, sequence_id: int) -> str:
        """The row and its file."""
        rows = self._rows(np.array([sequence_id]))
        number = self._file_of(int(self._groups_of(rows)[0]))
        first_group = int(self._group_ends[number - 1]) if number else 0
        first_row = int(self._row_ends[first_group - 1]) if first_group else 0
        return f"row {int(rows[0]) - first_row} of {self._files[number].where}"

    def _has_column(self, name: str) -> bool:
        return all(name in file.look()[0].names for file in self._files)

    def _check_id_column(self, name: str) -> None:
        for file in self._files:
            check_id_type(file.look()[0], name, file.where)

    def _fetch(self, ids: NDArray[np.int64]) -> list[NDArray[np.integer]]:
        rows = self._rows(ids)
        groups = self._groups_of(rows)
        fetched: list[NDArray[np.integer]] = [np.empty(0, np.int64)] * len(ids)
        for group in dict.fromkeys(groups.tolist()):
            wanted = np.flatnonzero(groups == group)
            column = self._groups.get(group)
            first_row = int(self._row_ends[group]) - len(column)
            buffers, firsts, lengths = column.locate(rows[wanted] - first_row, ids[wanted])
            dtype = column.dtype
            for i, buffer, first, length in zip(
                wanted.tolist(), buffers, firsts.tolist(), lengths.tolist(), strict=True
            ):
                # Copied: a view would keep the whole row group in memory.
                begin = first * dtype.itemsize
                fetched[i] = np.frombuffer(bytes(buffer[begin : begin + length * dtype.itemsize]), dtype)
        return fetched

    def _ids_in(self, column: str) -> NDArray[np.int64]:
        groups = range(len(self._row_ends))
        arrays = (array for group in groups for array in _chunks(self._read(group, column)))
        return ids_of(arrays, len(self), column, self._where)

    def _decode(self, group: int) -> ListColumn:
        where = self._files[self._file_of(group)].where
        data = self._read(group, self._column)
        dtype = token_dtype_of(data.schema, self._column, where)
        return ListColumn(_chunks(data), dtype=dtype, where=where, column=self._column, nbytes=data.nbytes)

    def _read(self, group: int, column: str) -> Any:
        """One column of a row group, as Arrow data."""
        number = self._file_of(group)
        first_group = int(self._group_ends[number - 1]) if number else 0
        return self._files[number].read(group - first_group, column)

    def _groups_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._row_ends, rows, side="right")

    def _file_of(self, group: int) -> int:
        return int(np.searchsorted(self._group_ends, group, side="right"))


def _chunks(data: Any) -> list[Any]:
    """The arrays of the only column of a table or a record batch."""
    column = data.column(0)
    return list(column.chunks) if hasattr(column, "chunks") else [column]
