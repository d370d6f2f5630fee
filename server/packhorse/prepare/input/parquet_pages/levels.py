"""Lengths of a Parquet list column from its repetition levels, without decoding a value.

Parquet stores a list column as values with two small numbers each: a repetition level, 0 if the value begins a list,
and a definition level, which distinguishes values from empty and null lists. Both kinds of levels are at the beginning
of a page, run-length encoded, so that a list of 500 tokens takes a few bytes. Only the beginning of a compressed page
is decompressed, unless it is of LZ4, which pyarrow decompresses as a whole.

Owns the layout of pages (`PageHeader` in parquet-format), and finding a page's levels. The loop over levels is in
`_level_kernel`, decompressing Snappy in `_snappy`, and Thrift's compact protocol in `_thrift`. If a page is of an
unknown form or damaged, `UnknownPageError` tells `input/parquet` to let pyarrow read the row group as a whole, or say
what is wrong.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.formats import require
from packhorse.prepare.input.parquet_pages._level_kernel import DAMAGED, NO_ROW, add_lists
from packhorse.prepare.input.parquet_pages._snappy import unpack_snappy
from packhorse.prepare.input.parquet_pages._thrift import CompactStruct, UnreadableStructError

_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
"""Types of pages, as `PageType` in parquet-format numbers them."""
_RLE = 3
"""The encoding of levels that is known here, as `Encoding` in parquet-format numbers it."""
_KIND, _UNPACKED_BYTES, _PACKED_BYTES, _HEADER_OF_DATA, _HEADER_OF_DATA_V2 = 1, 2, 3, 5, 8
"""Numbers of the fields of a `PageHeader` in parquet-format."""
_NUM_VALUES = 1
"""Number of this field in both kinds of headers of data."""
_DEFINITION_ENCODING, _REPETITION_ENCODING = 3, 4
"""Numbers of the fields of a `DataPageHeader`."""
_DEFINITION_BYTES, _REPETITION_BYTES = 5, 6
"""Numbers of the fields of a `DataPageHeaderV2`."""
_STREAMED = {"ZSTD": "zstd", "GZIP": "gzip", "BROTLI": "brotli"}
"""Codec of Parquet → pyarrow's name, for codecs that can decompress a beginning."""
_HEAD_BYTES = 1 << 12
"""Bytes of a page that are decompressed at first; most pages' levels are shorter."""
_SIZE_BYTES = 4
"""Bytes of the size that stands before each kind of levels in a page of version 1."""


class _Page(NamedTuple):
    """What a page's header says."""

    kind: int
    """Type of the page, one of the constants above."""
    num_values: int
    """Number of levels of each kind; 0 in a page of a dictionary."""
    begin: int
    """Where the page's body begins in the file."""
    size_bytes: int
    """Size of the body, compressed."""
    unpacked_bytes: int
    """Size of the body after decompression."""
    level_bytes: tuple[int, int] | None
    """Bytes of repetition and definition levels, in a page of version 2, whose levels are not compressed. None in a
    page of version 1: each kind of levels begins with its size there."""
    is_rle: bool
    """Whether levels are in the encoding that is known here."""


class UnknownPageError(Exception):
    """A page is of a form that is not known here, or damaged; pyarrow must read it, or say what is wrong."""


def list_column(file: Any, column: str) -> int | None:
    """Returns the number of the leaf column that holds a list column's values; None if pyarrow must read it.

    Args:
        file: a `pyarrow.parquet.ParquetFile`.
        column: a column of lists of integers.
    """
    field = file.schema_arrow.field(column)
    paths = [file.schema.column(number).path for number in range(len(file.schema))]
    leaves = [number for number, path in enumerate(paths) if path.startswith(column + ".")]
    if len(leaves) != 1 or not hasattr(field.type, "value_field"):
        return None
    if require("pyarrow").types.is_fixed_size_list(field.type):
        return None
    leaf = file.schema.column(leaves[0])
    # One definition level says that a list is not empty; one more each if lists, and if values, can be null.
    num_levels = 1 + field.nullable + field.type.value_field.nullable
    is_plain = leaf.max_repetition_level == 1 and leaf.max_definition_level == num_levels
    return leaves[0] if is_plain else None


def list_lengths(
    data: NDArray[np.uint8], chunk: Any, leaf: Any, num_rows: int, is_nullable: bool
) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    """Returns the lengths of a row group's lists, int64 [num_rows], and which are null, bool [num_rows] or None.

    Args:
        data: the file's bytes, memory-mapped.
        chunk: the metadata of the leaf column in the row group, a `ColumnChunkMetaData`.
        leaf: the leaf column in the `ParquetSchema`.
        num_rows: rows of the row group.
        is_nullable: whether a list can be null.

    Raises:
        UnknownPageError: a page is of a form that is not known here, or not what the footer says.
    """
    lengths = np.zeros(num_rows, dtype=np.int64)
    is_null = np.zeros(num_rows, dtype=np.bool_)
    width = int(leaf.max_definition_level).bit_length()
    row = NO_ROW
    for page in _pages(data, chunk):
        if page.kind == _DICTIONARY:
            continue
        body, spans = _levels(data, page, chunk.compression)
        row = add_lists(body, spans, width, int(is_nullable), page.num_values, lengths, is_null, row)
        if row == DAMAGED:
            raise UnknownPageError
    if row != num_rows - 1:
        raise UnknownPageError
    return lengths, is_null if is_null.any() else None


def _pages(data: NDArray[np.uint8], chunk: Any) -> Iterator[_Page]:
    """Yields the pages of a column chunk in order; the first may be a dictionary."""
    at = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        at = min(at, chunk.dictionary_page_offset)
    end = at + chunk.total_compressed_size
    if not 0 <= at <= end <= len(data):
        raise UnknownPageError
    num_left = chunk.num_values
    while num_left > 0:
        if at >= end:
            raise UnknownPageError
        page = _page(data, at, end)
        num_left -= page.num_values
        if num_left < 0:
            raise UnknownPageError
        yield page
        at = page.begin + page.size_bytes


def _page(data: NDArray[np.uint8], at: int, end: int) -> _Page:
    """Reads the header of the page that begins at byte `at` of a column chunk that ends at byte `end`."""
    try:
        header, begin = CompactStruct(data, at, end).read()
    except UnreadableStructError:
        raise UnknownPageError from None
    kind, unpacked, packed = (header.get(number) for number in (_KIND, _UNPACKED_BYTES, _PACKED_BYTES))
    if not (isinstance(unpacked, int) and isinstance(packed, int) and unpacked >= 0 and 0 <= packed <= end - begin):
        raise UnknownPageError
    num_values, level_bytes, is_rle = 0, None, True  # in version 2 levels are always in this encoding
    if kind == _DATA:
        inner = _struct_at(header, _HEADER_OF_DATA)
        num_values = _size_in(inner, _NUM_VALUES)
        is_rle = inner.get(_DEFINITION_ENCODING) == inner.get(_REPETITION_ENCODING) == _RLE
    elif kind == _DATA_V2:
        inner = _struct_at(header, _HEADER_OF_DATA_V2)
        num_values = _size_in(inner, _NUM_VALUES)
        level_bytes = _size_in(inner, _REPETITION_BYTES), _size_in(inner, _DEFINITION_BYTES)
    elif kind != _DICTIONARY:
        raise UnknownPageError
    return _Page(
        kind=kind,
        num_values=num_values,
        begin=begin,
        size_bytes=packed,
        unpacked_bytes=unpacked,
        level_bytes=level_bytes,
        is_rle=is_rle,
    )


def _struct_at(header: dict[int, Any], number: int) -> dict[int, Any]:
    """Returns a header's inner struct; raises an UnknownPageError if it has none."""
    found = header.get(number)
    if not isinstance(found, dict):
        raise UnknownPageError
    return found


def _size_in(struct: dict[int, Any], number: int) -> int:
    """Returns a size or count of 31 bits, 0 if it is not given; raises an UnknownPageError if it is something else."""
    found = struct.get(number, 0)
    if not isinstance(found, int) or not 0 <= found < 1 << 31:
        raise UnknownPageError
    return found


def _levels(data: NDArray[np.uint8], page: _Page, codec: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Returns bytes with a page's levels, and their spans: begin and end of the repetition levels, then of the others.

    In a page of version 1 the sizes of levels are inside the compressed body, so as much is decompressed as turns out
    to be needed.
    """
    if not page.is_rle:
        raise UnknownPageError
    body = data[page.begin : page.begin + page.size_bytes]
    if page.level_bytes is not None:
        repetition_end, levels_end = page.level_bytes[0], sum(page.level_bytes)
        if levels_end > len(body):
            raise UnknownPageError
        return body, np.array([0, repetition_end, repetition_end, levels_end], dtype=np.int64)
    wanted_bytes = min(page.unpacked_bytes, _HEAD_BYTES)
    while True:
        head = _beginning(body, codec, wanted_bytes, page.unpacked_bytes)
        repetition_end = _SIZE_BYTES + _size_at(head, 0)
        definition_begin = definition_end = repetition_end + _SIZE_BYTES  # the end is known once the size is read
        if definition_begin <= len(head):
            definition_end += _size_at(head, repetition_end)
            if definition_end <= len(head):
                return head, np.array([_SIZE_BYTES, repetition_end, definition_begin, definition_end], dtype=np.int64)
        if len(head) >= page.unpacked_bytes or len(head) < wanted_bytes:  # there is no more, or the page is damaged
            raise UnknownPageError
        wanted_bytes = min(page.unpacked_bytes, max(2 * wanted_bytes, definition_end + _HEAD_BYTES))


def _size_at(head: NDArray[np.uint8], at: int) -> int:
    """Returns the size that stands before levels, at byte `at`; something too small if `head` ends before its end."""
    return int.from_bytes(head[at : at + _SIZE_BYTES].tobytes(), "little")


def _beginning(body: NDArray[np.uint8], codec: str, wanted_bytes: int, unpacked_bytes: int) -> NDArray[np.uint8]:
    """Decompresses at least the first `wanted_bytes` bytes of a page's body; fewer if the body is damaged."""
    if codec == "UNCOMPRESSED":
        return body
    if codec == "SNAPPY":
        out = np.zeros(wanted_bytes, dtype=np.uint8)
        return out[: max(0, unpack_snappy(body, out))]
    pa = require("pyarrow")
    try:
        if codec in _STREAMED:
            with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(body)), _STREAMED[codec]) as stream:
                parts = [stream.read(wanted_bytes)]
                while parts[-1] and sum(map(len, parts)) < wanted_bytes:  # a read may return less
                    parts.append(stream.read(wanted_bytes))
                return np.frombuffer(b"".join(parts), dtype=np.uint8)
        if codec in ("LZ4", "LZ4_RAW"):
            return np.frombuffer(pa.Codec("lz4_raw").decompress(pa.py_buffer(body), unpacked_bytes), dtype=np.uint8)
    except (pa.ArrowException, OSError):
        raise UnknownPageError from None
    raise UnknownPageError
