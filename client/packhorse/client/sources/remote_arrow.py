"""Arrow files in object stores as a source: record batches, read through the node's cache and decoded ahead.

Owns reading record batches of an object; leaves which of them are wanted to `_row_groups`. Files on a disk are mapped,
see `arrow`.
"""

import os
from collections.abc import Sequence
from typing import Any

from packhorse.client.sources._lists import ARROW
from packhorse.client.sources._row_groups import DEFAULT_KEPT_BYTES, RowGroupSource
from packhorse.client.sources.fetched import CachedObject, StoreCache
from packhorse.formats import require
from packhorse.formats.arrow import StreamedBatch, arrow_objects, read_arrow, streamed_batches
from packhorse.formats.object_store import for_each, without_secrets


class RemoteArrowSource(RowGroupSource):
    """Tokens of a list column of Arrow files in an object store; ids are rows, or what an id column says.

    Record batches are read through a cache on the node's disk, and those of coming batches are fetched ahead. Of the
    file format only the column is read, of the stream format (which `datasets` saves) every column. Files may be
    compressed.

    Example:
        >>> import pathlib, tempfile
        >>> import pyarrow as pa
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "a.arrow")
        ...     table = pa.table({"input_ids": [[1, 2, 3], [4]]})
        ...     with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        ...         writer.write_table(table)
        ...     RemoteArrowSource(path.as_uri(), store=StoreCache(cache_folder=folder)).read(1).tolist()
        [4]
    """

    def __init__(
        self,
        data: str | Sequence[str],
        *,
        column: str | None = None,
        id_column: str | None = None,
        kept_bytes: int = DEFAULT_KEPT_BYTES,
        store: StoreCache | None = None,
    ) -> None:
        """Asks for the files and reads how many rows each record batch has.

        Args:
            data: the URL of an Arrow file, of a folder of `*.arrow`, of a folder that `Dataset.save_to_disk` wrote, or
                a pattern; or a list of URLs of files, in the order that numbers rows.
            column: holds the tokens: lists of integers. None for the evident one, as for `ArrowSource`.
            id_column: holds the ids: distinct integers. None where a row's number is its sequence's id.
            kept_bytes: decoded record batches that each process keeps, at most; one always stays.
            store: how the store is read; None for the defaults.

        Raises:
            FileNotFoundError: nothing is there.
            ImportError: pyarrow, or fsspec's file system for the URL, is not installed.
            ValueError: a file is no Arrow IPC file.
            TokenSourceError: a column is missing, of another type, or cannot be told.
            TokenStoreError: the store does not answer.
        """
        cached = store or StoreCache()
        urls = arrow_objects(data) if isinstance(data, str | os.PathLike) else list(data)
        super().__init__(
            for_each(urls, lambda url: _StoredFile(url, cached)),
            column=column,
            id_column=id_column,
            kept_bytes=kept_bytes,
            ahead_bytes=cached.read_ahead_bytes,
        )


class _StoredFile:
    """An object of record batches; see `GroupedFile`."""

    def __init__(self, url: str, store: StoreCache) -> None:
        self._object = CachedObject(url, store)
        self._streamed: list[StreamedBatch] | None = None
        self.where = without_secrets(url)
        self.size_bytes = self._object.object.size_bytes

    def look(self) -> tuple[Any, list[int]]:
        """See `GroupedFile`."""
        reader = self._reader()
        schema = reader.schema
        if not hasattr(reader, "get_batch"):  # a stream, as `datasets` writes: frames are read past the cache
            self._streamed = streamed_batches(self._object.object.read, self.size_bytes, self.where)
            return schema, [batch.num_rows for batch in self._streamed]
        is_nested = require("pyarrow", ARROW).types.is_nested
        narrow = [number for number, field in enumerate(schema) if not is_nested(field.type)]
        counted = self._reader(narrow[:1] or None)
        return schema, [counted.get_batch(number).num_rows for number in range(counted.num_record_batches)]

    def read(self, group: int, column: str) -> Any:
        """See `GroupedFile`."""
        schema = self._reader().schema
        if self._streamed is None:
            return self._reader([schema.names.index(column)]).get_batch(group)
        pa, ipc = require("pyarrow", ARROW), require("pyarrow.ipc", ARROW)
        message = self._object.read(*self._streamed[group][:2])
        return ipc.read_record_batch(pa.py_buffer(message), schema).select([column])

    def _reader(self, columns: Sequence[int] | None = None) -> Any:
        require("pyarrow", ARROW)
        return read_arrow(self._object.file(), self.where, columns=columns)
