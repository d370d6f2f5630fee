"""Stretches of input files, and the lines of one.

Owns what a span is and how a line of it is named; leaves where files are cut to `_parts`, what lines mean to others.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO, cast

from packhorse.formats import require
from packhorse.formats.files import open_binary
from packhorse.formats.object_store import without_secrets
from packhorse.tokenize._inputs import Kind, compression_of

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Span:
    """Some of one file: [begin, end) in bytes, of Parquet in row groups. What is compressed is one span."""

    path: str
    """Or the URL of an object."""
    kind: Kind
    """Of the input; "folder" for a file below one."""
    begin: int
    end: int

    @property
    def where(self) -> str:
        """The path, as messages show it."""
        return without_secrets(self.path)


@contextmanager
def open_plain(path: str) -> Iterator[BinaryIO]:
    """Opens a file or object, decompressed where its name says that it is compressed.

    Raises:
        ValueError: it is not what its name says, or cut off.
    """
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


def whole_of(span: Span) -> bytes:
    """Returns all bytes of a span's file."""
    with open_plain(span.path) as file:
        return file.read()


class Line:
    """Where a line stands. It is put into words when somebody asks, since the lines before its span must be counted."""

    __slots__ = ("_index", "_span")

    def __init__(self, span: Span, index: int) -> None:
        self._span = span
        self._index = index

    def __str__(self) -> str:
        return f"{self._span.where}, line {_lines_before(self._span.path, self._span.begin) + self._index + 1}"


def lines_of(span: Span) -> Iterator[tuple[Line, bytes]]:
    """Yields (where it stands, line) of a span that begins and ends with whole lines."""
    is_compressed = compression_of(span.path) is not None
    with open_plain(span.path) as file:
        if not is_compressed:
            file.seek(span.begin)
        left = span.end - span.begin
        for index, line in enumerate(file):
            if left <= 0 and not is_compressed:
                return
            left -= len(line)
            yield Line(span, index), line


@lru_cache(maxsize=16)
def _lines_before(path: str, end: int) -> int:
    count, left = 0, end
    with open_binary(path) as file:  # what is compressed is not cut, so nothing comes before its span
        while left and (data := file.read(min(left, _READ_BYTES))):
            count += data.count(b"\n")
            left -= len(data)
    return count
