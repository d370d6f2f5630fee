"""Parquet files as a source, on a disk or in a store.

Owns opening them. Which row groups are decoded, and when, is in `_row_groups`.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from packhorse.formats.extras import ARROW, require
from packhorse.formats.file_stamp import FileStamp
from packhorse.formats.files import as_path, named_files
from packhorse.formats.object_store import TokenStoreError, for_each, is_url, without_secrets
from packhorse.tokens.base import TokenSourceError
from packhorse.tokens.stored.cached_object import CachedObject
from packhorse.tokens.stored.store_cache import StoreCache
from packhorse.tokens.tables._row_groups import DEFAULT_KEPT_BYTES, FileLayout, RowGroupSource


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
        urls = [name for name in names if is_url(name)]
        paths = [name for name in names if not is_url(name)]
        if urls and paths:
            raise TokenSourceError(f"{paths[0]} is a file and {without_secrets(urls[0])} a URL; give all of one kind")
        if urls:
            files = for_each(urls, lambda url: _ParquetFile(url, store))
        else:
            files = [_ParquetFile(path, store) for path in paths]
        super().__init__(
            files,
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
        self._state = CachedObject(name, store) if is_url(name) else FileStamp.of(name)
        self.where = without_secrets(name)
        self.size_bytes = self._state.size_bytes
        if isinstance(self._state, FileStamp):
            self.version = f"{os.path.realpath(name)}\n{self.size_bytes}\n{self._state.modified_ns}"
        else:
            self.version = self._state.object.key

    def look(self) -> FileLayout:
        """Returns the schema and the rows of each row group; see `GroupedFile.look`."""
        with self._open() as opened:
            metadata = opened.metadata
            rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            return FileLayout(opened.schema_arrow, rows)

    def read(self, group: int, column: str) -> Any:
        """Returns one column of a row group; see `GroupedFile.read`."""
        with self._open() as opened:
            # Without threads: in a forked process, Arrow's pool has none and would never answer.
            return opened.read_row_group(group, columns=[column], use_threads=False)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """Opens the file for one read and closes it again; reading its footer takes a millisecond or less."""
        arrow, parquet = require("pyarrow", ARROW), require("pyarrow.parquet", ARROW)
        file: Any = self._name
        if isinstance(self._state, FileStamp):
            self._state.check(self._name)
        else:
            file = self._state.file()
        try:
            with parquet.ParquetFile(file, pre_buffer=False) as opened:
                yield opened
        except (FileNotFoundError, PermissionError, TokenStoreError):
            raise
        except (arrow.ArrowException, OSError) as error:
            raise ValueError(f"{self.where} cannot be read as a Parquet file: {error}") from None
