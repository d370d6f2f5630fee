"""Lengths in a program's memory as input: arrays, `datasets.Dataset`, and objects with Arrow's C stream.

Owns turning such an object into rows. A stream is read once, and its lengths and ids are copied: 16 bytes for each
sequence; groups, resources and keys take more. Files of arrays are in `npy`.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.formats import require
from packhorse.formats.arrow import values_of
from packhorse.parameters import parameter
from packhorse.prepare.input._arrow_rows import arrow_lengths, arrow_rows
from packhorse.prepare.input._base import BATCH_ROWS, Opened, RowRange, cut_rows
from packhorse.prepare.input._columns import InputColumns
from packhorse.prepare.input._key_columns import KeyChunk, KeyColumn
from packhorse.prepare.input._rows import RawRows
from packhorse.prepare.input._tables import chosen_columns, is_tokens
from packhorse.prepare.input.npy import array_rows, check_array


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRows(RowRange):
    """Rows in memory. They are pickled with the range."""

    rows: RawRows
    """All rows of the range."""

    def _read(self) -> Iterator[RawRows]:
        for first, size in cut_rows(self.num_rows, BATCH_ROWS):
            yield self.rows.slice_of(first, size)


def open_held(lengths: Any, columns: InputColumns, *, where: str = "") -> Opened:
    """Turns an object in memory into ranges of rows.

    Args:
        lengths: the object, as `packhorse.prepare.prepare` takes it.
        columns: its columns, as the user named them.
        where: the object's name for messages; if empty, its type.

    Raises:
        TypeError: the object holds no lengths.
        ValueError: a column is missing, ambiguous, or of another type.
    """
    where = where or f"the {type(lengths).__name__}"
    row_chunks, chosen, key_arrays = _held(lengths, columns, where)
    ranges: list[RowRange] = []
    first_row = 0
    for rows in row_chunks:
        if len(rows.lengths):
            ranges.append(
                HeldRows(
                    path=where,
                    stamp=None,
                    first_row=first_row,
                    first_index=first_row,
                    num_rows=len(rows.lengths),
                    columns=chosen,
                    rows=rows,
                )
            )
            first_row += len(rows.lengths)
    keys = None
    if chosen.key is not None:  # `key_arrays` is complete: all rows have been read
        first_rows = accumulate(map(len, key_arrays), initial=0)  # one more than arrays
        key_chunks = [KeyChunk(where, row, values) for row, values in zip(first_rows, key_arrays, strict=False)]
        keys = KeyColumn.of_chunks(chosen.key, lambda: iter(key_chunks))
    return Opened(kind=type(lengths).__name__, ranges=ranges, files=[], columns=chosen, keys=keys)


class _Held(NamedTuple):
    """The rows of an object in memory."""

    row_chunks: Iterator[RawRows]
    """All rows in order, in chunks; to be read once."""
    columns: InputColumns
    """The columns that are read."""
    key_arrays: list[Any]
    """Arrow arrays of the keys of the rows that have been read from `row_chunks`; empty if they have ids only."""


def _held(lengths: Any, columns: InputColumns, where: str) -> _Held:
    """Returns the rows of an object; arguments and errors are those of `open_held`."""
    if isinstance(lengths, list | tuple):
        lengths = np.asarray(lengths)
    if isinstance(lengths, np.ndarray):
        check_array(lengths, columns, where)
        return _Held(array_rows(lengths, columns), columns, [])
    package = sys.modules.get("datasets")
    if package is not None and isinstance(lengths, package.Dataset):
        return _of_dataset(lengths, columns, where)
    if package is not None and isinstance(lengths, package.DatasetDict):
        raise TypeError(f"a DatasetDict holds several datasets; pass one of them: {', '.join(map(repr, lengths))}")
    pa = require("pyarrow")
    if hasattr(lengths, "__arrow_c_stream__"):
        try:
            reader = pa.RecordBatchReader.from_stream(lengths)
        except pa.ArrowInvalid:  # a stream of plain arrays, such as a Series
            return _of_arrays(pa.chunked_array(lengths), columns, where)
        return _of_batches(reader, columns, where)
    if hasattr(lengths, "__arrow_c_array__"):
        return _of_arrays(pa.chunked_array([pa.array(lengths)]), columns, where)
    raise TypeError(
        f"lengths must be a NumPy array, a datasets.Dataset or an object with __arrow_c_stream__ (Polars, DuckDB, "
        f"pandas, pyarrow), got {type(lengths).__name__}; files are given as input"
    )


def _of_batches(reader: Any, columns: InputColumns, where: str) -> _Held:
    """Returns the rows of a reader of Arrow record batches; see `_held`."""
    chosen, is_list = chosen_columns(reader.schema, columns, where)
    key_arrays: list[Any] = []

    def row_chunks() -> Iterator[RawRows]:
        for batch in reader:
            if chosen.key is not None:
                key_arrays.append(batch.column(batch.schema.get_field_index(chosen.key)))
            yield _copied(arrow_rows(batch, chosen, is_list))

    return _Held(_joined(row_chunks()), chosen, key_arrays)


def _of_arrays(array: Any, columns: InputColumns, where: str) -> _Held:
    """Returns the rows of an Arrow array of lengths or lists, which has no columns; see `_held`."""
    if columns.names or columns.key:
        raise ValueError(
            f"{where} is one column of lengths: leave out "
            + parameter("length_column")
            + ", "
            + parameter("id_column")
            + " and "
            + parameter("group_column")
        )
    if not (require("pyarrow").types.is_integer(array.type) or is_tokens(array.type)):
        raise ValueError(f"{where} holds {array.type}, but integers (lengths) or lists of integers (tokens) are needed")
    row_chunks = (_copied(arrow_lengths(chunk, is_tokens(array.type))) for chunk in array.chunks)
    return _Held(row_chunks, columns, [])


def _of_dataset(dataset: Any, columns: InputColumns, where: str) -> _Held:
    """Returns the rows of a `datasets.Dataset`; see `_held`.

    Lengths of all rows are read first; then the rows that `select` or `shuffle` left are taken, in their order. This
    way no token is copied.
    """
    held = _of_batches(dataset.data.table.to_reader(), columns, where)
    indices = dataset._indices  # no public name tells which rows are left; None if all are, in their order
    if indices is None:
        return held
    all_rows = _concatenated(list(held.row_chunks))
    index_chunks = [values_of(chunk).astype(np.int64) for chunk in indices.column(0).chunks]
    selection = np.concatenate([np.empty(0, np.int64), *index_chunks])  # there may be no chunk
    key_arrays = held.key_arrays  # complete: all rows have been read
    if key_arrays:
        pa = require("pyarrow")
        key_arrays = pa.chunked_array(key_arrays).take(pa.array(selection)).chunks
    return _Held(iter([all_rows.each(lambda column: column[selection])]), held.columns, key_arrays)


def _copied(rows: RawRows) -> RawRows:
    """Copies the rows, so that the memory of their producer, which holds all columns, can be freed."""
    return rows.each(np.array)


def _joined(row_chunks: Iterator[RawRows]) -> Iterator[RawRows]:
    """Joins small chunks to chunks of BATCH_ROWS rows or more, so that many small record batches make few tasks."""
    small: list[RawRows] = []
    num_rows = 0
    for rows in row_chunks:
        small.append(rows)
        num_rows += len(rows.lengths)
        if num_rows >= BATCH_ROWS:
            yield _concatenated(small)
            small, num_rows = [], 0
    if small:
        yield _concatenated(small)


def _concatenated(row_chunks: list[RawRows]) -> RawRows:
    """Returns the rows of all chunks, in order."""

    def field_of_all(name: str) -> NDArray[Any] | None:
        """Joins one field of all chunks. Only a mask of nulls may be None in some chunks: they have no null."""
        columns = [getattr(rows, name) for rows in row_chunks]
        known = [column for column in columns if column is not None]
        if not known:
            return None
        of_row = known[0].shape[1:]  # () for a number a row, (k,) for the nulls of k resources
        no_nulls = [np.zeros((len(rows.lengths), *of_row), dtype=bool) for rows in row_chunks]
        return np.concatenate(
            [mask if column is None else column for column, mask in zip(columns, no_nulls, strict=True)]
        )

    lengths = np.concatenate([np.empty(0, dtype=np.int64), *(rows.lengths for rows in row_chunks)])
    return RawRows(lengths, **{name: field_of_all(name) for name in RawRows._fields if name != "lengths"})
