"""Refusals of a real server that is asked for too much, or cannot be asked for more now."""

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import socket
import ssl
import urllib.request

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from tests.faulty_server import Faults
from tests.waiting import wait_until

from packhorse.client import RetryPolicy, connect
from packhorse.client.errors import TooManyRequestsError
from packhorse.client.transport.requests import topology_message
from packhorse.topology import Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc
from packhorse.wire import WIRE_VERSION

SERVICE = "/packhorse.v1.PackingService/"
ONCE = RetryPolicy(deadline_seconds=0)


@pytest.fixture(scope="module")
def server(corpus, make_server):
    with make_server(corpus.root, "--metrics-listen", "127.0.0.1:0") as server:
        yield server


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server.target) as channel:
        yield channel


def details_of(error):
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in rpc_status.from_call(error).details:
        for message in (info, retry):
            if detail.Is(message.DESCRIPTOR):
                detail.Unpack(message)
    return info, retry.retry_delay.ToMilliseconds()


def same(data):
    return data


@pytest.mark.parametrize("method", ["GetBins", "ListDatasets", "PackSequences", "StreamBins", "PackStream"])
def test_what_is_no_message_is_an_invalid_request(server, channel, method):
    junk = b"\xff" * 50
    calls = {
        "StreamBins": lambda: list(channel.unary_stream(SERVICE + method, same, same)(junk, timeout=20)),
        "PackStream": lambda: list(channel.stream_stream(SERVICE + method, same, same)(iter([junk]), timeout=20)),
    }
    unary = channel.unary_unary(SERVICE + method, same, same)
    with pytest.raises(grpc.RpcError) as caught:
        calls.get(method, lambda: unary(junk, timeout=20))()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    info, _ = details_of(caught.value)
    assert (info.reason, info.metadata) == ("INVALID_FIELD", {"field": "request"})
    assert "50 bytes" in caught.value.details()
    assert "Traceback" not in server.log()


@pytest.mark.realtime
def test_more_searches_than_may_wait_are_told_when_to_come_back(server, channel):
    lengths = np.random.default_rng(0).integers(131, 59_000, 1_400).tolist()
    request = pb.PackSequencesRequest(lengths=lengths, max_seq_len=131_071, algorithm="optimal")
    stub = packing_pb2_grpc.PackingServiceStub(channel)
    calls = [stub.PackSequences.future(request) for _ in range(100)]
    refused = wait_until(lambda: [call for call in calls if call.done()])  # no search ends so soon
    with pytest.raises(grpc.RpcError) as caught:
        refused[0].result(timeout=0)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    info, delay_ms = details_of(caught.value)
    assert (info.reason, delay_ms) == ("TOO_MANY_REQUESTS", 1000)
    other = pb.PackSequencesRequest(lengths=[1, 2, 3], max_seq_len=6)
    assert stub.PackSequences(other, timeout=20).lower_bound == 1
    for call in calls:
        call.cancel()


def test_no_file_left_to_open_is_no_fault(corpus, make_server, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(corpus.root / "few", root / "few")
    with make_server(root) as server, connect(server.target, retry=ONCE) as client:
        assert client.get_dataset("few").num_sequences == 7
        shutil.copytree(corpus.root / "rows", root / "rows")
        num_open = len(os.listdir(f"/proc/{server.pid}/fd"))
        before = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (num_open, before[1]))
        with pytest.raises(TooManyRequestsError) as caught:
            client.get_dataset("rows")
        assert caught.value.retry_after_seconds == 1
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, before)
        with connect(server.target) as patient:  # the server may remember for a second that it could not
            assert patient.get_dataset("rows").num_sequences == 2000


def is_serving(url):
    try:
        return urllib.request.urlopen(url, timeout=5).status == 200
    except urllib.error.HTTPError:
        return False


def is_closed_to(connection):
    """Whether a byte cannot be sent any more."""
    try:
        connection.sendall(b"G")
    except OSError:
        return True
    return False


@pytest.mark.realtime
def test_silent_connections_to_the_metrics_port_are_closed(corpus, make_server):
    faults = Faults(metrics_silence_seconds=0.5)
    with (
        make_server(corpus.root, "--metrics-listen", "127.0.0.1:0", faults=faults) as server,
        contextlib.ExitStack() as opened,
    ):
        host, port = server.metrics_url.removeprefix("http://").removesuffix("/metrics").split(":")

        def num_threads():
            return len(os.listdir(f"/proc/{server.pid}/task"))

        wait_until(lambda: is_serving(f"http://{host}:{port}/healthz"), 100)  # until then it starts threads of its own
        before = num_threads()
        silent = [opened.enter_context(socket.create_connection((host, int(port)))) for _ in range(20)]
        for connection in silent:
            connection.settimeout(20)
            assert connection.recv(1) == b""
        wait_until(lambda: num_threads() <= before + 2)
        assert "Traceback" not in server.log()


@pytest.mark.parametrize("is_secure", [False, True])
@pytest.mark.realtime
def test_connections_to_the_metrics_port_that_never_come_to_a_point_are_closed(
    corpus, make_server, authority, is_secure
):
    faults = Faults(metrics_connection_seconds=1.0, metrics_connections=4)
    own = authority.issue("server")
    flags = ("--tls-cert", own.cert, "--tls-key", own.key) if is_secure else ()
    with (
        make_server(corpus.root, "--metrics-listen", "127.0.0.1:0", *flags, faults=faults) as server,
        contextlib.ExitStack() as opened,
    ):
        host, port = server.metrics_url.partition("//")[2].removesuffix("/metrics").split(":")
        context = ssl.create_default_context(cafile=authority.ca)
        talkative = []
        for _ in range(4):
            connection = opened.enter_context(socket.create_connection((host, int(port))))
            if is_secure:
                connection = opened.enter_context(context.wrap_socket(connection, server_hostname=host))
            talkative.append(connection)
        for connection in talkative:
            wait_until(lambda: is_closed_to(connection))  # noqa: B023
        with urllib.request.urlopen(server.metrics_url, context=context if is_secure else None) as answer:
            assert b"packhorse_" in answer.read()
        assert "Traceback" not in server.log()


def test_get_bins_is_bounded_by_the_bytes_of_its_answer(embedded, monkeypatch):
    """Not by what the largest bin could take: as many small ones as fit."""
    from packhorse.server.methods import sizes

    backend = embedded._transport._backend
    whole = backend.get_bins(pb.GetBinsRequest(dataset="rows", positions=range(50)))
    num_bytes = 2 * len(whole.bins.ids) + 16 * 50  # as if every bin's template were defined
    monkeypatch.setattr(sizes, "MAX_MESSAGE_BYTES", num_bytes)
    assert backend.get_bins(pb.GetBinsRequest(dataset="rows", positions=range(50))) == whole
    with pytest.raises(Exception, match="the first 50 fit") as caught:
        backend.get_bins(pb.GetBinsRequest(dataset="rows", positions=[*range(50), 3]))
    assert caught.value.metadata == {"field": "positions", "limit": "50"}


@pytest.mark.parametrize("dataset", ["rows", "named", "truncated"])
def test_pieces_change_no_answer(embedded, corpus, monkeypatch, dataset):
    from packhorse.server.base import time_slices
    from packhorse.server.methods import get_bins as answers_of_bins
    from packhorse.server.methods import locate

    backend = embedded._transport._backend
    topology = topology_message(Topology(world_size=3, workers_per_rank=2, batch_size=2))
    positions = [5, 0, 5, 17, 3, *range(20)]
    asked = [
        (backend.get_bins_in_slices, pb.GetBinsRequest(dataset=dataset, seed=3, positions=positions)),
        (backend.get_bins_in_slices, pb.GetBinsRequest(dataset=dataset)),
        (
            backend.locate_in_slices,
            pb.LocateSequencesRequest(dataset=dataset, ids=[*corpus.ids[dataset][:300], 2**40], topology=topology),
        ),
    ]
    answers = [time_slices.finish(method(request)) for method, request in asked]
    monkeypatch.setattr(time_slices, "SLICE_SECONDS", 0)
    monkeypatch.setattr(answers_of_bins, "BLOCK_BYTES", 1)
    monkeypatch.setattr(locate, "_BISECTIONS_AT_ONCE", 1)
    assert [time_slices.finish(method(request)) for method, request in asked] == answers
    assert len(list(backend.locate_in_slices(asked[2][1]))) > 100


def test_ids_are_bounded_by_the_bisections_they_take(embedded, monkeypatch):
    from packhorse.server.methods import locate as module

    backend = embedded._transport._backend
    num_rooms = backend.get_dataset(pb.GetDatasetRequest(name="rows")).dataset.num_rooms
    monkeypatch.setattr(module, "MAX_LOCATE_BISECTIONS", 10 * num_rooms)
    assert len(backend.locate_sequences(pb.LocateSequencesRequest(dataset="rows", ids=range(10))).locations) == 10
    with pytest.raises(Exception, match="at most 10") as caught:
        backend.locate_sequences(pb.LocateSequencesRequest(dataset="rows", ids=range(11)))
    assert caught.value.metadata == {"field": "ids", "limit": "10"}


@pytest.mark.long
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="requests pile up while the server is stopped")
@pytest.mark.realtime
def test_as_many_openings_as_max_streams_may_come_at_once(corpus, make_server):
    """GRPC cancels pending requests beyond a thousand, more of them the more there are, unless it is told otherwise."""
    num_channels, num_calls = 24, 120

    async def run(server):
        channels = [
            grpc.aio.insecure_channel(server.target, (("grpc.use_local_subchannel_pool", 1),))
            for _ in range(num_channels)
        ]
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        os.kill(server.process.pid, signal.SIGSTOP)
        request = pb.StreamBinsRequest(dataset="rows", topology=topology_message(Topology()), wire_version=WIRE_VERSION)
        calls = [
            packing_pb2_grpc.PackingServiceStub(channel).StreamBins(request, timeout=240)
            for _ in range(num_calls)
            for channel in channels
        ]
        await asyncio.sleep(1)  # until they are on their way
        os.kill(server.process.pid, signal.SIGCONT)
        first = await asyncio.gather(*(call.read() for call in calls), return_exceptions=True)
        for channel in channels:
            await channel.close()
        return first

    with make_server(corpus.root) as server:
        first = asyncio.run(run(server))
    assert len(first) == num_channels * num_calls
    assert [message for message in first if not isinstance(message, pb.StreamBinsResponse)] == []
