"""Peers that say nothing: deadlines are kept, half-open connections are noticed, and the log stays short.

Times are bounded where a time is what was promised, with a second for a busy machine beside the one that is allowed.
"""

import logging
import random
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from tests.chaos.proxy import Proxy
from tests.faulty_server import Faults

from packhorse.client import RetryPolicy, StreamInterruptedError, connect
from packhorse.client.errors import ServerUnavailableError
from packhorse.client.transport import grpc_channels as transport
from packhorse.client.transport import replica
from packhorse.client.transport.credentials import Credentials
from packhorse.client.transport.methods import STREAM_BINS
from packhorse.v1 import packing_pb2 as pb

pytestmark = pytest.mark.realtime

BUSY_SECONDS = 2.0
UNARY = (
    lambda one: one.get_dataset("rows"),
    lambda one: one.get_bins("rows", positions=[0]),
    lambda one: one.pack_sequences([1, 2], 10),
    lambda one: next(one.stream_bins("rows")),
    lambda one: one.pack_stream(100).send([1], [5]),
)


@pytest.fixture(autouse=True)
def new_ports(monkeypatch):
    """Every port counts as new: an earlier test's server may have had it, and would be waited for longer."""
    monkeypatch.setattr(transport, "_ANSWERED", set())


@pytest.fixture
def proxy(running_server):
    with Proxy(running_server.target) as proxy:
        yield proxy


@pytest.fixture
def deaf():
    """The address of a socket whose queue is full: whoever connects waits, as behind a firewall that drops."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        for filler in fillers:
            filler.close()


def seconds_until_given_up(one, use, error=(ServerUnavailableError, StreamInterruptedError)):
    started = time.monotonic()
    with pytest.raises(error):
        use(one)
    return time.monotonic() - started


@pytest.mark.parametrize("use", UNARY, ids=["get_dataset", "get_bins", "pack_sequences", "stream_bins", "pack_stream"])
def test_the_deadline_is_kept_whatever_an_attempt_waits_for(proxy, use):
    policy = RetryPolicy(deadline_seconds=2, connect_seconds=60)
    with connect(proxy.target, retry=policy) as one:
        proxy.is_silent = True  # accepts, and never answers
        assert seconds_until_given_up(one, use) < 3 + BUSY_SECONDS
        proxy.is_silent = False
        proxy.cut()
    with connect(proxy.target, retry=policy) as one:
        one.list_datasets()
        proxy.silence()  # was there, and vanished
        assert seconds_until_given_up(one, use) < 3 + BUSY_SECONDS


def test_a_first_connection_gives_up_sooner_and_says_so_in_one_line(deaf):
    with connect(deaf, retry=RetryPolicy(connect_seconds=2)) as one:
        started = time.monotonic()
        with pytest.raises(ServerUnavailableError, match=r"\(tried for \d+ s; is a server listening there\?\)$"):
            one.list_datasets()
        assert time.monotonic() - started < 20  # two attempts to connect at most
    with connect("127.0.0.1:1", retry=RetryPolicy(connect_seconds=1)) as one:
        assert seconds_until_given_up(one, lambda one: next(one.stream_bins("rows"))) < 2 + BUSY_SECONDS


def test_one_that_has_answered_is_waited_for_longer(proxy):
    policy = RetryPolicy(deadline_seconds=60, connect_seconds=0, most_delay_seconds=0.1)
    with connect(proxy.target, retry=policy) as one:
        one.list_datasets()
        proxy.cut()
        proxy.faults = [lambda stream: b""] * 3
        assert one.list_datasets()
    with connect(proxy.target, retry=policy) as another:  # as a forked worker's: the target is known
        proxy.faults = [lambda stream: b""] * 3
        assert another.list_datasets()


def test_a_deaf_replica_does_not_hold_up_the_others(deaf, running_server):
    policy = RetryPolicy(deadline_seconds=60, connect_seconds=20)
    with connect(f"{deaf},{running_server.target}", retry=policy) as one:
        for _ in range(10):
            assert one.get_dataset("few").name == "few"


def test_a_half_open_connection_is_noticed(proxy):
    with connect(proxy.target) as one, one.pack_stream(100) as stream:
        assert stream.send([1], [60]) == []
        proxy.silence()
        started = time.monotonic()
        bins = stream.send([2], [40]) + stream.flush()
        took = time.monotonic() - started
        assert sorted(i for ids, _ in bins for i in ids.tolist()) == [1, 2]
        assert proxy.num_connections == 2
        assert 3 < took < 15 + BUSY_SECONDS


def test_an_open_stream_that_stalls_is_opened_again(corpus, proxy, monkeypatch):
    """The connection is alive, and yet nothing comes: the server answers pings, and its kernel hangs."""
    monkeypatch.setattr(transport, "PACK_SECONDS", 0.5)
    held = []

    class Stalling(transport.GrpcTransport):
        def stream(self, method, requests, timeout_seconds):
            def swallowing():
                for number, request in enumerate(requests):
                    if number == 1 and not held:
                        held.append(request)  # the server never sees it
                        continue
                    yield request

            return super().stream(method, swallowing(), timeout_seconds)

    with connect(proxy.target) as one:
        one._connection = Stalling(proxy.target)
        with one.pack_stream(100) as stream:
            assert len(stream.send([1, 2], [60, 40]) + stream.flush()) == 1
        assert held


@pytest.fixture
def stuck(corpus, make_server, tmp_path):
    """A server that answers pings and makes no block any more once `file` exists, and the file."""
    file = tmp_path / "stuck"
    faults = Faults(block_bytes=512, steps_per_block=1, blocks_stuck_while=str(file))
    with make_server(corpus.root, faults=faults) as server:
        yield server, file
        file.unlink(missing_ok=True)


def test_a_stream_that_stalls_ends_within_the_deadline(stuck):
    server, file = stuck
    with connect(server.target, retry=RetryPolicy(deadline_seconds=4)) as one, one.stream_bins("rows") as stream:
        came = [(next(stream), time.monotonic())]
        file.touch()
        with pytest.raises(StreamInterruptedError, match="no message within") as caught:
            came.extend((block, time.monotonic()) for block in stream)
        assert time.monotonic() - came[-1][1] < 5 + BUSY_SECONDS
        assert caught.value.position == sum(len(block) for block, _ in came)


def test_a_healthy_replica_goes_on_where_a_stream_stalls(corpus, stuck, running_server, joined, monkeypatch):
    monkeypatch.setattr(transport._RANDOM, "shuffle", lambda replicas: None)  # the first one is asked first
    server, file = stuck
    with connect(f"{server.target},{running_server.target}", retry=RetryPolicy(deadline_seconds=8)) as one:
        whole = joined(one.stream_bins("rows"))
        with one.stream_bins("rows") as stream:
            came = [next(stream)]
            file.touch()
            assert joined([*came, *stream]) == whole


def test_one_that_wants_few_pings_gets_few(monkeypatch):
    monkeypatch.setattr(replica, "_FEW_PINGS", set())
    monkeypatch.setattr(replica, "PING_SECONDS", 1)

    def answer(request, context):
        context.send_initial_metadata(())
        yield b""
        context.add_callback(gone.set)
        gone.wait(60)

    gone, handler = threading.Event(), grpc.unary_stream_rpc_method_handler(answer)
    service = grpc.method_handlers_generic_handler("packhorse.v1.PackingService", {"StreamBins": handler})
    strict = grpc.server(ThreadPoolExecutor(2), handlers=[service])
    target = f"127.0.0.1:{strict.add_insecure_port('127.0.0.1:0')}"
    strict.start()
    opened = []
    open_channel = Credentials.open_channel

    def recorded(credentials, address, options):
        opened.append((address.target, dict(options)["grpc.keepalive_time_ms"]))
        return open_channel(credentials, address, options)

    monkeypatch.setattr(Credentials, "open_channel", recorded)
    messages = transport.GrpcTransport(target)
    with pytest.raises(ServerUnavailableError, match="Too many pings"):
        list(messages.stream(STREAM_BINS, pb.StreamBinsRequest()))
    next(messages.stream(STREAM_BINS, pb.StreamBinsRequest()))
    next(transport.GrpcTransport(target).stream(STREAM_BINS, pb.StreamBinsRequest()))  # as that of another epoch
    assert [ms for name, ms in opened if name == target] == [1_000, 330_000, 330_000]
    gone.set()
    strict.stop(0).wait()


def test_the_log_tells_of_trouble_once_and_of_its_end(proxy, caplog):
    caplog.set_level(logging.INFO, logger="packhorse")
    policy = RetryPolicy(deadline_seconds=60, first_delay_seconds=0.01, most_delay_seconds=0.05)
    with connect(proxy.target, retry=policy) as one:
        proxy.faults = [lambda stream: b""] * 5
        one.list_datasets()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2, lines
    assert re.search(r"trying again for up to 10 s$", lines[0])
    assert lines[1].startswith("answered again after ")


def test_the_user_s_random_numbers_are_left_alone(proxy):
    random.seed(3)
    state = random.getstate()
    policy = RetryPolicy(deadline_seconds=60, first_delay_seconds=0.01, most_delay_seconds=0.02)
    with connect(f"{proxy.target},127.0.0.1:1", retry=policy) as one:
        proxy.faults = [lambda stream: b""] * 4
        one.list_datasets()
    assert random.getstate() == state
