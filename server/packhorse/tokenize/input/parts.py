"""Cutting files into parts of about equal size, which processes share.

Owns where a file may be cut. Reading a range of a file is in `ranges`, and finding files is in `files`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import BinaryIO, Literal

from packhorse.formats.file_stamp import FileStamp
from packhorse.formats.files import open_binary
from packhorse.formats.object_store import for_each, is_url
from packhorse.tokenize.input.files import InputFile, Kind, compression_of
from packhorse.tokenize.input.ranges import FileRange, parquet_group_sizes

Cut = Literal["line", "paragraph"]
"""Where a text may be cut: before any line, or after a blank one."""

_PARTS = 256
"""Number of parts that is aimed at, within the limits of a part's size."""
_LEAST_PART_BYTES, _MOST_PART_BYTES = 1 << 22, 1 << 26
"""Limits of a part's size: 4 MiB and 64 MiB."""


@dataclass(frozen=True, slots=True)
class SizedRange:
    """A range of a file, and its size in bytes."""

    range: FileRange
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """Ranges of one or more files, which one task reads."""

    ranges: tuple[FileRange, ...]
    """The ranges, in the order of the inputs."""
    size_bytes: int


def whole_files(files: Sequence[InputFile]) -> list[SizedRange]:
    """Returns each file as one range with its size."""
    if any(is_url(file.path) for file in files):  # many requests at once; each takes long
        return for_each(files, _sized)
    return list(map(_sized, files))


def _sized(file: InputFile) -> SizedRange:
    size_bytes = FileStamp.of(file.path).size_bytes
    end = len(parquet_group_sizes(file.path)) if file.kind == "Parquet" else size_bytes
    return SizedRange(FileRange(file.path, file.kind, 0, end), size_bytes)


def cut_into_parts(files: Sequence[SizedRange], cut_of: Callable[[Kind], Cut | None]) -> list[Part]:
    """Cuts files into parts of about equal size.

    `cut_of` returns where a file of a kind may be cut; None if it is read whole. Parquet files are cut between row
    groups.
    """
    part_bytes = min(max(sum(file.size_bytes for file in files) // _PARTS, _LEAST_PART_BYTES), _MOST_PART_BYTES)
    parts: list[Part] = []
    ranges: list[FileRange] = []
    size_bytes = 0
    sized_ranges = chain.from_iterable(_ranges_of(file, cut_of(file.range.kind), part_bytes) for file in files)
    for sized in sized_ranges:
        # A range that goes on where the one before it ends is joined to it. A file that is given twice begins again.
        if ranges and (ranges[-1].path, ranges[-1].end) == (sized.range.path, sized.range.begin):
            ranges[-1] = replace(ranges[-1], end=sized.range.end)
        else:
            ranges.append(sized.range)
        size_bytes += sized.size_bytes
        if size_bytes >= part_bytes:
            parts.append(Part(tuple(ranges), size_bytes))
            ranges, size_bytes = [], 0
    return [*parts, Part(tuple(ranges), size_bytes)] if ranges else parts


def _ranges_of(file: SizedRange, cut: Cut | None, part_bytes: int) -> Iterator[SizedRange]:
    """Yields consecutive ranges of a file, each of about `part_bytes`; or the whole file."""
    source = file.range
    if source.kind == "Parquet" and source.end > 1:
        for group, size_bytes in enumerate(parquet_group_sizes(source.path)):
            yield SizedRange(replace(source, begin=group, end=group + 1), size_bytes)
        return
    is_plain = source.kind in ("JSON lines", "text") and compression_of(source.path) is None
    if cut and is_plain and file.size_bytes > part_bytes:
        with open_binary(source.path) as opened:
            begin = 0
            while begin < source.end:
                end = next_cut(opened, min(begin + part_bytes, source.end), cut)
                yield SizedRange(replace(source, begin=begin, end=end), end - begin)
                begin = end
    else:  # it is small, is to be read whole, or cannot be cut, such as a compressed one
        yield file


def next_cut(file: BinaryIO, offset: int, cut: Cut) -> int:
    """Returns an offset at which a file may be cut, at `offset` (in bytes, above 0) or after it.

    For "line" that is where the next line begins; for "paragraph", where the first blank line that begins at `offset`
    or later ends. If there is no such line, it is the file's end.
    """
    file.seek(offset - 1)  # if this byte ends a line, the next line begins at `offset` itself
    line = file.readline()
    if cut == "paragraph":
        line = file.readline()
        while line.strip():
            line = file.readline()
    return file.tell()
