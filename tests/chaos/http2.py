"""HTTP/2 by hand: what a broken or foreign peer answers to a request.

A fault is a function from a stream's number to the bytes that are sent for it. Each is a few frames of RFC 9113; header
blocks are RFC 7541's literals, which need no state.
"""

import asyncio

DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, ACK, END_HEADERS = 1, 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PREFACE_BYTES, FRAME_HEADER_BYTES = len(PREFACE), 9


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def literals(*fields):
    """A header block of names with values, each shorter than 127 bytes."""
    return b"".join(
        bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode() for name, value in fields
    )


def headers(**fields):
    """A header block of literals; underscores stand for dashes, and `status` is the pseudo-header."""
    return literals(
        *((":status" if name == "status" else name.replace("_", "-"), value) for name, value in fields.items())
    )


def expanding_metadata(stream):
    """A request of 16 kB whose metadata is 48 MB: one header of 4,000 bytes, repeated by its index."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/packhorse.v1.PackingService/ListDatasets",
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    indexed = b"\x40\x01a" + b"\x7f\x80\x1e" + b"b" * 3967
    return frame(HEADERS, END_HEADERS, stream, literals(*fields.items()) + indexed + b"\xbe" * 12_000)


def reset(code):
    """RST_STREAM with an error code."""
    return lambda stream: frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def http_status(status):
    """A plain HTTP answer, as a load balancer gives."""
    block = headers(status=str(status), content_type="text/html")
    return lambda stream: frame(HEADERS, END_STREAM | END_HEADERS, stream, block)


def grpc_status(code, message="no"):
    """A gRPC status without details, as a proxy gives."""
    block = headers(status="200", content_type="application/grpc", grpc_status=str(code), grpc_message=message)
    return lambda stream: frame(HEADERS, END_STREAM | END_HEADERS, stream, block)


def body(data, *, ends=True):
    """A good beginning, then these bytes as the body, then a good end, or none."""
    begin = headers(status="200", content_type="application/grpc")

    def answer(stream):
        sent = frame(HEADERS, END_HEADERS, stream, begin) + frame(DATA, 0, stream, data)
        return sent + (frame(HEADERS, END_STREAM | END_HEADERS, stream, headers(grpc_status="0")) if ends else b"")

    return answer


def message(data):
    """The bytes as one gRPC message."""
    return b"\0" + len(data).to_bytes(4, "big") + data


def raw(data):
    """Bytes that are no frames."""
    return lambda stream: data


async def answer_by_hand(fault, reader, writer):
    """Speaks HTTP/2 until the first request, answers it with `fault`, and closes the connection."""
    await reader.readexactly(PREFACE_BYTES)
    writer.write(frame(SETTINGS, 0, 0))
    while True:
        header = await reader.readexactly(FRAME_HEADER_BYTES)
        await reader.readexactly(int.from_bytes(header[:3], "big"))
        kind, flags, stream = header[3], header[4], int.from_bytes(header[5:], "big")
        if kind == SETTINGS and not flags & ACK:
            writer.write(frame(SETTINGS, ACK, 0))
        if kind == HEADERS:
            break
    writer.write(fault(stream))
    await writer.drain()
    await asyncio.sleep(0.05)  # what was sent is read before the connection's end is noticed
    writer.write(frame(GOAWAY, 0, 0, stream.to_bytes(4, "big") + bytes(4)))
    await writer.drain()
