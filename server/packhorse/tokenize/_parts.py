"""Ranges of input files, how they are opened, and the parts that processes read.

Owns where a file may be cut, in a way that depends on the files alone. Leaves the content of a range to `documents` and
`_rows`, and the work to `_work`.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, BinaryIO, Literal, cast

from packhorse.formats import require
from packhorse.formats.files import FileStamp, open_binary
from packhorse.formats.object_store import for_each, is_url, object_file, without_secrets
from packhorse.tokenize._inputs import Kind, compression_of

Cut = Literal["line", "paragraph"]
"""Where a text may be cut: before any line, or after a blank one."""

_READ_BYTES = 1 << 20
_LEAST_PART_BYTES = 1 << 22
_MOST_PART_BYTES = 1 << 26
_PARTS = 256


@dataclass(frozen=True, slots=True)
class FileRange:
    """Some of one file: [begin, end) in bytes, of Parquet in row groups. A compressed file is one range."""

    path: str
    """Or the URL of an object."""
    kind: Kind
    begin: int
    end: int

    @property
    def where(self) -> str:
        """The path, as messages show it."""
        return without_secrets(self.path)


@contextmanager
def open_plain(path: str) -> Iterator[BinaryIO]:
    """Opens a file or object, and decompresses it as its name says; a ValueError where it is something else."""
    compression = compression_of(path)
    with open_binary(path) as file:
        if compression is None:
            yield file
            return
        arrow = require("pyarrow")
        stream = arrow.CompressedInputStream(arrow.PythonFile(file, mode="r"), compression)
        try:
            yield cast(BinaryIO, io.BufferedReader(stream, _READ_BYTES))
        except OSError as error:
            if error.errno is not None or type(error) is not OSError:  # the disk's or the store's
                raise
            raise ValueError(
                f"{without_secrets(path)} cannot be read as {compression}: {error}; copy or make the file again"
            ) from None


def whole_of(source: FileRange) -> bytes:
    """Returns all bytes of the file."""
    with open_plain(source.path) as file:
        return file.read()


class Line:
    """Where a line is. Its number is found when it is printed, since the lines before its range must be counted."""

    __slots__ = ("_index", "_range")

    def __init__(self, source: FileRange, index: int) -> None:
        self._range = source
        self._index = index

    def __str__(self) -> str:
        return f"{self._range.where}, line {_lines_before(self._range.path, self._range.begin) + self._index + 1}"


def lines_of(source: FileRange) -> Iterator[tuple[Line, bytes]]:
    """Yields (where it is, line) of a range of whole lines."""
    is_compressed = compression_of(source.path) is not None
    with open_plain(source.path) as file:
        if not is_compressed:
            file.seek(source.begin)
        left = source.end - source.begin
        for index, line in enumerate(file):
            if left <= 0 and not is_compressed:
                return
            left -= len(line)
            yield Line(source, index), line


@lru_cache(maxsize=16)
def _lines_before(path: str, end: int) -> int:
    count, left = 0, end
    with open_binary(path) as file:  # a compressed file is not cut, so nothing comes before its range
        while left and (data := file.read(min(left, _READ_BYTES))):
            count += data.count(b"\n")
            left -= len(data)
    return count


def open_parquet(path: str) -> Any:
    """Opens a Parquet file, as a context manager."""
    arrow, parquet = require("pyarrow"), require("pyarrow.parquet")
    try:
        return parquet.ParquetFile(object_file(path) if is_url(path) else path)
    except arrow.ArrowInvalid as error:
        raise ValueError(f"{without_secrets(path)} is not a Parquet file: {error}") from None


def parquet_group_sizes(path: str) -> list[int]:
    """Returns the size of each row group of a file in bytes, as they are once decompressed."""
    with open_parquet(path) as file:
        metadata = file.metadata
        return [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]


@dataclass(frozen=True, slots=True)
class Weighed:
    """A range, and how many bytes reading it takes."""

    range: FileRange
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """What one process reads in one go."""

    ranges: tuple[FileRange, ...]
    """In the order of the inputs."""
    size_bytes: int


def whole_files(files: Sequence[tuple[str, Kind]]) -> list[Weighed]:
    """Returns every file with its size, in order; each is (path or URL, kind)."""
    return for_each(files, _weighed) if any(is_url(path) for path, _ in files) else list(map(_weighed, files))


def _weighed(file: tuple[str, Kind]) -> Weighed:
    path, kind = file
    size_bytes = FileStamp.of(path).size_bytes
    end = len(parquet_group_sizes(path)) if kind == "Parquet" else size_bytes
    return Weighed(FileRange(path, kind, 0, end), size_bytes)


def cut_into_parts(files: Sequence[Weighed], cut_of: Callable[[Kind], Cut | None]) -> list[Part]:
    """Cuts files into parts of about one size; `cut_of` a kind is None where a file of it is read whole."""
    part_bytes = min(max(sum(file.size_bytes for file in files) // _PARTS, _LEAST_PART_BYTES), _MOST_PART_BYTES)
    parts: list[Part] = []
    ranges: list[FileRange] = []
    size_bytes = 0
    for cut in (cut for file in files for cut in _cuts(file, cut_of(file.range.kind), part_bytes)):
        if ranges and ranges[-1].path == cut.range.path:
            ranges[-1] = replace(ranges[-1], end=cut.range.end)
        else:
            ranges.append(cut.range)
        size_bytes += cut.size_bytes
        if size_bytes >= part_bytes:
            parts.append(Part(tuple(ranges), size_bytes))
            ranges, size_bytes = [], 0
    return [*parts, Part(tuple(ranges), size_bytes)] if ranges else parts


def _cuts(file: Weighed, cut: Cut | None, part_bytes: int) -> Iterator[Weighed]:
    source = file.range
    if source.kind == "Parquet" and source.end > 1:
        for group, size_bytes in enumerate(parquet_group_sizes(source.path)):
            yield Weighed(replace(source, begin=group, end=group + 1), size_bytes)
        return
    is_plain = source.kind in ("JSON lines", "text") and compression_of(source.path) is None
    if cut and is_plain and file.size_bytes > part_bytes:
        with open_binary(source.path) as opened:
            begin = 0
            while begin < source.end:
                end = _next_cut(opened, min(begin + part_bytes, source.end), cut)
                yield Weighed(replace(source, begin=begin, end=end), end - begin)
                begin = end
    else:  # a folder's file is text as a whole, or left out as a whole; others cannot be cut
        yield file


def _next_cut(file: BinaryIO, offset: int, cut: Cut) -> int:
    """Returns the first cut of a file at an offset or after it."""
    file.seek(offset - 1)
    file.readline()
    while cut == "paragraph" and file.readline().strip():
        pass
    return file.tell()
