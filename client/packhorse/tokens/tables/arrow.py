"""Arrow files on a disk, memory-mapped, and Hugging Face datasets as a source.

Owns opening them; leaves the layout of lists to `_list_columns`, looking ids up to `row_lookup`, copying tokens to
`packhorse.tokens.mapped`, and files in a store to `remote_arrow`.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.arrow import OpenArrow, open_arrow, record_batches, values_of
from packhorse.formats.arrow.folders import arrow_files
from packhorse.formats.extras import ARROW, require
from packhorse.formats.file_stamp import FileStamp
from packhorse.tokens.base import TokenSourceError
from packhorse.tokens.mapped import MappedSource, Ranges
from packhorse.tokens.tables._list_columns import ListColumn
from packhorse.tokens.tables._token_columns import check_id_type, choose_column, token_dtype_of
from packhorse.tokens.tables.row_lookup import RowLookup
from packhorse.tokens.tables.table_source import TableSource, ids_of


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
        self._tables: _HfTable | _MappedFiles = (
            _HfTable(data) if is_hf_dataset(data) else _MappedFiles(_arrow_files(data))
        )
        schema = self._tables.schema()
        self._column = choose_column(schema, column, self._tables.where)
        self._id_column = id_column
        self._dtype = token_dtype_of(schema, self._column, self._tables.where)
        if id_column is not None:
            check_id_type(schema, id_column, self._tables.where)
        self._opened: _Opened | None = None
        self._lookup: RowLookup | None = None
        self._open()

    def __len__(self) -> int:
        opened = self._open()
        return len(opened.tokens) if opened.selection is None else len(opened.selection)

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
        buffers, starts, lengths = tokens.locate(rows if selection is None else selection[rows].astype(np.int64), ids)
        return Ranges(buffers, starts * self._dtype.itemsize, lengths)

    def _ids_in(self, column: str) -> NDArray[np.int64]:
        tokens, selection = self._open()
        ids = ids_of(self._tables.arrays(column), len(tokens), column, self.where)
        return ids if selection is None else ids[selection]

    def _open(self) -> "_Opened":
        """Returns the opened data, which is opened when it is first needed in a process."""
        if self._opened is None:
            arrays = self._tables.arrays(self._column)
            column = ListColumn(arrays, dtype=self._dtype, where=self._tables.where, column=self._column)
            self._opened = _Opened(column, self._tables.selection())
        return self._opened


class _Opened(NamedTuple):
    """Arrow data that is open in this process."""

    tokens: ListColumn
    """The column of tokens, with all rows."""
    selection: NDArray[np.integer] | None
    """The selected rows, in order: integers [N]; None for all rows."""


def is_hf_dataset(data: Any) -> bool:
    """Returns whether an object is a `datasets.Dataset`, without importing the package."""
    package = sys.modules.get("datasets")
    return package is not None and isinstance(data, package.Dataset)


class _HfTable:
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
        schema = _open_file(self._paths[0]).reader.schema
        for path in self._paths[1:]:
            if not _open_file(path).reader.schema.equals(schema):
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
        """Returns None: all rows count."""


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


def _open_file(path: Path) -> OpenArrow:
    """Maps a file, with a reader of all columns, because a reader of some columns would copy."""
    require("pyarrow", ARROW)
    return open_arrow(path)


def _is_inside(array: Any, whole: Any) -> bool:
    """Returns whether a list array's values lie in the mapped bytes; those of a compressed file do not."""
    values = array.buffers()[-1]
    return values is None or not values.size or 0 <= values.address - whole.address < whole.size
