"""Refusals of PackStream reach every client with their ErrorInfo, also those that never stop sending."""

import asyncio

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import WIRE_VERSION

METHOD = "/packhorse.v1.PackingService/PackStream"
WRONG = pb.PackStreamOptions(max_seq_len=0, lookahead_sequences=3, wire_version=WIRE_VERSION)
OPTIONS = pb.PackStreamOptions(max_seq_len=100, lookahead_sequences=3, wire_version=WIRE_VERSION)
REFUSED = {
    "wrong options": [pb.PackStreamRequest(options=WRONG).SerializeToString()],
    "options twice": [pb.PackStreamRequest(options=OPTIONS).SerializeToString()] * 2,
    "no protocol message": [b"\xff" * 70_000],
}
"""What is refused at its last message."""

CALLS = 10


def reason_of(error):
    """The reason of an error's ErrorInfo; its code where it has none."""
    trailers = dict(error.trailing_metadata() or ())
    if "grpc-status-details-bin" not in trailers:
        return error.code().name
    details = status_pb2.Status.FromString(trailers["grpc-status-details-bin"]).details
    info = error_details_pb2.ErrorInfo()
    assert details[0].Unpack(info)
    return info.reason


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("num_more", [0, 500])
def test_grpc_aio_gets_the_reason_while_it_sends(running_server, name, num_more):
    async def refused(channel):
        async def send():
            for message in REFUSED[name] + REFUSED[name][-1:] * num_more:
                yield message

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in channel.stream_stream(METHOD)(send(), timeout=60):
                pass
        return reason_of(caught.value)

    async def run():
        async with grpc.aio.insecure_channel(running_server.target) as channel:
            return [await refused(channel) for _ in range(CALLS)]

    assert asyncio.run(run()) == ["INVALID_FIELD"] * CALLS


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("num_more", [0, 500])
def test_grpc_gets_the_reason_while_it_sends(running_server, name, num_more):
    with grpc.insecure_channel(running_server.target) as channel:
        for _ in range(CALLS):
            with pytest.raises(grpc.RpcError) as caught:
                list(channel.stream_stream(METHOD)(iter(REFUSED[name] + REFUSED[name][-1:] * num_more), timeout=60))
            assert reason_of(caught.value) == "INVALID_FIELD"


def test_a_client_that_waits_for_its_answer_is_refused_soon(running_server):
    async def run():
        async with grpc.aio.insecure_channel(running_server.target) as channel:
            call = channel.stream_stream(METHOD)(timeout=60)
            await call.write(REFUSED["wrong options"][0])  # and nothing more, nor an end
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            return reason_of(caught.value)

    assert asyncio.run(run()) == "INVALID_FIELD"
