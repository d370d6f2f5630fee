"""A sample of rows of text: blocks of neighbouring rows, drawn from all over the inputs.

Owns choosing the blocks, and copying their rows. Every row has the same probability to be copied: a row is copied if it
begins inside a block, and blocks have a random place. Leaves finding files and cutting them between lines to `input`,
and the errors of figures of a sample to `packhorse.analysis`.
"""

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from pathlib import Path
from typing import NamedTuple

from packhorse.formats import require
from packhorse.formats.files import open_binary
from packhorse.parameters import parameter
from packhorse.tokenize.input.files import compression_of, find_inputs, listed
from packhorse.tokenize.input.parts import SizedRange, next_cut, whole_files
from packhorse.tokenize.input.ranges import FileRange, lines_of, open_parquet

_BLOCKS = 64
"""Blocks in a sample."""
_PROBED_FILES = 8
"""How many files are read to estimate the bytes of a line."""
_PROBED_LINES = 1000
"""How many lines of each of these files are read."""
_BATCH_ROWS = 1024
"""Rows of Parquet that are read at once."""


@dataclass(frozen=True, slots=True)
class RowSample:
    """A sample: copies of rows from all over the inputs."""

    files: list[str]
    """Paths of the copies, in the order of the inputs."""
    num_rows: int
    """Rows in the copies."""
    share: float
    """The sampled share of the rows, in (0, 1]; 1 if the inputs have no more rows than were asked for."""

    @property
    def about_rows(self) -> int:
        """Rows of the inputs, estimated from the sample."""
        return round(self.num_rows / self.share)


def sample_rows(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], num_rows: int, folder: Path, *, seed: int = 0
) -> RowSample:
    r"""Copies about `num_rows` rows of JSON lines or Parquet into a folder, and reads little else.

    The inputs, laid end to end, are cut into 64 stretches of equal length. A block is copied from each stretch, at an
    offset that is random and the same in all stretches.

    Args:
        inputs: files, folders, patterns or URLs, as for `tokenize`.
        num_rows: about how many rows to copy, at least 1.
        folder: an existing folder for the copies.
        seed: seed of the random offset.

    Raises:
        FileNotFoundError: an input does not exist.
        ValueError: a file is neither Parquet nor JSON lines that are not compressed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rows = Path(folder, "chats.jsonl")
        ...     _ = rows.write_text('{"text": "a"}\n{"text": "b"}\n')
        ...     sample = sample_rows(rows, 100, Path(folder))
        >>> sample.num_rows, sample.share
        (2, 1.0)
    """
    files = whole_files(find_inputs(listed(inputs)).files)
    for file in files:
        if file.range.kind not in ("JSON lines", "Parquet") or compression_of(file.range.path):
            raise ValueError(
                f"{file.range.where} cannot be sampled: rows are drawn from Parquet, or from JSON lines that are not "
                "compressed; leave out " + parameter("sample") + ", or convert the file"
            )
    nums_of_rows = _nums_of_rows(files)
    share = min(1.0, num_rows / max(1.0, sum(nums_of_rows)))
    copies: list[str] = []
    num_copied = 0
    for block in _blocks(files, nums_of_rows, share, random.Random(seed)):
        copy_rows = _copy_parquet if block.file.kind == "Parquet" else _copy_lines
        _, suffix = os.path.splitext(block.file.path)
        path = folder / f"{len(copies):05}{suffix}"
        if num_in_block := copy_rows(block, path):
            copies.append(str(path))
            num_copied += num_in_block
    return RowSample(copies, num_copied, share)


def _nums_of_rows(files: Sequence[SizedRange]) -> list[float]:
    """Returns the number of rows in each file.

    It is exact for Parquet, and for JSON lines estimated from the file's size and the first lines of the first files.
    """
    probed = [file for file in files if file.range.kind == "JSON lines"][:_PROBED_FILES]
    line_bytes: list[int] = []
    for file in probed:
        with open_binary(file.range.path) as opened:
            line_bytes += map(len, islice(opened, _PROBED_LINES))
    mean_bytes = max(1.0, sum(line_bytes) / max(1, len(line_bytes)))
    nums_of_rows: list[float] = []
    for file in files:
        if file.range.kind == "Parquet":
            with open_parquet(file.range.path) as table:
                nums_of_rows.append(table.metadata.num_rows)
        else:
            nums_of_rows.append(file.size_bytes / mean_bytes)
    return nums_of_rows


class _Block(NamedTuple):
    """Neighbouring rows of a file that are copied: those that begin in [begin, end)."""

    file: FileRange
    """The whole file."""
    begin: float
    """Share of the file before the block, in [0, 1]: of its rows for Parquet, of its bytes for JSON lines."""
    end: float
    """Share of the file up to the block's end, of the same kind."""


def _blocks(
    files: Sequence[SizedRange], nums_of_rows: Sequence[float], share: float, generator: random.Random
) -> Iterator[_Block]:
    """Yields blocks, in the order of the files.

    This is systematic sampling. All rows of the files are laid end to end and cut into _BLOCKS stretches. A block is
    `share` of a stretch long and begins at the same random place in each. A block that would pass the end continues at
    the beginning, so that every place is in a block with the same probability. A block over the border of two files is
    cut there.
    """
    if share == 1:
        yield from (_Block(file.range, begin=0.0, end=1.0) for file in files)
        return
    # Bounds are numbers of rows from the beginning of the first file: [300, 600] -> rows 300 to 599 are in file 1.
    file_ends = list(accumulate(nums_of_rows))
    total_rows = file_ends[-1]
    stretch_rows = total_rows / _BLOCKS
    offset, block_rows = generator.random() * stretch_rows, stretch_rows * share
    begins = [stretch_rows * number + offset for number in range(_BLOCKS)]
    bounds = [(begin, min(begin + block_rows, total_rows)) for begin in begins]
    rows_past_end = offset + block_rows - stretch_rows  # of the last block
    if rows_past_end > 0:
        bounds.insert(0, (0.0, rows_past_end))
    for begin, end in bounds:
        for file, file_rows, file_end in zip(files, nums_of_rows, file_ends, strict=True):
            file_begin = file_end - file_rows
            if file_rows and begin < file_end and end > file_begin:
                yield _Block(
                    file.range,
                    begin=max(0.0, (begin - file_begin) / file_rows),
                    end=min(1.0, (end - file_begin) / file_rows),
                )


def _copy_lines(block: _Block, path: Path) -> int:
    """Copies the lines of a block, whose bounds are shares of the file's size; returns their number."""
    source = block.file
    with open_binary(source.path) as file:
        offsets = int(block.begin * source.end), int(block.end * source.end)
        # Both move on to the next beginning of a line, so a line belongs to the block in which it begins.
        begin, end = (next_cut(file, offset, "line") if offset else 0 for offset in offsets)
    num_lines = 0
    with path.open("wb") as copy:
        for _, line in lines_of(replace(source, begin=begin, end=end)):
            copy.write(line if line.endswith(b"\n") else line + b"\n")
            num_lines += 1
    return num_lines


def _copy_parquet(block: _Block, path: Path) -> int:
    """Copies the rows of a block, whose bounds are shares of the file's rows; returns their number."""
    with open_parquet(block.file.path) as file:
        num_rows = file.metadata.num_rows
        begin, end = round(block.begin * num_rows), round(block.end * num_rows)
        with require("pyarrow.parquet").ParquetWriter(path, file.schema_arrow) as copy:
            row = 0  # number of the next row to read
            for group in range(file.num_row_groups):
                group_end = row + file.metadata.row_group(group).num_rows
                if group_end <= begin or row >= end:
                    row = group_end
                    continue
                for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group]):
                    num_before = max(0, begin - row)
                    if num_before < batch.num_rows and row < end:
                        copy.write_batch(batch.slice(num_before, end - row - num_before))
                    row += batch.num_rows
    return end - begin
