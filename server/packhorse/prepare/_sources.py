"""Raw data as spans of rows: which files an input names, and how a span's lengths and ids are read.

Owns finding files, reading columns batch by batch and refusing bad values with file and row; leaves counting and
sorting to `_passes`.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.formats import MegatronIndex, megatron_paths
from packhorse.formats.files import FileStamp, find_files
from packhorse.jobs import require

_BATCH_ROWS = 1 << 17
_READ_BUFFER_BYTES = 1 << 20
_INDEX_SPAN_ROWS = 1 << 20
_INDEX_SUFFIX = ".idx"
_INT64_MAX = 2**63 - 1


class Batch(NamedTuple):
    """Some consecutive rows of one file."""

    lengths: NDArray[np.int64]
    """int64 [n], each at least 1."""
    ids: NDArray[np.int64]
    """int64 [n]."""
    first_row: int
    """Row of the file, 0-based, that the first one is."""


def changed(path: str) -> ValueError:
    """Returns the error for a file that is not what an earlier look at it found."""
    return ValueError(f"{path} changed while it was being prepared; prepare again when nothing writes to it")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSpan:
    """Consecutive row groups of a Parquet file."""

    path: str
    stamp: FileStamp
    row_groups: tuple[int, int]
    """First row group, and the exclusive end."""
    first_row: int
    """Row of the file, 0-based, that the span begins with."""
    first_index: int
    """The same, over all files in order."""
    num_rows: int
    length_column: str
    id_column: str | None
    """None: a sequence's id is its row over all files in order."""

    def batches(self) -> Iterator[Batch]:
        """Yields the span's rows in order.

        Raises:
            ValueError: a null, a length below 1, an id outside int64, or a file that changed since it was found; the
                message names file, row and column.
        """
        _check(self.stamp, self.path)
        row = self.first_row
        columns = [self.length_column] if self.id_column is None else [self.length_column, self.id_column]
        file = _open_parquet(self.path)
        try:
            for found in file.iter_batches(
                _BATCH_ROWS, row_groups=list(range(*self.row_groups)), columns=columns, use_threads=False
            ):
                lengths = self._values(found, self.length_column, row, 1)
                if self.id_column is None:
                    index = self.first_index + row - self.first_row
                    ids = np.arange(index, index + len(lengths), dtype=np.int64)
                else:
                    ids = self._values(found, self.id_column, row, None)
                if len(lengths):
                    yield Batch(lengths, ids, row)
                row += len(lengths)
        except (require("pyarrow").ArrowException, OSError) as error:
            raise ValueError(f"{self.path} cannot be read: {error}") from None
        finally:
            file.close()
        _check(self.stamp, self.path)
        if row != self.first_row + self.num_rows:
            raise changed(self.path)

    def _values(self, batch: Any, column: str, first_row: int, least: int | None) -> NDArray[np.int64]:
        array = batch.column(batch.schema.get_field_index(column))
        first_null = None
        if array.null_count:
            first_null = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
            array = array.slice(0, first_null)
        raw = array.to_numpy()
        if raw.dtype == np.uint64 and len(raw) and int(raw.max()) > _INT64_MAX:
            at = int(np.argmax(raw > _INT64_MAX))
            raise ValueError(
                f"{self.path}: row {first_row + at}, column {column!r} is {int(raw[at])}, which int64 cannot hold"
            )
        values = np.array(raw, dtype=np.int64)  # copied: kernels see one type, writable or not
        if least is not None:
            check_lengths(values, self.path, f"column {column!r}", first_row)
        if first_null is not None:
            raise ValueError(
                f"{self.path}: row {first_row + first_null}, column {column!r} is null; fill it or leave the row out"
            )
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSpan:
    """Consecutive entries of a Megatron index; a sequence's id is its entry."""

    path: str
    stamp: FileStamp
    index: MegatronIndex
    """Pickles by its path."""
    first_row: int
    num_rows: int

    def batches(self) -> Iterator[Batch]:
        """Yields the span's entries in order; a ValueError for a zero length, or a file that changed."""
        _check(self.stamp, self.path)
        lengths = self.index.lengths
        if len(lengths) < self.first_row + self.num_rows:
            raise changed(self.path)
        end = self.first_row + self.num_rows
        for begin in range(self.first_row, end, _BATCH_ROWS):
            values = np.array(lengths[begin : min(begin + _BATCH_ROWS, end)], dtype=np.int64)
            check_lengths(values, self.path, "length", begin)
            yield Batch(values, np.arange(begin, begin + len(values), dtype=np.int64), begin)
        _check(self.stamp, self.path)


Span = ParquetSpan | IndexSpan


def _check(stamp: FileStamp, path: str) -> None:
    if not stamp.holds(path):
        raise changed(path)


def check_lengths(lengths: NDArray[np.int64], path: str, what: str, first_row: int) -> None:
    """Raises a ValueError that names file and row when a length is below 1 token."""
    if len(lengths) and int(lengths.min()) < 1:
        at = int(np.argmax(lengths < 1))
        raise ValueError(
            f"{path}: row {first_row + at}, {what} is {int(lengths[at])}; a sequence has at least 1 token: leave "
            "empty ones out"
        )


def find_inputs(sources: Sequence[str]) -> list[str]:
    """Finds the files that inputs name, in the order that numbers their rows.

    Args:
        sources: each a Parquet file, a folder of them (at any depth), a glob pattern, or a Megatron `X.idx`.

    Returns:
        At least one path: those of the first input, sorted, then those of the next.

    Raises:
        FileNotFoundError: nothing is at one of them.
        ValueError: two inputs name the same file, or several inputs name a Megatron index.
    """
    if not sources:
        raise ValueError("--input names nothing")
    paths: list[str] = []
    named_by: dict[str, str] = {}
    for source in sources:
        found = [str(path) for path in find_files(source, ".parquet")]
        real_paths = [os.path.realpath(path) for path in found]
        for path, real_path in zip(found, real_paths, strict=True):
            if real_path in named_by:
                raise ValueError(
                    f"{path} is named twice, by --input {named_by[real_path]} and --input {source}; name each file once"
                )
        named_by.update(dict.fromkeys(real_paths, source))
        paths += found
    indices = [path for path in paths if path.endswith(_INDEX_SUFFIX)]
    if indices and len(paths) > 1:
        raise ValueError(
            f"{indices[0]} is a Megatron index, whose entries are the ids, so it can only be prepared alone, and "
            f"--input names {len(paths)} files; join the indices first, or prepare each into a dataset of its own"
        )
    return paths


def files_read(paths: Sequence[str]) -> list[Path]:
    """Returns every file that preparing these paths reads: a Megatron index's tokens are looked at as well."""
    return [file for path in paths for file in (megatron_paths(path) if path.endswith(_INDEX_SUFFIX) else [Path(path)])]


def find_spans(paths: Sequence[str], length_column: str | None, id_column: str | None) -> list[Span]:
    """Cuts files into spans in order; each is small enough to make tasks from.

    Args:
        paths: from `find_inputs`.
        length_column: the column of lengths in tokens; None for an `X.idx`.
        id_column: the column of ids; None takes the row over all files in order.

    Raises:
        ValueError: files of another kind, a column that is missing or holds no integers, or no rows at all.
    """
    if paths[0].endswith(_INDEX_SUFFIX):
        if length_column is not None or id_column is not None:
            raise ValueError(
                f"{paths[0]} is a Megatron index, which has no columns: leave out --length-column/--id-column"
            )
        return _index_spans(paths[0])
    if length_column is None:
        raise ValueError(f"{paths[0]} is read as Parquet: --length-column must name its column of lengths")
    require("pyarrow.parquet")
    spans: list[Span] = []
    index = 0
    for path in paths:
        found = _parquet_spans(path, length_column, id_column, index)
        spans.extend(found)
        index += sum(span.num_rows for span in found)
    if not spans:
        raise ValueError(f"--input holds no rows in {len(paths):,} files, so there is nothing to prepare")
    return spans


def _parquet_spans(path: str, length_column: str, id_column: str | None, first_index: int) -> list[ParquetSpan]:
    stamp = FileStamp.of(path)
    file = _open_parquet(path)
    try:
        for column in (length_column, id_column):
            if column is not None:
                _check_column(path, file.schema_arrow, column)
        metadata = file.metadata
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    finally:
        file.close()
    first_rows = accumulate(sizes, initial=0)
    return [
        ParquetSpan(
            path=path,
            stamp=stamp,
            row_groups=(group, group + 1),
            first_row=first_row,
            first_index=first_index + first_row,
            num_rows=size,
            length_column=length_column,
            id_column=id_column,
        )
        for group, (first_row, size) in enumerate(zip(first_rows, sizes, strict=False))
        if size
    ]


def _open_parquet(path: str) -> Any:
    try:
        # Buffered: a column chunk is otherwise read as a whole, and may be the whole column.
        return require("pyarrow.parquet").ParquetFile(path, buffer_size=_READ_BUFFER_BYTES, pre_buffer=False)
    except (require("pyarrow").ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as a Parquet file: {error}") from None


def _check_column(path: str, schema: Any, column: str) -> None:
    found = schema.get_all_field_indices(column)
    if not found:
        raise ValueError(f"{path} has no column {column!r}; its columns are: {', '.join(map(repr, schema.names))}")
    if len(found) > 1:
        raise ValueError(f"{path} has {len(found)} columns named {column!r}; give them names of their own")
    kind = schema.field(found[0]).type
    if not require("pyarrow").types.is_integer(kind):
        raise ValueError(f"{path}: column {column!r} holds {kind}, but integers are needed")


def _index_spans(source: str) -> list[Span]:
    stamp = FileStamp.of(source)
    tokens = megatron_paths(source)[0]
    index = MegatronIndex(source, bin_size_bytes=tokens.stat().st_size if tokens.exists() else None)
    if not len(index):
        raise ValueError(f"{source} holds no sequences, so there is nothing to prepare")
    return [
        IndexSpan(
            path=source,
            stamp=stamp,
            index=index,
            first_row=begin,
            num_rows=min(_INDEX_SPAN_ROWS, len(index) - begin),
        )
        for begin in range(0, len(index), _INDEX_SPAN_ROWS)
    ]
