"""`RowGroupSource`: a base class for tables that are decoded a row group at a time, whatever their files are.

Owns which row group holds a row, which decoded row groups are kept, and which are decoded ahead. Leaves the layout of
lists to `_list_columns`, looking ids up to `row_lookup`, and files to `parquet` and `remote_arrow`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.object_store import for_each
from packhorse.tokens.base import TokenSourceError
from packhorse.tokens.fetch_ahead import FetchAhead
from packhorse.tokens.fetched import FetchSource
from packhorse.tokens.stored.store_cache import StoreCache
from packhorse.tokens.tables._decoded import DecodedCache, FlatColumn
from packhorse.tokens.tables._list_columns import ListColumn
from packhorse.tokens.tables._token_columns import check_id_type, choose_column, token_dtype_of
from packhorse.tokens.tables.row_lookup import RowLookup
from packhorse.tokens.tables.table_source import TableSource, ids_of

DEFAULT_KEPT_BYTES = 1 << 28
"""Default size of the decoded row groups that each process keeps."""

_DECODING_THREADS = 8
"""Threads that decode ahead: enough to wait for a store; with 16, decoding took a third more processor time."""


class FileLayout(NamedTuple):
    """What a file says about its row groups."""

    schema: Any
    """The file's Arrow schema."""
    group_rows: list[int]
    """Number of rows of each row group."""


class GroupedFile(Protocol):
    """A file whose columns are read one row group at a time; it pickles by path or URL."""

    where: str
    """Path or URL of the file, for messages."""
    size_bytes: int
    version: str
    """Identifies the file in its present state; every file and every change has another one."""

    def look(self) -> FileLayout:
        """Reads the file's schema and the sizes of its row groups."""
        ...

    def read(self, group: int, column: str) -> Any:
        """Returns one column of a row group: Arrow data with `schema`, `nbytes` and one column."""
        ...


class RowGroupSource(TableSource, FetchSource):
    """A source of sequences in row groups; a row group is decoded when one of its sequences is needed, or soon will be.

    Row groups are numbered over all files.
    """

    def __init__(
        self,
        files: Sequence[GroupedFile],
        *,
        column: str | None,
        id_column: str | None,
        kept_bytes: int,
        ahead_bytes: int,
        store: StoreCache,
    ) -> None:
        """Looks at every file, in the order that numbers rows.

        Args:
            files: at least one file.
            column: column of tokens, as for `ParquetSource`.
            id_column: column of ids, as for `ParquetSource`.
            kept_bytes: size of the decoded row groups that each process keeps; one always stays.
            ahead_bytes: about how many bytes of the files are decoded ahead; 0 for none.
            store: whether decoded row groups are kept on the node's disk, and where.
        """
        super().__init__()
        if not files:
            raise TokenSourceError("there is no file to read tokens from; give at least one")
        self._files = tuple(files)
        self._id_column = id_column
        self._where = files[0].where if len(files) == 1 else f"{files[0].where} and {len(files) - 1} more"
        group_rows: list[int] = []
        num_groups: list[int] = []
        # Several threads look at files that are decoded ahead, which are in a store. Those on a disk answer at once.
        layouts = for_each(files, lambda file: file.look()) if ahead_bytes else [file.look() for file in files]
        for file, (schema, rows) in zip(files, layouts, strict=True):
            column = choose_column(schema, column, file.where)  # the one that the first file decides for all others
            self._dtype = token_dtype_of(schema, column, file.where)
            if id_column is not None:
                check_id_type(schema, id_column, file.where)
            num_groups.append(len(rows))
            group_rows += rows
        assert column is not None  # there is at least one file
        self._column = column
        # Exclusive ends: of each file in row groups, and of each row group in rows, both counted over all files.
        self._group_ends = np.cumsum(num_groups, dtype=np.int64)
        self._row_ends = np.cumsum(group_rows, dtype=np.int64)
        group_bytes = sum(file.size_bytes for file in files) // max(1, len(group_rows))
        ahead = -(-ahead_bytes // max(1, group_bytes))
        self._lookup: RowLookup | None = None
        self._disk = DecodedCache(store) if store.keeps_decoded else None
        self._columns = FetchAhead(self._column_of, ahead=ahead, threads=_DECODING_THREADS, keep_bytes=kept_bytes)

    def __len__(self) -> int:
        return int(self._row_ends[-1]) if len(self._row_ends) else 0

    @property
    def where(self) -> str:
        """The files."""
        return self._where

    @property
    def token_dtype(self) -> np.dtype[Any]:
        """Type of the last file's tokens; see `TokenSource.token_dtype`."""
        return self._dtype

    def _expect(self, ids: NDArray[np.int64]) -> None:
        if self._columns.ahead:
            groups = self._groups_of(self._rows(ids))
            self._columns.expect(list(dict.fromkeys(groups.tolist())))

    def origin(self, sequence_id: int) -> str:
        """Returns the row within its file, and the file."""
        rows = self._rows(np.array([sequence_id]))
        group = int(self._groups_of(rows)[0])
        file, in_file = self._place_of(group)
        first_group = group - in_file
        first_row = int(self._row_ends[first_group - 1]) if first_group else 0
        return f"row {int(rows[0]) - first_row} of {file.where}"

    def _has_column(self, name: str) -> bool:
        return all(name in file.look().schema.names for file in self._files)

    def _check_id_column(self, name: str) -> None:
        for file in self._files:
            check_id_type(file.look().schema, name, file.where)

    def _fetch(self, ids: NDArray[np.int64]) -> list[NDArray[np.integer]]:
        """Returns whole sequences, read row group by row group; see `FetchSource._fetch`."""
        rows = self._rows(ids)
        groups = self._groups_of(rows)
        fetched: list[NDArray[np.integer]] = [np.empty(0, np.int64)] * len(ids)
        for group in dict.fromkeys(groups.tolist()):
            wanted = np.flatnonzero(groups == group)
            column = self._columns.get(group)
            first_row = int(self._row_ends[group]) - len(column)
            buffers, starts, lengths = column.locate(rows[wanted] - first_row, ids[wanted])
            dtype = column.dtype
            for i, buffer, start, length in zip(
                wanted.tolist(), buffers, starts.tolist(), lengths.tolist(), strict=True
            ):
                # Copied: a view would keep the whole row group in memory.
                begin = start * dtype.itemsize
                fetched[i] = np.frombuffer(bytes(buffer[begin : begin + length * dtype.itemsize]), dtype)
        return fetched

    def _ids_in(self, column: str) -> NDArray[np.int64]:
        groups = range(len(self._row_ends))
        arrays = (array for group in groups for array in _chunks(self._read(group, column)))
        return ids_of(arrays, len(self), column, self._where)

    def _column_of(self, group: int) -> ListColumn | FlatColumn:
        """Returns a row group's tokens: decoded here, or mapped from the node's disk if decoded columns are kept."""
        if self._disk is None:
            return self._decode(group)
        file, in_file = self._place_of(group)
        return self._disk.column(file.version, file.where, self._column, in_file, lambda: self._decode(group))

    def _decode(self, group: int) -> ListColumn:
        """Reads and decodes a row group's tokens."""
        file, _ = self._place_of(group)
        data = self._read(group, self._column)
        dtype = token_dtype_of(data.schema, self._column, file.where)
        return ListColumn(_chunks(data), dtype=dtype, where=file.where, column=self._column, nbytes=data.nbytes)

    def _read(self, group: int, column: str) -> Any:
        """Returns one column of a row group, as Arrow data."""
        file, in_file = self._place_of(group)
        return file.read(in_file, column)

    def _place_of(self, group: int) -> tuple[GroupedFile, int]:
        """Returns the file that holds a row group, and the row group's number in that file."""
        number = int(np.searchsorted(self._group_ends, group, side="right"))
        return self._files[number], group - (int(self._group_ends[number - 1]) if number else 0)

    def _groups_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._row_ends, rows, side="right")


def _chunks(data: Any) -> list[Any]:
    """Returns the arrays of the only column of a table (several chunks) or a record batch (one)."""
    column = data.column(0)
    return list(column.chunks) if hasattr(column, "chunks") else [column]
