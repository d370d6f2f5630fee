"""Arrow IPC files and folders of Hugging Face's `save_to_disk` as input: a column of lengths, or of lists of tokens.

Owns the reader. Leaves finding and opening files to `packhorse.formats.arrow`, Arrow's arrays to `_arrow_rows`, and
Arrow objects in memory to `held`.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from packhorse.formats import require
from packhorse.formats.arrow import column_type, open_arrow, read_arrow, record_batches
from packhorse.formats.arrow.folders import SAVED_STATE, SUFFIXES, arrow_files, arrow_objects, saved_splits
from packhorse.formats.file_stamp import FileStamp
from packhorse.formats.files import is_file, open_binary
from packhorse.formats.object_store import is_url, without_secrets
from packhorse.prepare.input._arrow_rows import arrow_rows
from packhorse.prepare.input._base import RANGE_ROWS, InputFile, Opened, RowRange, WholeFiles
from packhorse.prepare.input._columns import InputColumns
from packhorse.prepare.input._key_columns import keys_of_files
from packhorse.prepare.input._rows import RawRows
from packhorse.prepare.input._tables import column_exceeds_int64, columns_of_file


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowRows(RowRange):
    """Consecutive record batches of an Arrow file."""

    first_batch: int
    """Number of the first record batch."""
    end_batch: int
    """Number of the first record batch after the range."""

    def _read(self) -> Iterator[RawRows]:
        reader = _open_columns(self.path, self.columns.names)
        for batch in record_batches(reader, self.path, self.first_batch, self.end_batch):
            yield arrow_rows(batch, self.columns, self.is_list)


class ArrowReader(WholeFiles):
    """Reads Arrow files and folders: a column of lengths or of tokens."""

    kind = "Arrow"
    takes = "an .arrow or .feather file, a folder of *.arrow, a pattern, or a folder that save_to_disk wrote"
    suffixes = SUFFIXES
    magic = b"ARROW1"

    def recognises(self, path: str) -> bool:
        """Returns whether a path is an Arrow file, or a folder that `save_to_disk` wrote; see `Reader`."""
        shown = without_secrets(path)
        if shown.endswith(SUFFIXES) or shown != path:  # a signed URL is of one object, so it cannot name a folder
            return super().recognises(path)
        return is_file(os.path.join(path, SAVED_STATE)) or bool(_splits(path)) or super().recognises(path)

    def files(self, source: str) -> list[str]:
        """Returns the Arrow files of a source; refuses a folder of several datasets; see `Reader`."""
        if splits := _splits(source):
            raise ValueError(f"{source} holds several datasets; give the folder of one as input: {', '.join(splits)}")
        return arrow_objects(source) if is_url(source) else [str(path) for path in arrow_files(source)]

    def files_beside(self, paths: Sequence[str]) -> list[str]:
        """Returns the `state.json` of each saved dataset; see `Reader`."""
        states = {os.path.join(os.path.dirname(path), SAVED_STATE) for path in paths}
        return sorted(state for state in states if is_file(state))

    def open(self, paths: Sequence[str], columns: InputColumns) -> Opened:
        """See `Reader`."""
        ranges: list[RowRange] = []
        files: list[InputFile] = []
        first_index = 0
        chosen = columns
        for path in paths:
            stamp = FileStamp.of(path)
            schema = _open(path).schema
            chosen, is_list = columns_of_file(
                schema,
                chosen,
                without_secrets(path),
                is_first=not files,
                exceeds_int64=partial(column_exceeds_int64, paths, column_of),
            )
            num_rows = 0
            for batches in _cut(_open_columns(path, chosen.names), path):
                ranges.append(
                    ArrowRows(
                        path=path,
                        stamp=stamp,
                        first_batch=batches.first,
                        end_batch=batches.end,
                        first_row=num_rows,
                        first_index=first_index + num_rows,
                        num_rows=batches.num_rows,
                        columns=chosen,
                        is_list=is_list,
                    )
                )
                num_rows += batches.num_rows
            files.append(InputFile(path=path, stamp=stamp, num_rows=num_rows))
            first_index += num_rows
        keys = keys_of_files(chosen, paths, column_of)
        return Opened(kind=self.kind, ranges=ranges, files=files, columns=chosen, keys=keys)


def column_of(path: str, name: str) -> Iterator[Any]:
    """Yields a column of a file in the order of rows, as Arrow arrays; raises a ValueError if the column is missing."""
    column_type(_open(path).schema, name, without_secrets(path))  # refuses a missing column
    for batch in record_batches(_open_columns(path, [name]), path):
        yield batch.column(0)


def _splits(folder: str) -> list[str]:
    """Returns the folders of datasets inside a saved `DatasetDict`; none for anything else."""
    return [] if is_url(folder) else saved_splits(Path(folder))


def _open_columns(path: str, names: Sequence[str]) -> Any:
    """Returns a reader of a file's record batches that decodes only the columns of these names."""
    all_names = _open(path).schema.names
    return _open(path, [all_names.index(name) for name in names])


def _open(path: str, columns: Sequence[int] | None = None) -> Any:
    """Returns a reader of a file's record batches, with the columns at these indices of its schema, or all."""
    require("pyarrow.ipc")
    if is_url(path):
        return read_arrow(open_binary(path), without_secrets(path), columns=columns)
    return open_arrow(path, columns=columns).reader


class _Batches(NamedTuple):
    """Consecutive record batches of a file, whose rows become one range."""

    first: int
    """Number of the first record batch."""
    end: int
    """Number of the first record batch after them."""
    num_rows: int
    """Rows in all of these batches."""


def _cut(reader: Any, path: str) -> Iterator[_Batches]:
    """Yields all record batches of a file that have rows, cut as soon as there are RANGE_ROWS rows or more."""
    first = num_rows = 0
    for end, batch in enumerate(record_batches(reader, path), start=1):
        num_rows += batch.num_rows
        if num_rows >= RANGE_ROWS:
            yield _Batches(first, end, num_rows)
            first, num_rows = end, 0
    if num_rows:
        yield _Batches(first, end, num_rows)
