"""Where the record batches of an Arrow stream lie in its file, found without reading their data.

Leaves opening files of either Arrow format to `arrow.files`.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple

_FIRST_READ_BYTES = 1 << 12
"""Bytes of a message that are read first; the metadata of most messages fit in them."""
_MARK = 0xFFFFFFFF
"""The first 4 bytes of every message."""
_PREFIX_BYTES = 8
"""Bytes of a message before its metadata: the mark, and the size of the metadata as int32."""
_HEADER_TYPE_SLOT, _HEADER_SLOT, _BODY_BYTES_SLOT = 1, 2, 3
"""Slots of the fields of a `Message` in Arrow's `Message.fbs`; the header's value is an offset, from the field on."""
_NUM_ROWS_SLOT = 0
"""Slot of the number of rows in a `RecordBatch`."""
_RECORD_BATCH_TYPE = 3
"""Value of the header type in a message that is a record batch."""
_VTABLE_HEAD_BYTES, _SLOT_BYTES = 4, 2
"""Bytes of the two sizes at the beginning of a flatbuffer's vtable, and of each slot after them."""


class StreamedBatch(NamedTuple):
    """Where a record batch lies in a file of the stream format."""

    begin: int
    """First byte of its message in the file."""
    end: int
    """One past the last byte of its message."""
    num_rows: int


def streamed_batches(read: Callable[[int, int], bytes], size_bytes: int, where: str) -> list[StreamedBatch]:
    """Finds the record batches of a file of the stream format, from the metadata of its messages.

    A message is a prefix of 8 bytes, its metadata (a flatbuffer, padded), and its body. A message without metadata ends
    the stream.

    Args:
        read: returns bytes [begin, end) of the file.
        size_bytes: size of the file.
        where: path or URL of the file, for messages.

    Raises:
        ValueError: the file is not such a stream.
    """
    found: list[StreamedBatch] = []
    begin = 0
    try:
        while begin + _PREFIX_BYTES <= size_bytes:
            data = read(begin, min(begin + _FIRST_READ_BYTES, size_bytes))
            mark, metadata_bytes = struct.unpack_from("<Ii", data)
            if mark != _MARK:
                raise ValueError("a message does not begin with 0xFFFFFFFF")
            if metadata_bytes == 0:
                break
            body_at = _PREFIX_BYTES + metadata_bytes
            if body_at > len(data):
                data = read(begin, min(begin + body_at, size_bytes))
            metadata = data[_PREFIX_BYTES:]
            message_table = struct.unpack_from("<I", metadata)[0]  # a flatbuffer begins with its root table's offset
            header_type = _field(metadata, message_table, _HEADER_TYPE_SLOT, "B")
            header = _field(metadata, message_table, _HEADER_SLOT, "I")
            body = _field(metadata, message_table, _BODY_BYTES_SLOT, "q")
            body_bytes = body.value if body else 0
            if metadata_bytes < 0 or body_bytes < 0:  # the next message would not begin after this one, without an end
                raise ValueError("the size of a message is negative")
            end = begin + body_at + body_bytes
            if end > size_bytes:
                raise ValueError("a message ends beyond the end of the file")
            if header_type and header and header_type.value == _RECORD_BATCH_TYPE:
                num_rows = _field(metadata, header.offset + header.value, _NUM_ROWS_SLOT, "q")
                found.append(StreamedBatch(begin, end, num_rows.value if num_rows else 0))
            begin = end
    except (struct.error, ValueError) as error:
        raise ValueError(f"{where} cannot be read as an Arrow IPC stream at byte {begin}: {error}") from None
    return found


class _Field(NamedTuple):
    """A field of a flatbuffer's table."""

    offset: int
    """Where the field is in the flatbuffer."""
    value: int


def _field(flatbuffer: bytes, table: int, slot: int, form: str) -> _Field | None:
    """Returns a field of a flatbuffer's table; None if the field has its default.

    Args:
        flatbuffer: the metadata of a message.
        table: offset of the table. It begins with the distance back to its vtable: uint16 sizes of vtable and table,
            then the offset of each slot's field in the table, 0 for a default.
        slot: number of the field.
        form: type of the field, as `struct` names it.
    """
    vtable = table - struct.unpack_from("<i", flatbuffer, table)[0]
    slot_at = _VTABLE_HEAD_BYTES + _SLOT_BYTES * slot
    if slot_at >= struct.unpack_from("<H", flatbuffer, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", flatbuffer, vtable + slot_at)[0]
    return _Field(table + offset, struct.unpack_from(f"<{form}", flatbuffer, table + offset)[0]) if offset else None
