"""Arrow files and Hugging Face datasets as sources: on a disk memory-mapped, in a store decoded batch by batch.

Owns opening them; leaves the layout of lists to `_list_columns`, looking ids up to `_tables`, copying tokens to `base`,
and choosing which record batches of a store to decode to `parquet`.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.formats import require
from packhorse.formats.arrow import open_arrow, read_arrow, record_batches, values_of
from packhorse.formats.arrow.folders import arrow_files, arrow_objects
from packhorse.formats.arrow.streams import StreamedBatch, streamed_batches
from packhorse.formats.file_stamp import FileStamp
from packhorse.formats.object_store import for_each, without_secrets
from packhorse.tokens._list_columns import ARROW, ListColumn, check_id_type, token_dtype_of
from packhorse.tokens._node_cache import CachedObject, StoreCache
from packhorse.tokens._tables import RowLookup, TableSource, choose_column, ids_of
from packhorse.tokens.base import MappedSource, Ranges, TokenSourceError
from packhorse.tokens.parquet import DEFAULT_KEPT_BYTES, RowGroupSource


class ArrowSource(TableSource, MappedSource):
    """Tokens of a list column of Arrow data, memory-mapped; ids are row numbers, or come from an id column.

    Rows are numbered over all files in order. Forks share the maps. A source of files pickles as their paths, and a
    source of a `datasets.Dataset` pickles as the dataset does.

    Example:
        >>> import pyarrow as pa
        >>> table = pa.table({"id": [70, 30], "input_ids": [[1, 2, 3], [4]]})
        >>> with pa.OSFile("tokens.arrow", "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        ...     writer.write_table(table)
        >>> ArrowSource("tokens.arrow", id_column="id").read(30).tolist()
        [4]
    """

    def __init__(self, data: Any, *, column: str | None = None, id_column: str | None = None) -> None:
        """Opens the data; O(record batches).

        Args:
            data: an Arrow IPC file (of the file or the stream format), a folder of `*.arrow`, a glob pattern, a folder
                that `Dataset.save_to_disk` wrote, or a list of files in the order that numbers their rows; or a
                `datasets.Dataset`, also a selected or shuffled one.
            column: column of tokens, lists of integers. None for the only such column, or the only one of them named
                `input_ids` or `tokens`.
            id_column: column of ids, distinct integers. None if an id is a row number.

        Raises:
            FileNotFoundError: there is no such file.
            ImportError: pyarrow is not installed.
            ValueError: a file is not an Arrow IPC file.
            TokenSourceError: a column is missing, ambiguous or of another type; a file is compressed.
        """
        self._tables: _HeldTable | _MappedFiles = (
            _HeldTable(data) if is_held_dataset(data) else _MappedFiles(_arrow_files(data))
        )
        schema = self._tables.schema()
        self._column = choose_column(schema, column, self._tables.where)
        self._id_column = id_column
        self._dtype = token_dtype_of(schema, self._column, self._tables.where)
        if id_column is not None:
            check_id_type(schema, id_column, self._tables.where)
        self._opened: tuple[ListColumn, NDArray[np.integer] | None] | None = None
        self._lookup: RowLookup | None = None
        self._open()

    def __len__(self) -> int:
        tokens, selection = self._open()
        return len(tokens) if selection is None else len(selection)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_opened": None}

    @property
    def where(self) -> str:
        """The files, or the dataset."""
        return self._tables.where

    @property
    def mapped_files(self) -> Sequence[str]:
        """The mapped files; empty for a `datasets.Dataset`."""
        return self._tables.paths

    def _has_column(self, name: str) -> bool:
        return name in self._tables.schema().names

    def _check_id_column(self, name: str) -> None:
        check_id_type(self._tables.schema(), name, self.where)

    def _locate(self, ids: NDArray[np.int64]) -> Ranges:
        tokens, selection = self._open()
        rows = self._rows(ids)
        buffers, firsts, lengths = tokens.locate(rows if selection is None else selection[rows].astype(np.int64), ids)
        return Ranges(buffers, firsts * self._dtype.itemsize, lengths)

    def _ids_in(self, column: str) -> NDArray[np.int64]:
        tokens, selection = self._open()
        ids = ids_of(self._tables.arrays(column), len(tokens), column, self.where)
        return ids if selection is None else ids[selection]

    def _open(self) -> tuple[ListColumn, NDArray[np.integer] | None]:
        """Returns the column of tokens, and its selected rows in order: integers [N], or None for all rows."""
        if self._opened is None:
            arrays = self._tables.arrays(self._column)
            column = ListColumn(arrays, dtype=self._dtype, where=self._tables.where, column=self._column)
            self._opened = column, self._tables.selection()
        return self._opened


def is_held_dataset(data: Any) -> bool:
    """Returns whether an object is a `datasets.Dataset`, without importing the package."""
    package = sys.modules.get("datasets")
    return package is not None and isinstance(data, package.Dataset)


class _HeldTable:
    """The Arrow data of a `datasets.Dataset`; has the same methods as `_MappedFiles`."""

    paths: Sequence[str] = ()
    """Mapped files: none, since the dataset maps its own."""

    def __init__(self, dataset: Any) -> None:
        self.where = f"the dataset {dataset.info.dataset_name or ''}".rstrip()
        self._dataset = dataset

    def schema(self) -> Any:
        """Returns the Arrow schema."""
        return self._dataset.data.schema

    def arrays(self, column: str) -> Iterator[Any]:
        """Yields the chunks of a column in order."""
        yield from self._dataset.data.column(column).chunks

    def selection(self) -> NDArray[np.integer] | None:
        """Returns the rows that select() and shuffle() left, in order: integers [N]; None for all."""
        # The package's public methods would give these rows only with a copy of all tokens.
        indices = self._dataset._indices
        if indices is None:
            return None
        chunks = [values_of(chunk) for chunk in indices.column(0).chunks]
        return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, np.uint64), *chunks])


class _MappedFiles:
    """Arrow IPC files of one schema. Pickles as paths; refuses a file that has been replaced since."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.where = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        self._paths = tuple(paths)
        self._stamps = tuple(FileStamp.of(path) for path in paths)

    @property
    def paths(self) -> Sequence[str]:
        """Paths of the files."""
        return [str(path) for path in self._paths]

    def schema(self) -> Any:
        """Returns the Arrow schema of all files; a TokenSourceError if it is not the same."""
        schema = _open_file(self._paths[0])[1].schema
        for path in self._paths[1:]:
            other = _open_file(path)[1].schema
            if not other.equals(schema):
                raise TokenSourceError(
                    f"{path} has other columns than {self._paths[0]}; open each with a source of its own"
                )
        return schema

    def arrays(self, column: str) -> Iterator[Any]:
        """Yields a column of each record batch in order; a TokenSourceError if a file is compressed."""
        for path, stamp in zip(self._paths, self._stamps, strict=True):
            stamp.check(path)
            whole, reader = _open_file(path)
            for batch in record_batches(reader, path):
                array = batch.column(column)
                if not _is_inside(array, whole):
                    raise TokenSourceError(
                        f"{path} is compressed, so it cannot be memory-mapped; write it without compression, or as "
                        "Parquet, which is decoded by row groups"
                    )
                yield array

    def selection(self) -> None:
        return None  # all rows count


def _arrow_files(data: Any) -> list[Path]:
    """Returns the files, in the order that numbers rows."""
    if isinstance(data, str | os.PathLike):
        try:
            return arrow_files(data)
        except ValueError as error:
            raise TokenSourceError(str(error)) from None
    paths = [Path(path) for path in data]
    if not paths:
        raise TokenSourceError("the list of Arrow files is empty; give at least one")
    return paths


def _open_file(path: Path) -> tuple[Any, Any]:
    """Maps a file: returns its bytes and a reader of all columns, because a reader of some columns would copy."""
    require("pyarrow", ARROW)
    return open_arrow(path)


def _is_inside(array: Any, whole: Any) -> bool:
    """Returns whether a list array's values lie in the mapped bytes; those of a compressed file do not."""
    values = array.buffers()[-1]
    return values is None or not values.size or 0 <= values.address - whole.address < whole.size


class RemoteArrowSource(RowGroupSource):
    """Tokens of a list column of Arrow files in an object store; ids are row numbers, or come from an id column.

    Record batches are read ahead, through a cache on the node's disk. From files of the file format only the column is
    read, from those of the stream format (which `datasets` saves) every column. Files may be compressed.

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
        self._streamed: list[StreamedBatch] | None = None
        self.where = without_secrets(url)
        self.size_bytes = self._object.object.size_bytes
        self.version = self._object.object.key

    def look(self) -> tuple[Any, list[int]]:
        """Returns the schema and the rows of each record batch; see `GroupedFile.look`."""
        reader = self._reader()
        schema = reader.schema
        if not hasattr(reader, "get_batch"):  # a stream, as `datasets` writes: metadata is read without the cache
            self._streamed = streamed_batches(self._object.object.read, self.size_bytes, self.where)
            return schema, [batch.num_rows for batch in self._streamed]
        is_nested = require("pyarrow", ARROW).types.is_nested
        # Rows are counted with one column that is not nested, if there is one, which reads the fewest bytes.
        narrow = [number for number, field in enumerate(schema) if not is_nested(field.type)]
        counted = self._reader(narrow[:1] or None)
        return schema, [counted.get_batch(number).num_rows for number in range(counted.num_record_batches)]

    def read(self, group: int, column: str) -> Any:
        """Returns one column of a record batch; see `GroupedFile.read`."""
        schema = self._reader().schema
        if self._streamed is None:
            return self._reader([schema.names.index(column)]).get_batch(group)
        pa, ipc = require("pyarrow", ARROW), require("pyarrow.ipc", ARROW)
        message = self._object.read(*self._streamed[group][:2])
        return ipc.read_record_batch(pa.py_buffer(message), schema).select([column])

    def _reader(self, columns: Sequence[int] | None = None) -> Any:
        """Returns a reader of the record batches, whose bytes come through the cache."""
        require("pyarrow", ARROW)
        return read_arrow(self._object.file(), self.where, columns=columns)
