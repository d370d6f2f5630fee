"""A malformed request that ends gRPC's own accepting loop: the server listens again, and streams go on."""

import socket
import time

import pytest

from packhorse.client import connect
from packhorse.topology import Topology


def header(name, value):
    """An HPACK literal without indexing."""
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


def send_a_path_that_is_no_utf8(target):
    """One raw HTTP/2 request."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/a\xe3b/c"),
        (b":authority", b"x"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
    block = b"".join(header(*field) for field in fields)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
    host, port = target.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(preface + len(block).to_bytes(3, "big") + b"\1\4\0\0\0\1" + block)
        time.sleep(0.2)


@pytest.mark.parametrize("times", [1, 3])
def test_streams_go_on_after_a_request_that_ends_grpcs_loop(corpus, make_server, embedded, joined, times):
    shape = Topology(batch_size=2)
    with make_server(corpus.root) as server, connect(server.target) as client:
        expected = [joined(embedded.stream_bins("rows", epoch=epoch, topology=shape)) for epoch in range(4)]
        streams = [client.stream_bins("rows", epoch=epoch, topology=shape) for epoch in range(4)]
        first = [next(stream) for stream in streams]
        for _ in range(times):
            send_a_path_that_is_no_utf8(server.target)
            time.sleep(0.3)
        assert client.get_dataset("rows").num_sequences == 2000
        for stream, block, whole in zip(streams, first, expected, strict=True):
            assert b"".join(some.ids.tobytes() for some in (block, *stream)) == whole["ids"]
        assert server.process.poll() is None
        assert "listening again" in server.log()
