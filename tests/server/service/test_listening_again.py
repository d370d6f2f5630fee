"""A malformed request that ends gRPC's own accepting loop: the server listens again, and streams go on."""

import asyncio
import queue
import socket
import time

import grpc
import pytest

from packhorse.client import RetryPolicy, connect
from packhorse.server.service import listening as module
from packhorse.server.service.listening import Listening
from packhorse.topology import Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc
from packhorse.wire import WIRE_VERSION

pytestmark = pytest.mark.realtime


def header(name, value):
    """An HPACK literal without indexing."""
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


def connected(target):
    if target.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(10)
        connection.connect(target.removeprefix("unix:"))
        return connection
    host, port = target.split(":")
    return socket.create_connection((host, int(port)), timeout=10)


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
    with connected(target) as connection:
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


def test_many_such_requests_leave_few_lines_in_the_log(corpus, make_server):
    with make_server(corpus.root) as server, connect(server.target, retry=RetryPolicy(deadline_seconds=20)) as client:
        for _ in range(8):
            send_a_path_that_is_no_utf8(server.target)
            assert client.get_dataset("rows").num_sequences == 2000
        lines = server.log().splitlines()
        assert 1 <= sum("listening again" in line for line in lines) <= 5
        assert "Traceback" not in server.log()


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "unix"])
def test_others_are_let_in_while_a_stream_stays_open(corpus, make_server, tmp_path_factory, listen):
    if listen == "unix":
        listen = f"unix:{tmp_path_factory.mktemp('s')}/s"
    options = pb.PackStreamOptions(max_seq_len=8, lookahead_sequences=4, wire_version=WIRE_VERSION)
    messages = queue.SimpleQueue()
    with make_server(corpus.root, listen=listen) as server, grpc.insecure_channel(server.target) as channel:
        stream = packing_pb2_grpc.PackingServiceStub(channel).PackStream(iter(messages.get, None), timeout=60)
        messages.put(pb.PackStreamRequest(options=options))
        next(stream)
        for number in range(3):
            send_a_path_that_is_no_utf8(server.target)
            with connect(server.target, retry=RetryPolicy(deadline_seconds=20)) as other:
                assert other.get_dataset("rows").num_sequences == 2000
            assert server.log().count("listening again") == number + 1
        messages.put(pb.PackStreamRequest(flush=pb.PackStreamFlush()))
        assert next(stream)
        server.stop()
        with pytest.raises(grpc.RpcError, match="shutting down"):
            next(stream)


class Accepting:
    """Its server's loop has ended."""

    async def ended(self):
        return UnicodeDecodeError("utf-8", b"\xe3", 0, 1, "a path")


class Ended:
    """A server whose streams have ended."""

    async def start(self):
        pass

    async def wait_for_termination(self):
        return False


def test_an_address_that_stays_in_use_is_given_up(monkeypatch):
    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.05)
    bound = []

    def make(address):
        if bound:
            raise OSError("in use")
        bound.append(address)
        return Ended(), "127.0.0.1:5"

    async def run():
        listening = Listening(make, "127.0.0.1:0", Accepting())
        await listening.begin()
        with pytest.raises(OSError, match="in use"):
            await asyncio.wait_for(listening.go_on(), 20)

    asyncio.run(run())
    assert bound == ["127.0.0.1:0"]
