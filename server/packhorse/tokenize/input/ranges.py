"""A range of one file: opening the file, reading lines, and saying where each line is.

Owns decompression, line numbers and Parquet's row groups. Cutting files into ranges is in `parts`, and rows are in
`rows`.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, cast

from packhorse.formats import require
from packhorse.formats.files import object_file, open_binary
from packhorse.formats.object_store import is_url, without_secrets
from packhorse.storage import check_plain
from packhorse.tokenize.input.files import Kind, compression_of

_READ_BYTES = 1 << 20
"""Bytes that are read or decompressed at once."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """A range [begin, end) of a file: in row groups for Parquet, else in bytes. A compressed file is one range."""

    path: str
    """Path of the file, or URL of the object."""
    kind: Kind
    begin: int
    end: int

    @property
    def where(self) -> str:
        """The path, as messages show it."""
        return without_secrets(self.path)


@contextmanager
def open_decompressed(path: str) -> Iterator[BinaryIO]:
    """Opens a file or object, and decompresses it if its suffix says so; a ValueError if that fails."""
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
            # pyarrow raises a plain OSError without a number for damaged data; others are of the disk or the store.
            if error.errno is not None or type(error) is not OSError:
                raise
            raise ValueError(
                f"{without_secrets(path)} cannot be read as {compression}: {error}; copy or make the file again"
            ) from None


def whole_of(source: FileRange) -> bytes:
    """Returns all bytes of the range's file, decompressed: a text that is one document is never cut into ranges."""
    with open_decompressed(source.path) as file:
        return file.read()


class LinePlace:
    """The place of a line, for messages.

    The number of the line is found only when it is printed, because the lines before its range must be counted for it.
    """

    __slots__ = ("_line_in_range", "_range")

    def __init__(self, source: FileRange, line_in_range: int) -> None:
        self._range = source
        self._line_in_range = line_in_range  # from 0 for the range's first line

    def __str__(self) -> str:
        num_before = _lines_before(self._range.path, self._range.begin) + self._line_in_range
        return f"{self._range.where}, line {num_before + 1}"


def lines_of(source: FileRange) -> Iterator[tuple[LinePlace, bytes]]:
    """Yields (where it is, line) for each line of a range, which begins and ends between lines."""
    is_compressed = compression_of(source.path) is not None  # then it is read to its end: `end` counts packed bytes
    with open_decompressed(source.path) as file:
        if not is_compressed:
            file.seek(source.begin)
        remaining_bytes = source.end - source.begin
        for number, line in enumerate(file):
            if remaining_bytes <= 0 and not is_compressed:
                return
            remaining_bytes -= len(line)
            yield LinePlace(source, number), line


@lru_cache(maxsize=16)
def _lines_before(path: str, end: int) -> int:
    """Returns the number of lines in the first `end` bytes of a file. The cache serves several places of a range."""
    count, remaining_bytes = 0, end
    with open_binary(path) as file:  # as it is stored: the range of a compressed file begins at 0, and nothing is read
        while remaining_bytes and (data := file.read(min(remaining_bytes, _READ_BYTES))):
            count += data.count(b"\n")
            remaining_bytes -= len(data)
    return count


def open_parquet(path: str) -> Any:
    """Opens a Parquet file, as a context manager."""
    arrow, parquet = require("pyarrow"), require("pyarrow.parquet")
    if not is_url(path):
        check_plain(path)  # pyarrow opens the path by itself, and would wait for the writer of a pipe
    try:
        return parquet.ParquetFile(object_file(path) if is_url(path) else path)
    except arrow.ArrowInvalid as error:
        raise ValueError(f"{without_secrets(path)} is not a Parquet file: {error}") from None


def parquet_group_sizes(path: str) -> list[int]:
    """Returns the size of each row group of a Parquet file, in bytes after decompression."""
    with open_parquet(path) as file:
        metadata = file.metadata
        return [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]
