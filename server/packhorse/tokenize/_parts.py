"""Inputs cut into parts of about one size, so that several processes read them and finished work can be kept.

Owns where a file may be cut; leaves the content of a part to `documents` and `_rows`, and the work to `_work`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, Literal

from packhorse.formats.files import FileStamp, open_binary
from packhorse.formats.object_store import for_each, is_url
from packhorse.tokenize._inputs import Kind, compression_of
from packhorse.tokenize._rows import parquet_group_sizes
from packhorse.tokenize._spans import Span

Cut = Literal["line", "paragraph"]
"""Where a text may be cut: before any line, or behind a blank one."""

_LEAST_PART_BYTES = 1 << 22
_MOST_PART_BYTES = 1 << 26
_PARTS = 256


@dataclass(frozen=True, slots=True)
class Weighed:
    """A span, and how many bytes reading it takes."""

    span: Span
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """What one process reads in one go."""

    spans: tuple[Span, ...]
    """In the order of the inputs."""
    size_bytes: int


def whole_files(files: Sequence[tuple[str, Kind]]) -> list[Weighed]:
    """Returns every file with its size, in order; each is (path or URL, kind)."""
    return for_each(files, _weighed) if any(is_url(path) for path, _ in files) else list(map(_weighed, files))


def _weighed(file: tuple[str, Kind]) -> Weighed:
    path, kind = file
    size_bytes = FileStamp.of(path).size_bytes
    end = len(parquet_group_sizes(path)) if kind == "Parquet" else size_bytes
    return Weighed(Span(path, kind, 0, end), size_bytes)


def cut_into_parts(files: Sequence[Weighed], cut_of: Callable[[Kind], Cut | None]) -> list[Part]:
    """Cuts files into parts, in a way that depends on the files alone.

    Args:
        files: as `whole_files` yields them.
        cut_of: where a kind of text may be cut; None where a file is read whole.
    """
    part_bytes = min(max(sum(file.size_bytes for file in files) // _PARTS, _LEAST_PART_BYTES), _MOST_PART_BYTES)
    parts: list[Part] = []
    spans: list[Span] = []
    size_bytes = 0
    for piece in (piece for file in files for piece in _pieces(file, cut_of(file.span.kind), part_bytes)):
        if spans and spans[-1].path == piece.span.path:
            spans[-1] = replace(spans[-1], end=piece.span.end)
        else:
            spans.append(piece.span)
        size_bytes += piece.size_bytes
        if size_bytes >= part_bytes:
            parts.append(Part(tuple(spans), size_bytes))
            spans, size_bytes = [], 0
    return [*parts, Part(tuple(spans), size_bytes)] if spans else parts


def _pieces(file: Weighed, cut: Cut | None, part_bytes: int) -> Iterator[Weighed]:
    span = file.span
    if span.kind == "Parquet" and span.end > 1:
        for group, size_bytes in enumerate(parquet_group_sizes(span.path)):
            yield Weighed(replace(span, begin=group, end=group + 1), size_bytes)
    elif span.kind in ("JSON lines", "text") and cut and file.size_bytes > part_bytes and not compression_of(span.path):
        with open_binary(span.path) as opened:
            begin = 0
            while begin < span.end:
                end = _next_cut(opened, min(begin + part_bytes, span.end), cut)
                yield Weighed(replace(span, begin=begin, end=end), end - begin)
                begin = end
    else:  # a folder's file is text as a whole, or left out as a whole; others have nowhere to be cut
        yield file


def _next_cut(file: BinaryIO, offset: int, cut: Cut) -> int:
    """Returns where a file may be cut first, at an offset or behind it."""
    file.seek(offset - 1)
    file.readline()
    while cut == "paragraph" and file.readline().strip():
        pass
    return file.tell()
