"""Resuming without a network: a scripted transport breaks where a test says; overdue calls are cancelled."""

import random
from dataclasses import fields as fields_of

import pytest

from packhorse.client import RetryPolicy, StreamInterruptedError
from packhorse.client.errors import (
    InvalidRequestError,
    ServerShuttingDownError,
    ServerUnavailableError,
    TooManyStreamsError,
)
from packhorse.client.streams.stream import BinStream
from packhorse.client.transport import retries as retry_module
from packhorse.client.transport.requests import topology_message
from packhorse.formats import retry_policy
from packhorse.topology import StreamMode, Topology
from packhorse.v1 import packing_pb2 as pb

TOPOLOGY_FIELDS = {field.name for field in fields_of(Topology)}


class FakeClock:
    """Time that passes only in sleeps."""

    def __init__(self):
        self.now = 1000.0
        self.sleeps = []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.now += seconds


class Breaking:
    """A transport that hands out so many messages of each stream before it breaks; None lets it end."""

    target = "breaking"
    has_answered = True

    def __init__(self, backend, *breaks, error=ServerUnavailableError):
        self.backend = backend
        self.breaks = list(breaks)
        self.error = error
        self.requests = []

    def stream(self, method, request, timeout_seconds):
        copy = pb.StreamBinsRequest()
        copy.CopyFrom(request)
        self.requests.append(copy)
        left = self.breaks.pop(0) if self.breaks else None
        for message in getattr(self.backend, method.name)(request):
            if left == 0:
                raise self.error("broken")
            left = None if left is None else left - 1
            yield message
        if left is not None:
            raise self.error("broken at the end")


@pytest.fixture
def clock(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(retry_module, "time", clock)
    return clock


@pytest.fixture
def backend(embedded):
    return embedded._transport._backend


@pytest.fixture
def stream_of():
    """Function: a BinStream of a transport; keywords are fields of the request or of its Topology."""

    def build(transport, retry, **fields):
        topology = Topology(**{name: fields.pop(name) for name in list(fields) if name in TOPOLOGY_FIELDS})
        request = pb.StreamBinsRequest(topology=topology_message(topology), **({"dataset": "rows"} | fields))
        return BinStream(transport, request, topology, retry)

    return build


def test_any_breaks_lose_and_repeat_nothing(backend, clock, stream_of, joined):
    topology = {"world_size": 2, "workers_per_rank": 3, "batch_size": 2, "worker": 1, "rank": 1, "start_position": 9}
    for mode in StreamMode:
        fields = {**topology, "mode": mode}
        whole = joined(stream_of(Breaking(backend), RetryPolicy(), **fields))
        for seed in range(20):
            breaks = random.Random(seed).choices(range(6), k=12)
            transport = Breaking(backend, *breaks)
            assert joined(stream_of(transport, RetryPolicy(), **fields)) == whole
            digests = [request.expected_digest for request in transport.requests]
            opened = next(i for i, count in enumerate(breaks) if count > 0)
            assert set(digests[opened + 1 :]) <= {digests[-1]}
            assert set(digests[: opened + 1]) == {""}


def test_a_lost_end_is_no_loss(backend, clock, stream_of):
    fields = {"dataset": "few", "workers_per_rank": 5, "worker": 0}
    whole = Breaking(backend)
    list(stream_of(whole, RetryPolicy(), **fields))
    num_messages = len(list(backend.stream_bins(whole.requests[0])))
    transport = Breaking(backend, *[num_messages] * 3)
    stream = stream_of(transport, RetryPolicy(deadline_seconds=0), **fields)
    assert sum(len(block) for block in stream) == 1
    assert next(stream, None) is None
    assert len(transport.requests) == 1


@pytest.mark.parametrize("error", [ServerUnavailableError, ServerShuttingDownError, TooManyStreamsError])
def test_every_transient_error_is_tried_again(backend, clock, stream_of, error):
    stream = stream_of(Breaking(backend, 0, 1, 2, error=error), RetryPolicy())
    assert sum(len(block) for block in stream) == stream.header.num_bins
    assert len(clock.sleeps) == 3


def test_other_errors_are_not(backend, clock, stream_of):
    stream = stream_of(Breaking(backend, 2, error=InvalidRequestError), RetryPolicy())
    with pytest.raises(InvalidRequestError, match="broken"):
        list(stream)
    assert clock.sleeps == []


def test_the_deadline_counts_from_the_first_failure_without_progress(backend, clock, stream_of):
    policy = RetryPolicy(deadline_seconds=30)
    stream = stream_of(Breaking(backend, 2, 2, 0, 2), policy)
    for _ in range(4):
        next(stream)
        clock.now += 1000  # a client may take its time
    broken = stream_of(Breaking(backend, 3, *[1] * 1000), policy)
    next(broken)
    next(broken)
    start = clock.now
    with pytest.raises(StreamInterruptedError):
        next(broken)
    assert 20 < clock.now - start <= 30


def test_delays_grow_with_jitter_up_to_a_limit_and_heed_the_server(monkeypatch, clock):
    monkeypatch.setattr(retry_policy._JITTER, "uniform", lambda low, high: high)
    policy = RetryPolicy(deadline_seconds=100, first_delay_seconds=0.5, most_delay_seconds=3)
    attempts = retry_module.Attempts(policy, has_answered=lambda: True)
    for _ in range(5):
        assert attempts.wait_after(ServerUnavailableError("no"))
    assert clock.sleeps == [0.5, 1, 2, 3, 3]
    assert attempts.wait_after(TooManyStreamsError("full", retry_after_seconds=7.5))
    assert clock.sleeps[-1] == 7.5
    attempts.succeeded()
    assert attempts.wait_after(ServerUnavailableError("no"))
    assert clock.sleeps[-1] == 0.5
    assert not attempts.wait_after(TooManyStreamsError("full", retry_after_seconds=101))


def test_jitter_is_full(clock):
    policy = RetryPolicy(deadline_seconds=1e9, first_delay_seconds=1, most_delay_seconds=1)
    attempts = retry_module.Attempts(policy, has_answered=lambda: True)
    for _ in range(1200):  # more often than a float can double
        attempts.wait_after(ServerUnavailableError("no"))
    assert min(clock.sleeps) < 0.1
    assert max(clock.sleeps) > 0.9
    assert all(0 <= delay <= 1 for delay in clock.sleeps)


@pytest.mark.parametrize(
    "given",
    [
        {"deadline_seconds": -1},
        {"connect_seconds": float("nan")},
        {"first_delay_seconds": 0},
        {"most_delay_seconds": 0.01},
    ],
)
def test_policies_out_of_range(given):
    with pytest.raises(ValueError, match=next(iter(given))):
        RetryPolicy(**given)


@pytest.mark.parametrize(("worker", "blocks", "step"), [(0, 0, 0), (2, 0, 2), (0, 1, 3), (2, 2, 17), (1, 2, 16)])
def test_an_interrupted_stream_says_where_to_resume(backend, clock, stream_of, worker, blocks, step):
    fields = {
        "world_size": 2,
        "workers_per_rank": 3,
        "batch_size": 4,
        "worker": worker,
        "start_position": 13,
        "epoch": 6,
    }
    stream = stream_of(Breaking(backend, 1 + blocks, *[0] * 1000), RetryPolicy(deadline_seconds=3), **fields)
    for _ in range(blocks):
        next(stream)
    with pytest.raises(StreamInterruptedError, match=f"resume at position {13 + 8 * step} of epoch 6") as caught:
        next(stream)
    assert caught.value.step == step
    assert caught.value.position == 13 + 8 * step
    assert isinstance(caught.value.__cause__, ServerUnavailableError)
    assert "optimizer step" not in str(caught.value)


def test_an_interrupted_stream_with_a_balance_resumes_where_an_optimizer_step_begins(backend, clock, stream_of):
    fields = {"batch_size": 2, "accumulation": 4, "balance": "optimizer-step", "start_position": 3}
    stream = stream_of(Breaking(backend, 3, *[0] * 1000), RetryPolicy(deadline_seconds=3), **fields)
    delivered = [step for _ in range(2) for step in next(stream).steps]
    assert delivered == [0, 1, 2, 3, 4]
    with pytest.raises(
        StreamInterruptedError,
        match="resume at position 11 of epoch 0, where an optimizer step begins; its steps come again",
    ) as caught:
        next(stream)
    assert (caught.value.position, caught.value.step) == (11, 5)
