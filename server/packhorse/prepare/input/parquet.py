"""Parquet files as input: a column of lengths, or of lists of tokens; cut by row groups.

Owns the reader. Leaves the lengths of lists, which are read without their tokens, to `parquet_pages.levels`, and
Arrow's arrays to `_arrow_rows`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from packhorse.formats import require
from packhorse.formats.arrow import column_type
from packhorse.formats.file_stamp import FileStamp
from packhorse.formats.files import object_file
from packhorse.formats.object_store import TokenStoreError, for_each, is_url, without_secrets
from packhorse.prepare.input._arrow_rows import arrow_rows, with_other_columns
from packhorse.prepare.input._base import BATCH_ROWS, InputFile, Opened, RowRange, WholeFiles, cut_rows
from packhorse.prepare.input._columns import InputColumns
from packhorse.prepare.input._key_columns import keys_of_files
from packhorse.prepare.input._rows import RawRows
from packhorse.prepare.input._tables import column_exceeds_int64, columns_of_file, is_tokens
from packhorse.prepare.input.parquet_pages.levels import UnknownPageError, list_column, list_lengths

_LARGEST_TOKEN = 2**31 - 1
"""The largest id of a token: every vocabulary's ids fit into int32."""
_LARGER_THAN_TOKENS = ("int64", "uint64", "uint32")
"""Names of the Arrow types of integers that can hold values too large for token ids."""
_READ_BUFFER_BYTES = 1 << 20
"""Bytes that are read from a file on a disk at once."""
_BATCH_BYTES = 1 << 24
"""About the bytes of a batch of lists, if tokens must be decoded too."""
_DECODED_GROWTH = 4
"""About how many times more bytes tokens take once they are decoded."""
_LEAST_BATCH_ROWS = 64
"""Least rows of a batch of lists, however long these are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetRows(RowRange):
    """Consecutive row groups of a Parquet file."""

    row_groups: tuple[int, int]
    """Number of the first row group, and of the first one after the range."""

    def follows(self, before: RowRange) -> bool:
        """Returns whether the row groups follow those of `before`; see `RowRange`."""
        return (
            isinstance(before, ParquetRows)
            and before.path == self.path
            and before.first_row + before.num_rows == self.first_row
        )

    def through(self, last: Self) -> Self:
        """See `RowRange`."""
        joined = RowRange.through(self, last)
        return replace(joined, row_groups=(self.row_groups[0], last.row_groups[1]))

    def part_of_row(self, row: int) -> str:
        """See `RowRange`."""
        try:
            with open_parquet(self.path) as file:
                sizes = _row_group_sizes(file.metadata)
        except ValueError:
            return ""
        for number, end in enumerate(accumulate(sizes)):
            if row < end:
                return f" (row group {number})"
        return ""

    def _read(self) -> Iterator[RawRows]:
        """Yields the rows of the range's row groups; turns an error of pyarrow into a ValueError with file and row."""
        row = self.first_row
        file = open_parquet(self.path)
        try:
            for raw in self._read_levels(file) if self.is_list else self._decode(file, self.row_groups):
                yield raw
                row += len(raw.lengths)
        except (PermissionError, TokenStoreError):
            raise
        except (require("pyarrow").ArrowException, OSError) as error:
            raise ValueError(f"{self.where} cannot be read at row {row}{self.part_of_row(row)}: {error}") from None
        finally:
            file.close()

    def _read_levels(self, file: Any) -> Iterator[RawRows]:
        """Yields rows with the lengths of lists, read without their values if `parquet_pages` can do that."""
        length = self.columns.length
        assert length is not None  # the reader chose one
        leaf_number = None if is_url(self.path) else list_column(file, length)
        data = None if leaf_number is None else np.memmap(self.path, np.uint8, "r")
        for number in range(*self.row_groups):
            num_rows = file.metadata.row_group(number).num_rows
            if not num_rows:  # `through` joins ranges over empty row groups
                continue
            rows = None
            if leaf_number is not None and data is not None:
                rows = self._rows_by_levels(file, data, leaf_number, number)
            if rows is None:
                yield from self._decode(file, (number, number + 1))
                continue
            for first, size in cut_rows(num_rows, BATCH_ROWS):
                yield rows.slice_of(first, size)

    def _rows_by_levels(self, file: Any, data: NDArray[np.uint8], leaf_number: int, number: int) -> RawRows | None:
        """Returns the rows of a row group, with the lengths of lists from levels; None if pyarrow must decode them.

        Args:
            file: the open file.
            data: the file's bytes, memory-mapped.
            leaf_number: number of the leaf column that holds the lists' values.
            number: number of the row group.
        """
        row_group = file.metadata.row_group(number)
        chunk, leaf = row_group.column(leaf_number), file.schema.column(leaf_number)
        is_nullable = file.schema_arrow.field(self.columns.length).nullable
        try:
            lengths, null_lengths = list_lengths(data, chunk, leaf, row_group.num_rows, is_nullable)
        except UnknownPageError:
            return None
        rows = RawRows(lengths=lengths, null_lengths=null_lengths)
        others = [name for name in self.columns.names if name != self.columns.length]
        if not others:
            return rows
        return with_other_columns(rows, file.read_row_group(number, columns=others, use_threads=False), self.columns)

    def _decode(self, file: Any, row_groups: tuple[int, int]) -> Iterator[RawRows]:
        """Yields the rows of row groups as pyarrow decodes them, with all values."""
        names = self.columns.names
        batch_rows = self._rows_of_batch(file) if self.is_list else BATCH_ROWS
        numbers = list(range(*row_groups))
        for batch in file.iter_batches(batch_rows, row_groups=numbers, columns=names, use_threads=False):
            yield arrow_rows(batch, self.columns, self.is_list)

    def _rows_of_batch(self, file: Any) -> int:
        """Returns how many rows have decoded tokens of about `_BATCH_BYTES`, judged by the range's first row group."""
        first, _ = self.row_groups
        row_group = file.metadata.row_group(first)
        chunks = [row_group.column(number) for number in range(row_group.num_columns)]
        tokens = [chunk for chunk in chunks if chunk.path_in_schema.startswith(f"{self.columns.length}.")]
        size_bytes = max(1, sum(chunk.total_uncompressed_size for chunk in tokens))
        rows = _BATCH_BYTES * row_group.num_rows // (_DECODED_GROWTH * size_bytes)
        return max(_LEAST_BATCH_ROWS, min(BATCH_ROWS, rows))


class ParquetReader(WholeFiles):
    """Reads Parquet files: a column of lengths or of tokens."""

    kind = "Parquet"
    takes = "a .parquet file, a folder of them at any depth, or a quoted glob pattern; a column of lengths or of tokens"
    suffixes = (".parquet", ".pq")
    magic = b"PAR1"

    def open(self, paths: Sequence[str], columns: InputColumns) -> Opened:
        """Returns a range for each row group that has rows; see `Reader`."""
        ranges: list[RowRange] = []
        files: list[InputFile] = []
        first_index = 0
        chosen = columns  # the first file completes the choice, and later ones must have these columns
        footers = for_each(paths, _footer) if is_url(paths[0]) else map(_footer, paths)
        for path, footer in zip(paths, footers, strict=True):
            chosen, is_list = columns_of_file(
                footer.schema,
                chosen,
                without_secrets(path),
                is_first=not files,
                exceeds_int64=partial(column_exceeds_int64, paths, column_of),
            )
            assert chosen.length is not None  # else `columns_of_file` raised
            if is_list and chosen.length in footer.large_tokens:
                _refuse_large_tokens(path, chosen.length, footer.large_tokens[chosen.length])
            first_rows = accumulate(footer.row_group_sizes, initial=0)
            ranges.extend(
                ParquetRows(
                    path=path,
                    stamp=footer.stamp,
                    row_groups=(number, number + 1),
                    first_row=first_row,
                    first_index=first_index + first_row,
                    num_rows=size,
                    columns=chosen,
                    is_list=is_list,
                )
                for number, (first_row, size) in enumerate(zip(first_rows, footer.row_group_sizes, strict=False))
                if size
            )
            files.append(InputFile(path=path, stamp=footer.stamp, num_rows=sum(footer.row_group_sizes)))
            first_index += files[-1].num_rows
        keys = keys_of_files(chosen, paths, column_of)
        return Opened(kind=self.kind, ranges=ranges, files=files, columns=chosen, keys=keys)


class _Footer(NamedTuple):
    """What a file's footer says."""

    stamp: FileStamp
    schema: Any
    row_group_sizes: list[int]
    """Rows of each row group."""
    large_tokens: dict[str, int]
    """Column of lists → first row group with a value above _LARGEST_TOKEN, by the file's statistics."""


def _footer(path: str) -> _Footer:
    stamp = FileStamp.of(path)  # before the file is read, so that a later change is noticed
    with open_parquet(path) as file:
        metadata, schema = file.metadata, file.schema_arrow
        return _Footer(stamp, schema, _row_group_sizes(metadata), _large_tokens(metadata, schema))


def _row_group_sizes(metadata: Any) -> list[int]:
    """Returns the number of rows in each row group."""
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


def _large_tokens(metadata: Any, schema: Any) -> dict[str, int]:
    """Returns `_Footer.large_tokens`."""
    doubtful = {  # columns of lists whose type can hold such values
        field.name for field in schema if is_tokens(field.type) and str(field.type.value_type) in _LARGER_THAN_TOKENS
    }
    found: dict[str, int] = {}
    leaves = [leaf for leaf in range(metadata.num_columns) if _column_with_leaf(metadata, leaf) in doubtful]
    for number in range(metadata.num_row_groups):
        for leaf in leaves:
            statistics = metadata.row_group(number).column(leaf).statistics
            if statistics is not None and statistics.has_min_max and statistics.max > _LARGEST_TOKEN:
                found.setdefault(_column_with_leaf(metadata, leaf), number)
    return found


def _column_with_leaf(metadata: Any, leaf: int) -> str:
    """Returns the name of the column that the leaf column with this number belongs to."""
    path: str = metadata.schema.column(leaf).path
    return path.partition(".")[0]


def _refuse_large_tokens(path: str, column: str, number: int) -> None:
    """Raises a ValueError that names a row group's first row with a token above _LARGEST_TOKEN, if there is one.

    `number` is that of the row group.
    """
    with open_parquet(path) as file:
        first_row = sum(_row_group_sizes(file.metadata)[:number])
        lists = file.read_row_group(number, columns=[column], use_threads=False).column(0)
    for row, tokens in enumerate(lists, first_row):
        largest = max((token for token in tokens.as_py() or () if token is not None), default=0)
        if largest > _LARGEST_TOKEN:
            raise ValueError(
                f"{without_secrets(path)}: row {row}, column {column!r} holds the token {largest}, but token ids are "
                "below 2^31; repair the row or leave it out"
            )


def column_of(path: str, name: str) -> Iterator[Any]:
    """Yields a column of a file in the order of rows, as Arrow arrays; raises a ValueError if the column is missing."""
    with open_parquet(path) as file:
        column_type(file.schema_arrow, name, without_secrets(path))
        for batch in file.iter_batches(columns=[name]):
            yield batch.column(0)


def open_parquet(path: str) -> Any:
    """Opens a Parquet file; raises a ValueError that names it if it cannot be read."""
    try:
        if is_url(path):  # column chunks are fetched whole, each in one request
            return require("pyarrow.parquet").ParquetFile(object_file(path), pre_buffer=True)
        # With a buffer: otherwise a column chunk is read as a whole, and may be all of a large file's column.
        return require("pyarrow.parquet").ParquetFile(path, buffer_size=_READ_BUFFER_BYTES, pre_buffer=False)
    except (PermissionError, TokenStoreError):
        raise
    except (require("pyarrow").ArrowException, OSError) as error:
        raise ValueError(f"{without_secrets(path)} cannot be read as a Parquet file: {error}") from None
