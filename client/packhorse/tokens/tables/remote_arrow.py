"""Arrow files in an object store as a source, decoded a record batch at a time.

Owns opening them. Which record batches are decoded, and when, is in `_row_groups`; files on a disk are in `arrow`.
"""

import os
from collections.abc import Sequence
from typing import Any

from packhorse.formats.arrow import read_arrow
from packhorse.formats.arrow.folders import arrow_objects
from packhorse.formats.arrow.streams import StreamedBatch, streamed_batches
from packhorse.formats.extras import ARROW, require
from packhorse.formats.object_store import for_each, without_secrets
from packhorse.tokens.stored.cached_object import CachedObject
from packhorse.tokens.stored.store_cache import StoreCache
from packhorse.tokens.tables._row_groups import DEFAULT_KEPT_BYTES, FileLayout, RowGroupSource


class RemoteArrowSource(RowGroupSource):
    """Tokens of a list column of Arrow files in an object store; ids are row numbers, or come from an id column.

    Record batches are read ahead, through a cache on the node's disk. Of a file in the file format only the column is
    read; of one in the stream format (which `datasets` saves) all columns are. Files may be compressed.

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
        """Asks for the files and reads the number of rows of each record batch.

        Args:
            data: the URL of an Arrow file, of a folder of `*.arrow`, of a folder that `Dataset.save_to_disk` wrote, or
                a pattern; or a list of URLs of files, in the order that numbers rows.
            column: column of tokens, as for `ArrowSource`.
            id_column: column of ids, as for `ArrowSource`.
            kept_bytes: size of the decoded record batches that each process keeps; one always stays.
            store: how the store is read; None for the defaults.

        Raises:
            FileNotFoundError: nothing is there.
            ImportError: pyarrow, or fsspec's file system for the URL, is not installed.
            ValueError: a file is not an Arrow IPC file.
            TokenSourceError: a column is missing, ambiguous or of another type.
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
            store=cached,
        )


class _StoredFile:
    """An Arrow file in a store, whose row groups are its record batches; see `GroupedFile`."""

    def __init__(self, url: str, store: StoreCache) -> None:
        self._object = CachedObject(url, store)
        self._streamed: list[StreamedBatch] | None = None  # after `look`: of a file in the stream format
        self.where = without_secrets(url)
        self.size_bytes = self._object.object.size_bytes
        self.version = self._object.object.key

    def look(self) -> FileLayout:
        """Returns the schema and the rows of each record batch; see `GroupedFile.look`."""
        reader = self._reader()
        schema = reader.schema
        if not hasattr(reader, "get_batch"):  # a stream, as `datasets` writes: metadata is read without the cache
            self._streamed = streamed_batches(self._object.object.read, self.size_bytes, self.where)
            return FileLayout(schema, [batch.num_rows for batch in self._streamed])
        is_nested = require("pyarrow", ARROW).types.is_nested
        # Rows are counted with one column that is not nested, which reads the fewest bytes; if all are, with all.
        flat = [number for number, field in enumerate(schema) if not is_nested(field.type)]
        counted = self._reader(flat[:1] or None)
        rows = [counted.get_batch(number).num_rows for number in range(counted.num_record_batches)]
        return FileLayout(schema, rows)

    def read(self, group: int, column: str) -> Any:
        """Returns one column of a record batch; see `GroupedFile.read`."""
        schema = self._reader().schema
        if self._streamed is None:
            return self._reader([schema.names.index(column)]).get_batch(group)
        pa, ipc = require("pyarrow", ARROW), require("pyarrow.ipc", ARROW)
        batch = self._streamed[group]
        message = self._object.read(batch.begin, batch.end)
        return ipc.read_record_batch(pa.py_buffer(message), schema).select([column])

    def _reader(self, columns: Sequence[int] | None = None) -> Any:
        """Returns a reader of the record batches, whose bytes come through the cache."""
        require("pyarrow", ARROW)
        return read_arrow(self._object.file(), self.where, columns=columns)
