"""SIGTERM: readiness goes first, streams end at a block, clients move on, and the process exits in time."""

import itertools
import signal
import subprocess
import threading
import time
from collections import Counter

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.faulty_server import SLOW_SMALL_BLOCKS, Faults
from tests.waiting import processor_seconds, wait_until_busy

from packhorse.client import RetryPolicy, connect
from packhorse.topology import Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc
from packhorse.wire import WIRE_VERSION

pytestmark = pytest.mark.realtime

PATIENT = RetryPolicy(deadline_seconds=60, first_delay_seconds=0.02, most_delay_seconds=0.5)
NAMES = ("", "packhorse.v1.PackingService")


def health_of(channel, name):
    answer = health_pb2_grpc.HealthStub(channel).Check(
        health_pb2.HealthCheckRequest(service=name), timeout=10, wait_for_ready=True
    )
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def test_clients_move_to_another_replica(corpus, make_server, bins_of_stream):
    with (
        make_server(corpus.root, faults=SLOW_SMALL_BLOCKS) as first,
        make_server(corpus.root, faults=SLOW_SMALL_BLOCKS) as second,
    ):
        target = f"ipv4:{first.target},{second.target}"
        with connect(target, retry=PATIENT) as client:
            streams = [client.stream_bins("rows", rank=rank, topology=Topology(world_size=4)) for rank in range(4)]
            came = [bins_of_stream([next(stream)]) for stream in streams]
            first.terminate()
            for stream, delivered in zip(streams, came, strict=True):
                delivered += bins_of_stream(stream)
            for delivered in came:
                steps = [d.step for d in delivered]
                assert steps == list(range(len(steps)))
            ids = itertools.chain.from_iterable(d.ids for delivered in came for d in delivered)
            assert Counter(ids) == Counter(corpus.ids["rows"].tolist())
            assert first.wait() == 0
            assert client.get_dataset("rows").num_sequences == 2000


def test_health_turns_before_streams_end(corpus, make_server, wait_until):
    with make_server(corpus.root, faults=SLOW_SMALL_BLOCKS) as server, grpc.insecure_channel(server.target) as channel:
        assert [health_of(channel, name) for name in NAMES] == ["SERVING"] * 2
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
        statuses = []
        ended = threading.Event()

        def follow():
            try:
                statuses.extend(answer.status for answer in watch)
            except grpc.RpcError:
                ended.set()

        threading.Thread(target=follow, daemon=True).start()
        wait_until(lambda: statuses == [health_pb2.HealthCheckResponse.SERVING])
        with connect(server.target, retry=RetryPolicy(deadline_seconds=0)) as client:
            next(client.stream_bins("rows"))
            server.terminate()
            wait_until(lambda: statuses[-1] == health_pb2.HealthCheckResponse.NOT_SERVING)
        watch.cancel()
        assert server.wait() == 0
        assert ended.wait(10)


def test_grace_runs_out_under_streams_that_block(corpus, make_server, tmp_path):
    """Blocks that take longer than the grace period are cut off; clients go on at the block that was cut."""
    stuck = tmp_path / "stuck"
    with (
        make_server(
            corpus.root, "--grace-seconds", "0.3", faults=Faults(block_bytes=512, blocks_stuck_while=str(stuck))
        ) as server,
        connect(server.target, retry=PATIENT) as client,
    ):
        stream = client.stream_bins("rows")
        blocks = [next(stream) for _ in range(4)]
        stuck.touch()
        server.terminate()
        reader = threading.Thread(target=lambda: blocks.extend(stream), daemon=True)
        reader.start()
        assert server.wait() == 0
        stuck.unlink()
        server.start()
        reader.join(60)
        assert not reader.is_alive()
    ids = Counter(i for block in blocks for i in block.ids.tolist())
    assert ids == Counter(corpus.ids["rows"].tolist())


def test_an_interrupt_drains_as_well(corpus, make_server):
    with make_server(corpus.root) as server:
        server.process.send_signal(signal.SIGINT)
        assert server.wait() == 0
        assert "Traceback" not in server.log()


def test_idle_pack_streams_end_at_once_and_leave_no_trace(corpus, make_server):
    with (
        make_server(corpus.root, "--grace-seconds", "100") as server,
        connect(server.target, retry=RetryPolicy(deadline_seconds=0)) as client,
    ):
        streams = [client.pack_stream(64) for _ in range(6)]
        for stream in streams:
            stream.send([1], [5])
        server.terminate()
        assert server.wait(20) == 0
        assert "Traceback" not in server.log()
        assert server.log().count("shutting down") == 6


@pytest.fixture
def long_message():
    """Function: sends a PackStream message that takes many minutes, and returns the open call."""
    lengths = np.random.default_rng(0).integers(44_564, 47_185, 100_000)
    options = pb.PackStreamOptions(max_seq_len=131_071, lookahead_sequences=10_000, wire_version=WIRE_VERSION)
    calls = []

    def send(channel, server):
        messages = (
            pb.PackStreamRequest(options=options),
            pb.PackStreamRequest(sequences=pb.PackStreamSequences(ids=range(100_000), lengths=lengths)),
        )
        done = threading.Event()
        calls.append(done)
        stub = packing_pb2_grpc.PackingServiceStub(channel)
        call = stub.PackStream(itertools.chain(messages, iter(done.wait, True)))
        next(call)
        wait_until_busy(server.pid)
        return call

    yield send
    for done in calls:
        done.set()


def test_a_long_message_is_told_at_once(corpus, make_server, long_message):
    with make_server(corpus.root, "--grace-seconds", "60") as server, grpc.insecure_channel(server.target) as channel:
        call = long_message(channel, server)
        server.terminate()
        assert server.wait(20) == 0
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in caught.value.details()


def test_a_caller_that_leaves_frees_the_lane(corpus, make_server, long_message):
    with make_server(corpus.root) as server, grpc.insecure_channel(server.target) as channel:
        for call in [long_message(channel, server) for _ in range(3)]:
            call.cancel()
        time.sleep(0.5)
        before = processor_seconds(server.pid)
        time.sleep(1)
        assert processor_seconds(server.pid) - before < 0.5


def test_a_second_signal_ends_the_drain(corpus, make_server):
    """The one call that is left is a search, which nothing in the server can end."""
    lengths = np.random.default_rng(0).integers(131, 59_000, 1_400).tolist()
    request = pb.PackSequencesRequest(lengths=lengths, max_seq_len=131_071, algorithm="optimal")
    with make_server(corpus.root, "--grace-seconds", "100") as server, grpc.insecure_channel(server.target) as channel:
        stub = packing_pb2_grpc.PackingServiceStub(channel)
        _calls = [stub.PackSequences.future(request) for _ in range(8)]
        wait_until_busy(server.pid)
        server.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(1)
        server.terminate()
        assert server.wait(5) == 0


def test_a_hangup_ends_nothing(corpus, make_server, wait_until):
    with make_server(corpus.root) as server, connect(server.target) as client:
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "SIGHUP" in server.log())
        assert client.get_dataset("few").num_sequences == 7
