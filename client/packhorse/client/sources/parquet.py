"""Parquet files as a source: a list column of tokens, decoded a row group at a time.

Owns which row group holds a row and which decoded ones are kept; leaves the layout of lists to `lists`.
"""

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.client.sources._fetched import FetchSource
from packhorse.client.sources._ids import RowLookup, TableSource
from packhorse.client.sources._lists import (
    ARROW,
    ListColumn,
    check_id_type,
    choose_column,
    ids_of,
    token_dtype_of,
)
from packhorse.client.sources.base import TokenSourceError
from packhorse.formats import require
from packhorse.formats.files import FileStamp, find_files

DEFAULT_CACHE_BYTES = 1 << 28


class ParquetSource(TableSource, FetchSource):
    """Tokens of a list column of Parquet files; a sequence's id is its row, or what an id column says.

    Parquet cannot be mapped: a row group is decoded when one of its sequences is wanted, and the last ones are kept.
    Where ids are drawn from the whole of a large dataset, most look-ups decode a row group for one sequence; write
    small row groups (a few hundred sequences), or a format that can be mapped.

    No file stays open between look-ups, so forks share none; a pickled source carries no tokens.

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
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        """Reads the files' footers.

        Args:
            data: a Parquet file, a folder of them at any depth, or a glob pattern: rows are numbered over all files in
                sorted order, as `packhorse prepare` numbers them. Or a list of files in the order that numbers them.
            column: holds the tokens: lists of integers. None for the only such column, or the only one of them called
                `input_ids` or `tokens`.
            id_column: holds the ids: distinct integers. None where a row's number is its sequence's id.
            cache_bytes: decoded row groups that each process keeps, at most; one always stays.

        Raises:
            FileNotFoundError: there is no such file.
            ImportError: pyarrow is not installed.
            ValueError: a file is no Parquet file, or cache_bytes is negative.
            TokenSourceError: a column is missing, of another type, or cannot be told.
        """
        super().__init__()
        if cache_bytes < 0:
            raise ValueError(f"cache_bytes must be at least 0, got {cache_bytes}")
        paths = find_files(data, ".parquet") if isinstance(data, str | os.PathLike) else [Path(path) for path in data]
        if not paths:
            raise TokenSourceError("no Parquet file is given")
        self._where = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        self._paths = tuple(paths)
        self._stamps = tuple(FileStamp.of(path) for path in paths)
        self._id_column = id_column
        self._cache_bytes = cache_bytes
        group_rows: list[int] = []
        num_groups: list[int] = []
        for path in paths:
            with _open_parquet(path) as file:
                schema, metadata = file.schema_arrow, file.metadata
            column = choose_column(schema, column, str(path))
            token_dtype_of(schema, column, str(path))
            if id_column is not None:
                check_id_type(schema, id_column, str(path))
            num_groups.append(metadata.num_row_groups)
            group_rows += [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        assert column is not None  # there is at least one file
        self._column = column
        # Row groups are numbered over all files.
        self._group_ends = np.cumsum(num_groups, dtype=np.int64)
        self._row_ends = np.cumsum(group_rows, dtype=np.int64)
        self._lookup: RowLookup | None = None
        self._decoded: OrderedDict[int, tuple[ListColumn, int]] = OrderedDict()

    def __len__(self) -> int:
        return int(self._row_ends[-1]) if len(self._row_ends) else 0

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_lookup": None, "_decoded": OrderedDict()}

    @property
    def where(self) -> str:
        """The files."""
        return self._where

    def _has_column(self, name: str) -> bool:
        return all(name in schema.names for schema in self._schemas())

    def _check_id_column(self, name: str) -> None:
        for path, schema in zip(self._paths, self._schemas(), strict=True):
            check_id_type(schema, name, str(path))

    def _schemas(self) -> Iterator[Any]:
        for path in self._paths:
            with _open_parquet(path) as file:
                yield file.schema_arrow

    def _fetch(self, ids: NDArray[np.int64]) -> list[NDArray[np.integer]]:
        rows = self._find(ids)
        groups = np.searchsorted(self._row_ends, rows, side="right")
        fetched: list[NDArray[np.integer]] = [np.empty(0, np.int64)] * len(ids)
        for group in np.unique(groups).tolist():
            wanted = np.flatnonzero(groups == group)
            column = self._decode(group)
            first_row = int(self._row_ends[group]) - len(column)
            buffers, firsts, lengths = column.spans(rows[wanted] - first_row, ids[wanted])
            dtype = column.dtype
            for i, buffer, first, length in zip(
                wanted.tolist(), buffers, firsts.tolist(), lengths.tolist(), strict=True
            ):
                # Copied: a view would keep the whole row group in memory.
                at = first * dtype.itemsize
                fetched[i] = np.frombuffer(bytes(buffer[at : at + length * dtype.itemsize]), dtype)
        return fetched

    def origin(self, sequence_id: int) -> str:
        """The file, and the row of it."""
        (row,) = self._find(np.array([sequence_id])).tolist()
        number = self._file_of(int(np.searchsorted(self._row_ends, row, side="right")))
        first_group = int(self._group_ends[number - 1]) if number else 0
        first_row = int(self._row_ends[first_group - 1]) if first_group else 0
        return f"row {row - first_row} of {self._paths[number]}"

    def _find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._lookup is None:
            held = None
            if self._id_column is not None:
                arrays = (
                    array
                    for group in range(len(self._row_ends))
                    for array in self._read(group, self._id_column).column(0).chunks
                )
                held = ids_of(arrays, len(self), self._id_column, self._where)
            self._lookup = RowLookup(self._where, len(self), held)
        return self._lookup.rows(ids)

    def _decode(self, group: int) -> ListColumn:
        """A row group's tokens, from the cache where they are there."""
        found = self._decoded.pop(group, None)
        if found is None:
            where = str(self._paths[self._file_of(group)])
            table = self._read(group, self._column)
            dtype = token_dtype_of(table.schema, self._column, where)
            column = ListColumn(table.column(0).chunks, dtype=dtype, where=where, column=self._column)
            found = column, table.nbytes
        self._decoded[group] = found
        while len(self._decoded) > 1 and sum(size for _, size in self._decoded.values()) > self._cache_bytes:
            self._decoded.popitem(last=False)
        return found[0]

    def _read(self, group: int, column: str) -> Any:
        """One column of a row group, as an Arrow table."""
        number = self._file_of(group)
        self._stamps[number].check(self._paths[number])
        first_group = int(self._group_ends[number - 1]) if number else 0
        with _open_parquet(self._paths[number]) as file:
            # Without threads: a pool that was forked away would never answer.
            return file.read_row_group(group - first_group, columns=[column], use_threads=False)

    def _file_of(self, group: int) -> int:
        return int(np.searchsorted(self._group_ends, group, side="right"))


@contextmanager
def _open_parquet(path: Path) -> Iterator[Any]:
    """Opens a Parquet file and closes it again, whatever becomes of it; its footer takes a millisecond or less."""
    arrow, parquet = require("pyarrow", ARROW), require("pyarrow.parquet", ARROW)
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            yield file
    except FileNotFoundError:
        raise
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as a Parquet file: {error}") from None
