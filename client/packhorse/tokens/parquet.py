"""Tables that are decoded a row group at a time: Parquet files as a source, on a disk or in a store.

Owns which row group holds a row, which decoded row groups are kept, and which are decoded ahead; `arrow` uses all this
for the record batches of files in stores. Leaves the layout of lists to `_list_columns`, and looking ids up to
`_tables`.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from packhorse.formats import require
from packhorse.formats.file_stamp import FileStamp
from packhorse.formats.files import as_path, named_files
from packhorse.formats.object_store import TokenStoreError, for_each, is_url, without_secrets
from packhorse.tokens._decoded import DecodedCache, FlatColumn
from packhorse.tokens._list_columns import ARROW, ListColumn, check_id_type, token_dtype_of
from packhorse.tokens._node_cache import CachedObject, FetchAhead, StoreCache
from packhorse.tokens._tables import RowLookup, TableSource, choose_column, ids_of
from packhorse.tokens.base import FetchSource, TokenSourceError

DEFAULT_KEPT_BYTES = 1 << 28
"""Default size of the decoded row groups that each process keeps."""
_DECODING_THREADS = 8
"""Threads that decode ahead: enough to wait for a store; with 16, decoding took a third more processor time."""


class GroupedFile(Protocol):
    """A file whose columns are read one row group at a time; it pickles by path or URL."""

    where: str
    """Path or URL of the file, for messages."""
    size_bytes: int
    version: str
    """Identifies the file in its present state; every file and every change has another one."""

    def look(self) -> tuple[Any, list[int]]:
        """Returns the file's Arrow schema, and the number of rows of each row group."""
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
        looks = for_each(files, lambda file: file.look()) if ahead_bytes else [file.look() for file in files]
        for file, (schema, rows) in zip(files, looks, strict=True):
            column = choose_column(schema, column, file.where)
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
        self._decoded = DecodedCache(store) if store.keeps_decoded else None
        self._groups = FetchAhead(self._column_of, ahead=ahead, threads=_DECODING_THREADS, keep_bytes=kept_bytes)

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
        if self._groups.ahead:
            groups = self._groups_of(self._rows(ids))
            self._groups.expect(list(dict.fromkeys(groups.tolist())))

    def origin(self, sequence_id: int) -> str:
        """Returns the row within its file, and the file."""
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
        """Returns whole sequences, read row group by row group; see `FetchSource._fetch`."""
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

    def _column_of(self, group: int) -> ListColumn | FlatColumn:
        """Returns a row group's tokens: decoded here, or mapped from the node's disk if decoded columns are kept."""
        if self._decoded is None:
            return self._decode(group)
        number, in_file = self._place_of(group)
        file = self._files[number]
        return self._decoded.column(file.version, file.where, self._column, in_file, lambda: self._decode(group))

    def _decode(self, group: int) -> ListColumn:
        """Reads and decodes a row group's tokens."""
        where = self._files[self._file_of(group)].where
        data = self._read(group, self._column)
        dtype = token_dtype_of(data.schema, self._column, where)
        return ListColumn(_chunks(data), dtype=dtype, where=where, column=self._column, nbytes=data.nbytes)

    def _read(self, group: int, column: str) -> Any:
        """Returns one column of a row group, as Arrow data."""
        number, in_file = self._place_of(group)
        return self._files[number].read(in_file, column)

    def _place_of(self, group: int) -> tuple[int, int]:
        """Returns the number of the file that holds a row group, and the row group's number in that file."""
        number = self._file_of(group)
        return number, group - (int(self._group_ends[number - 1]) if number else 0)

    def _groups_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._row_ends, rows, side="right")

    def _file_of(self, group: int) -> int:
        return int(np.searchsorted(self._group_ends, group, side="right"))


class ParquetSource(RowGroupSource):
    """Tokens of a list column of Parquet files; ids are row numbers, or come from an id column.

    Parquet cannot be mapped: a row group is decoded when one of its sequences is needed, and those used last are kept.
    Shuffled ids of a large dataset decode a row group for almost every sequence. So write small row groups (a few
    hundred sequences), take a format that can be mapped, or keep decoded columns on the node's disk, where all its
    processes map them: `store=StoreCache(keeps_decoded=True)`.

    No file stays open between reads, so forks share none; a pickled source carries no tokens. Objects of a store are
    read ahead, through a cache on the node's disk.

    Example:
        >>> import pyarrow as pa
        >>> import pyarrow.parquet as pq
        >>> pq.write_table(pa.table({"id": [70, 30], "input_ids": [[1, 2, 3], [4]]}), "tokens.parquet")
        >>> ParquetSource("tokens.parquet", id_column="id").read(30).tolist()
        [4]
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        column: str | None = None,
        id_column: str | None = None,
        cache_bytes: int = DEFAULT_KEPT_BYTES,
        store: StoreCache | None = None,
    ) -> None:
        """Reads the files' footers.

        Args:
            data: a Parquet file, a folder with such files at any depth, a glob pattern, or a file's URL in a store; row
                numbers continue over all files in sorted order, as in `packhorse prepare`. Or a list of files, in the
                order of row numbers.
            column: column of tokens, lists of integers. None for the only such column, or the only one of them named
                `input_ids` or `tokens`.
            id_column: column of ids, distinct integers. None if an id is a row number.
            cache_bytes: size of the decoded row groups that each process keeps; one always stays.
            store: how URLs are read, and whether decoded row groups are kept on the node's disk for all its processes
                (`keeps_decoded`); None for the defaults.

        Raises:
            FileNotFoundError: there is no such file.
            ImportError: pyarrow, or fsspec's file system for a URL, is not installed.
            ValueError: a file is not a Parquet file, or cache_bytes is negative.
            TokenSourceError: a column is missing, ambiguous or of another type.
            TokenStoreError: the store does not answer.
        """
        if cache_bytes < 0:
            raise ValueError(f"cache_bytes must be at least 0, got {cache_bytes}")
        store = store or StoreCache()
        names = _named_in(data)
        urls, paths = ([name for name in names if is_url(name) is wanted] for wanted in (True, False))
        if urls and paths:
            raise TokenSourceError(f"{paths[0]} is a file and {without_secrets(urls[0])} a URL; give all of one kind")
        super().__init__(
            for_each(names, lambda name: _ParquetFile(name, store))
            if urls
            else [_ParquetFile(name, store) for name in names],
            column=column,
            id_column=id_column,
            kept_bytes=cache_bytes,
            ahead_bytes=store.read_ahead_bytes if urls else 0,
            store=store,
        )


def _named_in(data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Returns the paths and URLs that the user's argument names, in the order that numbers rows."""
    if isinstance(data, str | os.PathLike):
        return named_files(as_path(data), ".parquet")
    return [as_path(path) for path in data]


class _ParquetFile:
    """A Parquet file on a disk, refused if it was replaced since, or an object in a store; see `GroupedFile`."""

    def __init__(self, name: str, store: StoreCache) -> None:
        self._name = name
        self._opened = CachedObject(name, store) if is_url(name) else FileStamp.of(name)
        self.where = without_secrets(name)
        self.size_bytes = self._opened.size_bytes
        if isinstance(self._opened, FileStamp):
            self.version = f"{os.path.realpath(name)}\n{self.size_bytes}\n{self._opened.modified_ns}"
        else:
            self.version = self._opened.object.key

    def look(self) -> tuple[Any, list[int]]:
        """Returns the schema and the rows of each row group; see `GroupedFile.look`."""
        with self._open() as opened:
            metadata = opened.metadata
            return opened.schema_arrow, [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]

    def read(self, group: int, column: str) -> Any:
        """Returns one column of a row group; see `GroupedFile.read`."""
        with self._open() as opened:
            # Without threads: in a forked process, Arrow's pool has none and would never answer.
            return opened.read_row_group(group, columns=[column], use_threads=False)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """Opens the file for one read and closes it again; reading its footer takes a millisecond or less."""
        arrow, parquet = require("pyarrow", ARROW), require("pyarrow.parquet", ARROW)
        if isinstance(self._opened, FileStamp):
            self._opened.check(self._name)
        file = self._name if isinstance(self._opened, FileStamp) else self._opened.file()
        try:
            with parquet.ParquetFile(file, pre_buffer=False) as opened:
                yield opened
        except (FileNotFoundError, PermissionError, TokenStoreError):
            raise
        except (arrow.ArrowException, OSError) as error:
            raise ValueError(f"{self.where} cannot be read as a Parquet file: {error}") from None


def _chunks(data: Any) -> list[Any]:
    """Returns the arrays of the only column of a table (several chunks) or a record batch (one)."""
    column = data.column(0)
    return list(column.chunks) if hasattr(column, "chunks") else [column]
