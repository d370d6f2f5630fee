"""Parquet: a column of lengths, or of lists of tokens; cut by row groups."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Self

from packhorse.formats import require
from packhorse.formats.files import FileStamp
from packhorse.prepare.readers._base import (
    BATCH_ROWS,
    Columns,
    InputFile,
    Opened,
    RawRows,
    Span,
    WholeFiles,
    arrow_rows,
)
from packhorse.prepare.readers._tables import chosen_columns

_READ_BUFFER_BYTES = 1 << 20
_BATCH_BYTES = 1 << 24
"""What a batch of lists takes in memory, about: their tokens are decoded with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSpan(Span):
    """Consecutive row groups of a Parquet file."""

    row_groups: tuple[int, int]
    """First row group, and the exclusive end."""
    is_list: bool
    """Whether the length column holds lists."""

    def follows(self, before: Span) -> bool:
        """See `Span`."""
        return (
            isinstance(before, ParquetSpan)
            and before.path == self.path
            and before.first_row + before.num_rows == self.first_row
        )

    def through(self, last: Self) -> Self:
        """See `Span`."""
        joined = Span.through(self, last)
        return replace(joined, row_groups=(self.row_groups[0], last.row_groups[1]))

    def part(self, row: int) -> str:
        """See `Span`."""
        try:
            with open_parquet(self.path) as file:
                metadata = file.metadata
                sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        except ValueError:
            return ""
        for group, end in enumerate(accumulate(sizes)):
            if row < end:
                return f" (row group {group})"
        return ""

    def _read(self) -> Iterator[RawRows]:
        length, identity = self.columns.length, self.columns.id
        row = self.first_row
        file = open_parquet(self.path)
        try:
            names = list(dict.fromkeys(name for name in (length, identity) if name is not None))
            rows = self._batch_rows(file) if self.is_list else BATCH_ROWS
            groups = list(range(*self.row_groups))
            for found in file.iter_batches(rows, row_groups=groups, columns=names, use_threads=False):
                at = found.schema.get_field_index
                ids = None if identity is None else found.column(at(identity))
                yield arrow_rows(found.column(at(length)), ids, self.is_list)
                row += found.num_rows
        except (require("pyarrow").ArrowException, OSError) as error:
            raise ValueError(f"{self.path} cannot be read at row {row}{self.part(row)}: {error}") from None
        finally:
            file.close()

    def _batch_rows(self, file: Any) -> int:
        columns = file.metadata.row_group(self.row_groups[0])
        sizes = [columns.column(number) for number in range(columns.num_columns)]
        size_bytes = sum(
            c.total_uncompressed_size for c in sizes if c.path_in_schema.split(".")[0] == self.columns.length
        )
        return max(64, min(BATCH_ROWS, _BATCH_BYTES * columns.num_rows // max(1, 4 * size_bytes)))


class ParquetReader(WholeFiles):
    """See the top of the file."""

    kind = "Parquet"
    takes = "a .parquet file, a folder of them at any depth, or a quoted glob pattern; a column of lengths or of tokens"
    suffixes = (".parquet", ".pq")
    magic = b"PAR1"

    def open(self, paths: Sequence[str], columns: Columns, *, skips_bad_rows: bool) -> Opened:
        """See `Reader`."""
        spans: list[Span] = []
        files: list[InputFile] = []
        first_index = 0
        chosen = columns
        for path in paths:
            stamp = FileStamp.of(path)
            with open_parquet(path) as file:
                chosen, is_list = chosen_columns(file.schema_arrow, chosen, path)
                metadata = file.metadata
                sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
            first_rows = accumulate(sizes, initial=0)
            spans.extend(
                ParquetSpan(
                    path=path,
                    stamp=stamp,
                    row_groups=(group, group + 1),
                    first_row=first_row,
                    first_index=first_index + first_row,
                    num_rows=size,
                    columns=chosen,
                    is_list=is_list,
                    skips_bad_rows=skips_bad_rows,
                )
                for group, (first_row, size) in enumerate(zip(first_rows, sizes, strict=False))
                if size
            )
            files.append(InputFile(path=path, stamp=stamp, num_rows=sum(sizes)))
            first_index += files[-1].num_rows
        return Opened(kind=self.kind, spans=spans, files=files, columns=chosen)


def open_parquet(path: str) -> Any:
    """Opens a Parquet file, or refuses it by name with a ValueError."""
    try:
        # Buffered: a column chunk is otherwise read as a whole, and may be the whole column.
        return require("pyarrow.parquet").ParquetFile(path, buffer_size=_READ_BUFFER_BYTES, pre_buffer=False)
    except (require("pyarrow").ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as a Parquet file: {error}") from None
