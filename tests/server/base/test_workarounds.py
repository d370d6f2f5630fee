"""Workarounds: gRPC's accepting loop and its memory, and listening again after a malformed request."""

import asyncio
import queue
import socket
import time

import grpc
import pytest
from tests.waiting import some_turns

from packhorse.client import RetryPolicy, connect
from packhorse.server.base import workarounds as module
from packhorse.server.base.workarounds import Accepting, Listening
from packhorse.topology import Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc
from packhorse.wire import WIRE_VERSION


def accepting_here():
    accepting = Accepting()
    asyncio.get_running_loop().set_task_factory(accepting.make_task)
    return accepting


async def _request_call(over, went_on):
    await over
    went_on.append(True)
    return "a request"


async def another(over, went_on):
    return await _request_call(over, went_on)


@pytest.mark.parametrize(("function", "goes_on"), [(_request_call, True), (another, False)])
def test_what_asks_for_a_request_goes_on_when_cancelled_and_nothing_else(function, goes_on):
    async def run():
        accepting_here()
        loop = asyncio.get_running_loop()
        over, went_on = loop.create_future(), []
        task = loop.create_task(function(over, went_on))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if not over.done():
            over.set_result(None)
        for _ in range(3):
            await asyncio.sleep(0)
        return bool(went_on)

    assert asyncio.run(run()) is goes_on


def test_a_request_is_asked_for_at_once_and_had_in_the_turn_after_it_came():
    async def run():
        accepting_here()
        loop, asked = asyncio.get_running_loop(), []
        over = loop.create_future()

        async def _request_registered_call():
            asked.append(True)
            return await over

        asking = loop.create_task(_request_registered_call())
        assert asked == [True]
        over.set_result("a request")
        await asyncio.sleep(0)
        assert asking.result() == "a request"

    asyncio.run(run())


def test_what_fails_fails():
    async def _request_registered_call():
        raise LookupError("no such method")

    async def run():
        accepting_here()
        with pytest.raises(LookupError):
            await asyncio.get_running_loop().create_task(_request_registered_call())

    asyncio.run(run())


def test_grpcs_coroutines_have_the_names_that_are_looked_for(monkeypatch):
    asked = set()

    class Asked(module.Shielded):
        def __init__(self, loop, coroutine):
            asked.add(coroutine.__name__)
            super().__init__(loop, coroutine)

    monkeypatch.setattr(module, "Shielded", Asked)

    async def run():
        accepting = accepting_here()
        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
        server.add_registered_method_handlers("packhorse.Test", {"Answer": handler})
        await server.start()
        ended = asyncio.ensure_future(accepting.ended())
        await some_turns()
        assert not ended.done()
        await server.stop(None)
        return await asyncio.wait_for(ended, 20)

    assert asyncio.run(run()) is None
    assert asked == module._REQUESTING


def test_where_grpc_names_its_coroutines_otherwise_it_serves_as_it_does_by_itself(monkeypatch, caplog):
    monkeypatch.setattr(module, "_REQUESTING", frozenset({"_renamed_call"}))
    monkeypatch.setattr(module, "_ACCEPTING", "_renamed_loop")

    async def answer(request, context):
        return request

    async def run():
        accepting = accepting_here()
        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(answer)
        server.add_registered_method_handlers("packhorse.Test", {"Answer": handler})
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        ended = asyncio.ensure_future(accepting.ended())
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert await channel.unary_unary("/packhorse.Test/Answer")(b"request", timeout=20) == b"request"
        assert not ended.done()
        ended.cancel()
        await server.stop(None)

    asyncio.run(asyncio.wait_for(run(), 60))
    (line,) = [record.getMessage() for record in caplog.records if record.name == module.__name__]
    assert "upgrade packhorse" in line


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


def test_without_workarounds_streams_are_the_same(corpus, make_server, embedded, joined):
    shape = Topology(batch_size=2)
    with make_server(corpus.root, "--no-workarounds") as server, connect(server.target) as client:
        with client.stream_bins("rows", topology=shape) as left:
            next(left)
        expected = joined(embedded.stream_bins("rows", epoch=1, topology=shape))
        assert joined(client.stream_bins("rows", epoch=1, topology=shape)) == expected
        assert "listening again" not in server.log()


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


class AcceptingNoMore:
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
        listening = Listening(make, "127.0.0.1:0", AcceptingNoMore())
        await listening.begin()
        with pytest.raises(OSError, match="in use"):
            await asyncio.wait_for(listening.keep_listening(), 20)

    asyncio.run(run())
    assert bound == ["127.0.0.1:0"]
