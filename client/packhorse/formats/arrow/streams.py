"""Record batches of an Arrow stream, read one after the other without their file in memory."""

import struct
from collections.abc import Callable
from typing import NamedTuple

_FRAME_BYTES = 1 << 12
"""How much of a message is read to find its size; most metadata fit."""
_RECORD_BATCH = 3
"""The type of a message that is a record batch."""


class StreamedBatch(NamedTuple):
    """Where a record batch is in a file of the stream format."""

    begin: int
    """First byte of its message."""
    end: int
    """One past its last byte."""
    num_rows: int


def streamed_batches(read: Callable[[int, int], bytes], size_bytes: int, where: str) -> list[StreamedBatch]:
    """Finds the record batches of a file of the stream format, from the frames of its messages.

    A message: 0xFFFFFFFF, the size of its metadata as int32, the metadata (a flatbuffer, padded), and its body.

    Args:
        read: returns bytes [begin, end) of the file.
        size_bytes: of the file.
        where: its path or URL, for messages.

    Raises:
        ValueError: it is not such a stream.
    """
    found: list[StreamedBatch] = []
    begin = 0
    try:
        while begin + 8 <= size_bytes:
            frame = read(begin, min(begin + _FRAME_BYTES, size_bytes))
            mark, metadata_bytes = struct.unpack_from("<Ii", frame)
            if mark != 0xFFFFFFFF:
                raise ValueError("a message does not begin with 0xFFFFFFFF")
            if metadata_bytes == 0:
                break
            if 8 + metadata_bytes > len(frame):
                frame = read(begin, min(begin + 8 + metadata_bytes, size_bytes))
            message = frame[8:]
            table = struct.unpack_from("<I", message)[0]
            kind, header, body = (_field(message, table, slot, form) for slot, form in ((1, "B"), (2, "I"), (3, "q")))
            end = begin + 8 + metadata_bytes + (body[1] if body else 0)
            if kind and header and kind[1] == _RECORD_BATCH:
                rows = _field(message, header[0] + header[1], 0, "q")
                found.append(StreamedBatch(begin, end, rows[1] if rows else 0))
            begin = end
    except (struct.error, ValueError) as error:
        raise ValueError(f"{where} cannot be read as an Arrow IPC stream at byte {begin}: {error}") from None
    return found


def _field(message: bytes, table: int, slot: int, form: str) -> tuple[int, int] | None:
    """Returns the offset and the value of a field of a flatbuffer's table; None if it has its default."""
    vtable = table - struct.unpack_from("<i", message, table)[0]
    if 4 + 2 * slot >= struct.unpack_from("<H", message, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", message, vtable + 4 + 2 * slot)[0]
    return (table + offset, struct.unpack_from(f"<{form}", message, table + offset)[0]) if offset else None
