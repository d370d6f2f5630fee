"""Parquet files as a source: a list column of tokens, decoded a row group at a time.

Owns opening and reading Parquet, on a disk or in a store; leaves which row groups are wanted to `sources._row_groups`.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from packhorse.client.sources._node_cache import CachedObject, StoreCache
from packhorse.client.sources._row_groups import DEFAULT_KEPT_BYTES, RowGroupSource
from packhorse.client.sources._tables import ARROW
from packhorse.client.sources.base import TokenSourceError
from packhorse.formats import require
from packhorse.formats.files import FileStamp, as_path, named_files
from packhorse.formats.object_store import TokenStoreError, for_each, is_url, without_secrets


class ParquetSource(RowGroupSource):
    """Tokens of a list column of Parquet files; ids are row numbers, or come from an id column.

    Parquet cannot be mapped: a row group is decoded when one of its sequences is needed, and the last ones are kept.
    Shuffled ids of a large dataset decode a row group for almost every sequence, so write small row groups (a few
    hundred sequences) or a format that can be mapped.

    No file stays open between reads, so forks share none; a pickled source carries no tokens. Objects of a store are
    read through a cache on the node's disk, the row groups of coming batches ahead.

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
            data: a Parquet file, a folder of them at any depth, a glob pattern, or the URL of one in a store; rows are
                numbered over all files in sorted order, as `packhorse prepare` numbers them. Or a list of files in
                the order that numbers their rows.
            column: of tokens, lists of integers. None for the only such column, or the only one named `input_ids` or
                `tokens`.
            id_column: of ids, distinct integers. None where an id is a row number.
            cache_bytes: size of the decoded row groups that each process keeps; one always stays.
            store: how URLs are read; None for the defaults.

        Raises:
            FileNotFoundError: there is no such file.
            ImportError: pyarrow, or fsspec's file system for a URL, is not installed.
            ValueError: a file is no Parquet file, or cache_bytes is negative.
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
        )


def _named_in(data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Returns files and URLs, in the order that numbers rows."""
    if isinstance(data, str | os.PathLike):
        return named_files(as_path(data), ".parquet")
    return [as_path(path) for path in data]


class _ParquetFile:
    """A file on a disk, which refuses another one at the same path, or an object in a store; see `GroupedFile`."""

    def __init__(self, name: str, store: StoreCache) -> None:
        self._name = name
        self._opened = CachedObject(name, store) if is_url(name) else FileStamp.of(name)
        self.where = without_secrets(name)
        self.size_bytes = self._opened.size_bytes

    def look(self) -> tuple[Any, list[int]]:
        """See `GroupedFile`."""
        with self._open() as opened:
            metadata = opened.metadata
            return opened.schema_arrow, [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]

    def read(self, group: int, column: str) -> Any:
        """See `GroupedFile`."""
        with self._open() as opened:
            # Without threads: a pool that was forked away would never answer.
            return opened.read_row_group(group, columns=[column], use_threads=False)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """Opens the file and closes it again; its footer takes a millisecond or less."""
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
