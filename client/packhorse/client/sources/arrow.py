"""Arrow IPC files and Hugging Face datasets as sources: a list column of tokens, memory-mapped.

Owns opening files, what a dataset saved or held by Hugging Face `datasets` is made of, and pickling; leaves the layout
of lists to `_lists` and copying to `_spans`.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from packhorse.client.sources._lists import (
    ARROW,
    ListColumn,
    RowLookup,
    TableSource,
    check_id_type,
    choose_column,
    ids_of,
    token_dtype_of,
)
from packhorse.client.sources._spans import Spans, SpanSource
from packhorse.client.sources.base import TokenSourceError
from packhorse.formats import require
from packhorse.formats.arrow import arrow_files, open_arrow, record_batches
from packhorse.formats.columns import values_of
from packhorse.formats.files import FileStamp


class ArrowSource(TableSource, SpanSource):
    """Tokens of a list column of Arrow data, memory-mapped; a sequence's id is its row, or what an id column says.

    Rows are numbered over all files in order. Forks share the maps; a source of files pickles as their paths, one of a
    `datasets.Dataset` as that does.

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
                `datasets.Dataset`, in memory or on disk, selected and shuffled as it may be.
            column: holds the tokens: lists of integers. None for the only such column, or the only one of them called
                `input_ids` or `tokens`.
            id_column: holds the ids: distinct integers. None where a row's number is its sequence's id.

        Raises:
            FileNotFoundError: there is no such file.
            ImportError: pyarrow is not installed.
            ValueError: a file is no Arrow IPC file.
            TokenSourceError: a column is missing, of another type, or cannot be told; a file is compressed.
        """
        self._tables: _Tables = _Held(data) if is_held_dataset(data) else _Files(_arrow_files(data))
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
        return {**self.__dict__, "_opened": None, "_lookup": None}

    @property
    def where(self) -> str:
        """The files, or the dataset."""
        return self._tables.where

    def _has_column(self, name: str) -> bool:
        return name in self._tables.schema().names

    def _check_id_column(self, name: str) -> None:
        check_id_type(self._tables.schema(), name, self.where)

    def origin(self, sequence_id: int) -> str:
        """The row of the data."""
        (row,) = self._find(np.array([sequence_id])).tolist()
        return f"row {row} of {self.where}"

    def _spans(self, ids: NDArray[np.int64]) -> Spans:
        tokens, selection = self._open()
        rows = self._find(ids)
        buffers, firsts, lengths = tokens.spans(rows if selection is None else selection[rows].astype(np.int64), ids)
        return Spans(buffers, firsts * self._dtype.itemsize, lengths)

    def _find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._lookup is None:
            held = None
            if self._id_column is not None:
                tokens, selection = self._open()
                arrays = self._tables.arrays(self._id_column)
                held = ids_of(arrays, len(tokens), self._id_column, self._tables.where)
                held = held if selection is None else held[selection]
            self._lookup = RowLookup(self._tables.where, len(self), held)
        return self._lookup.rows(ids)

    def _open(self) -> tuple[ListColumn, NDArray[np.integer] | None]:
        """The column, and which of its rows are the data's, in order; None for all."""
        if self._opened is None:
            arrays = self._tables.arrays(self._column)
            column = ListColumn(arrays, dtype=self._dtype, where=self._tables.where, column=self._column)
            self._opened = column, self._tables.selection()
        return self._opened


def is_held_dataset(data: Any) -> bool:
    """Whether it is a `datasets.Dataset`; does not import the package."""
    package = sys.modules.get("datasets")
    return package is not None and isinstance(data, package.Dataset)


class _Tables(Protocol):
    """Some Arrow data of one schema."""

    where: str
    """What it is, for messages."""

    def schema(self) -> Any: ...

    def arrays(self, column: str) -> Iterator[Any]:
        """Yields the chunks of a column in order."""

    def selection(self) -> NDArray[np.integer] | None:
        """Which rows count, in order: integers [N]; None for all."""


class _Held:
    """A `datasets.Dataset`."""

    def __init__(self, dataset: Any) -> None:
        self.where = f"the dataset {dataset.info.dataset_name or ''}".rstrip()
        self._dataset = dataset

    def schema(self) -> Any:
        return self._dataset.data.schema

    def arrays(self, column: str) -> Iterator[Any]:
        yield from self._dataset.data.column(column).chunks

    def selection(self) -> NDArray[np.integer] | None:
        # What select() and shuffle() leave behind; the package offers no other way to it than to copy all tokens.
        indices = self._dataset._indices
        if indices is None:
            return None
        chunks = [values_of(chunk) for chunk in indices.column(0).chunks]
        return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, np.uint64), *chunks])


class _Files:
    """Arrow IPC files; pickles as paths and refuses others at the same paths."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.where = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
        self._paths = tuple(paths)
        self._stamps = tuple(FileStamp.of(path) for path in paths)

    def schema(self) -> Any:
        schema = _open_file(self._paths[0])[1].schema
        for path in self._paths[1:]:
            other = _open_file(path)[1].schema
            if not other.equals(schema):
                raise TokenSourceError(f"{path} has other columns than {self._paths[0]}; open each with its own source")
        return schema

    def arrays(self, column: str) -> Iterator[Any]:
        for path, stamp in zip(self._paths, self._stamps, strict=True):
            stamp.check(path)
            whole, reader = _open_file(path)
            for batch in record_batches(reader, path):
                array = batch.column(column)
                if not _is_inside(array, whole):
                    raise TokenSourceError(
                        f"{path} is compressed, so it cannot be memory-mapped; write it without compression, or as "
                        "Parquet, which is read piece by piece"
                    )
                yield array

    def selection(self) -> None:
        return None


def _arrow_files(data: Any) -> list[Path]:
    """Finds the files that are meant, in order."""
    if isinstance(data, str | os.PathLike):
        try:
            return arrow_files(data)
        except ValueError as error:
            raise TokenSourceError(str(error)) from None
    paths = [Path(path) for path in data]
    if not paths:
        raise TokenSourceError("no Arrow file is given")
    return paths


def _open_file(path: Path) -> tuple[Any, Any]:
    """Maps a file: its bytes, and a reader of all columns, because the file format copies what is read of some."""
    require("pyarrow", ARROW)
    return open_arrow(path)


def _is_inside(array: Any, whole: Any) -> bool:
    """Whether a list array's values are in the map."""
    values = array.buffers()[-1]
    return values is None or not values.size or 0 <= values.address - whole.address < whole.size
