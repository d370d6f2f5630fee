"""Parquet files as a source: a list column of tokens, decoded a row group at a time.

Owns opening and reading Parquet, on a disk or in a store; leaves which row groups are wanted to `_row_groups`.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packhorse.client.sources._lists import ARROW
from packhorse.client.sources._row_groups import DEFAULT_KEPT_BYTES, GroupedFile, RowGroupSource
from packhorse.client.sources.base import TokenSourceError
from packhorse.client.sources.fetched import CachedObject, StoreCache
from packhorse.formats import require
from packhorse.formats.files import FileStamp, as_path, named_files
from packhorse.formats.object_store import TokenStoreError, for_each, is_url, without_secrets

DEFAULT_CACHE_BYTES = DEFAULT_KEPT_BYTES


class ParquetSource(RowGroupSource):
    """Tokens of a list column of Parquet files; a sequence's id is its row, or what an id column says.

    Parquet cannot be mapped: a row group is decoded when one of its sequences is wanted, and the last ones are kept.
    Where ids are drawn from the whole of a large dataset, most look-ups decode a row group for one sequence; write
    small row groups (a few hundred sequences), or a format that can be mapped.

    No file stays open between look-ups, so forks share none; a pickled source carries no tokens. Objects of a store are
    read through a cache on the node's disk, and the row groups of coming batches are fetched and decoded ahead.

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
        store: StoreCache | None = None,
    ) -> None:
        """Reads the files' footers.

        Args:
            data: a Parquet file, a folder of them at any depth, or a glob pattern, or the URL of one in a store: rows
                are numbered over all files in sorted order, as `packhorse prepare` numbers them. Or a list of files in
                the order that numbers them.
            column: holds the tokens: lists of integers. None for the only such column, or the only one of them called
                `input_ids` or `tokens`.
            id_column: holds the ids: distinct integers. None where a row's number is its sequence's id.
            cache_bytes: decoded row groups that each process keeps, at most; one always stays.
            store: how URLs are read; None for the defaults.

        Raises:
            FileNotFoundError: there is no such file.
            ImportError: pyarrow, or fsspec's file system for a URL, is not installed.
            ValueError: a file is no Parquet file, or cache_bytes is negative.
            TokenSourceError: a column is missing, of another type, or cannot be told.
            TokenStoreError: the store does not answer.
        """
        if cache_bytes < 0:
            raise ValueError(f"cache_bytes must be at least 0, got {cache_bytes}")
        store = store or StoreCache()
        names = named_in(data, ".parquet")
        files: list[GroupedFile] = [_LocalFile(Path(name)) for name in names if not is_url(name)]
        if urls := [name for name in names if is_url(name)]:
            if files:
                raise TokenSourceError(
                    f"{files[0].where} is a file and {without_secrets(urls[0])} a URL; give all of one kind"
                )
            files = list(for_each(urls, lambda url: _StoredFile(url, store)))
        super().__init__(
            files,
            column=column,
            id_column=id_column,
            kept_bytes=cache_bytes,
            ahead_bytes=store.read_ahead_bytes if urls else 0,
        )


def named_in(data: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], suffix: str) -> list[str]:
    """Returns the files and URLs that a source is given, in the order that numbers rows."""
    if isinstance(data, str | os.PathLike):
        return named_files(as_path(data), suffix)
    return [as_path(path) for path in data]


class _LocalFile:
    """A file on a disk; it refuses another one at the same path."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = FileStamp.of(path)
        self.where = str(path)
        self.size_bytes = self._stamp.size_bytes

    def look(self) -> tuple[Any, list[int]]:
        """See `GroupedFile`."""
        return _look(self._path, self.where)

    def read(self, group: int, column: str) -> Any:
        """See `GroupedFile`."""
        self._stamp.check(self._path)
        return _read(self._path, self.where, group, column)


class _StoredFile:
    """An object in a store."""

    def __init__(self, url: str, store: StoreCache) -> None:
        self._object = CachedObject(url, store)
        self.where = without_secrets(url)
        self.size_bytes = self._object.object.size_bytes

    def look(self) -> tuple[Any, list[int]]:
        """See `GroupedFile`."""
        return _look(self._object.file(), self.where)

    def read(self, group: int, column: str) -> Any:
        """See `GroupedFile`."""
        return _read(self._object.file(), self.where, group, column)


def _look(file: Any, where: str) -> tuple[Any, list[int]]:
    with _open_parquet(file, where) as opened:
        metadata = opened.metadata
        return opened.schema_arrow, [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def _read(file: Any, where: str, group: int, column: str) -> Any:
    with _open_parquet(file, where) as opened:
        # Without threads: a pool that was forked away would never answer.
        return opened.read_row_group(group, columns=[column], use_threads=False)


@contextmanager
def _open_parquet(file: Any, where: str) -> Iterator[Any]:
    """Opens a Parquet file and closes it again, whatever becomes of it; its footer takes a millisecond or less."""
    arrow, parquet = require("pyarrow", ARROW), require("pyarrow.parquet", ARROW)
    try:
        with parquet.ParquetFile(file, pre_buffer=False) as opened:
            yield opened
    except (FileNotFoundError, PermissionError, TokenStoreError):
        raise
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(f"{where} cannot be read as a Parquet file: {error}") from None
