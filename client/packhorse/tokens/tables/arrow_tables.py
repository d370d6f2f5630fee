"""`ArrowTable`: the Arrow data of an `ArrowSource`, in mapped files or in a Hugging Face dataset.

Owns opening them, and refusing files that were replaced or are compressed. Leaves which files a path names to
`formats.arrow.folders`.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.arrow import OpenArrow, open_arrow, record_batches, values_of
from packhorse.formats.arrow.folders import arrow_files
from packhorse.formats.extras import ARROW, require
from packhorse.formats.file_stamp import FileStamp
from packhorse.tokens.base import TokenSourceError


def is_hf_dataset(data: Any) -> bool:
    """Returns whether an object is a `datasets.Dataset`, without importing the package."""
    package = sys.modules.get("datasets")
    return package is not None and isinstance(data, package.Dataset)


class ArrowTable(Protocol):
    """Arrow data with one schema."""

    @property
    def where(self) -> str:
        """The data, for messages."""
        ...

    @property
    def paths(self) -> Sequence[str]:
        """Paths of the files that are mapped."""
        ...

    def schema(self) -> Any:
        """Returns the Arrow schema; a TokenSourceError if files have different ones."""
        ...

    def arrays(self, column: str) -> Iterator[Any]:
        """Yields the Arrow arrays of a column in order; a TokenSourceError if a file is compressed."""
        ...

    def selection(self) -> NDArray[np.integer] | None:
        """Returns the rows that count, in order: integers [N]; None for all."""
        ...


def arrow_table(data: Any) -> ArrowTable:
    """Opens Arrow data; arguments and errors are those of `ArrowSource`."""
    return _HfTable(data) if is_hf_dataset(data) else _MappedFiles(_arrow_files(data))


class _HfTable:
    """The Arrow data of a `datasets.Dataset`."""

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
        if len(chunks) == 1:
            return chunks[0]
        return np.concatenate([np.empty(0, np.uint64), *chunks])  # the empty array is for a selection without chunks


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
