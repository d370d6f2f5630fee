"""Packing without a dataset, as a client of a real server sees it; servers die in the middle of a PackStream."""

import inspect
import signal
import threading
from collections import Counter

import grpc
import numpy as np
import pytest
from tests.client.streams.interrupted import Interrupted

from packhorse.client import Client, PackStream, RetryPolicy, connect
from packhorse.client.errors import (
    InvalidRequestError,
    NotImplementedByServerError,
    ServerUnavailableError,
    TooManyStreamsError,
)
from packhorse.client.options import PackOptions
from packhorse.client.streams.pack_stream import SEQUENCES_PER_MESSAGE
from packhorse.client.transport.grpc_errors import _WITHOUT_REASON
from packhorse.packing import OnlinePacker
from packhorse.v1 import packing_pb2 as pb


@pytest.fixture(params=["client", "embedded"])
def either(request):
    """A client of a server, then one without."""
    return request.getfixturevalue(request.param)


def some(count, seed=1):
    return np.random.default_rng(seed).integers(16, 513, count)


def contents(bins):
    return Counter((i, n) for ids, lengths in bins for i, n in zip(ids.tolist(), lengths.tolist(), strict=True))


def test_lengths_at_once(either):
    lengths = some(500)
    bins = either.pack_sequences(lengths, 512, num_bins_multiple_of=8)
    assert len(bins) % 8 == 0
    assert all(len(b) and b.dtype == np.int64 and lengths[b].sum() <= 512 for b in bins)
    assert sorted(np.concatenate(bins).tolist()) == list(range(500))
    assert either.pack_sequences([], 512) == []
    assert [len(b) for b in either.pack_sequences([10] * 4, 40, align=16, extra_tokens=4)] == [2, 2]


@pytest.mark.parametrize(
    ("lengths", "options", "field"),
    [
        ([1, 0], {}, "lengths"),
        ([1, -1], {}, "lengths"),
        ([1, 513], {}, "lengths"),
        ([1, float("nan")], {}, "lengths"),
        (["1", "2"], {}, "lengths"),
        ([[1, 2]], {}, "lengths"),
        ([True], {}, "lengths"),
        ([2**40], {}, "lengths"),
        ([1, 2], {"packing": {"algorithm": "magic"}}, "algorithm"),
        ([1, 2], {"num_bins_multiple_of": 3}, "num_bins_multiple_of"),
        ([1, 2], {"packing": {"max_sequences_per_bin": -1}}, "max_sequences_per_bin"),
        ([1, 2], {"align": 600}, "align"),
    ],
)
def test_bad_lengths_at_once(either, lengths, options, field):
    with pytest.raises(InvalidRequestError, match=field) as caught:
        either.pack_sequences(lengths, 512, **(options | {"packing": PackOptions(**options.get("packing", {}))}))
    assert caught.value.metadata["field"] == field


def test_a_stream_looks_as_far_ahead_as_the_packer():
    looks_ahead = [
        inspect.signature(function).parameters["lookahead_sequences"].default
        for function in (Client.pack_stream, OnlinePacker)
    ]
    assert looks_ahead[0] == looks_ahead[1]


def test_a_stream_returns_every_sequence_once(either):
    lengths = some(3000)
    ids = np.random.default_rng(2).integers(-(2**63), 2**63 - 1, 3000)
    bins, sizes = [], []
    with either.pack_stream(512, lookahead_sequences=100, max_sequences_per_bin=5) as stream:
        assert isinstance(stream, PackStream)
        for start in range(0, 3000, 250):
            ready = stream.send(ids[start : start + 250], lengths[start : start + 250])
            sizes.append(len(ready))
            bins += ready
            assert stream.num_held <= 100
        assert all(sizes)
        bins += stream.flush()
        assert stream.num_held == 0
        assert stream.flush() == []
    assert contents(bins) == Counter(zip(ids.tolist(), lengths.tolist(), strict=True))
    assert all(b.dtype == np.int64 and n.dtype == np.int32 and n.sum() <= 512 and len(n) <= 5 for b, n in bins)
    assert lengths.sum() / 512 / len(bins) > 0.95


def test_both_transports_give_the_same_bins(client, embedded):
    def bins(one):
        with one.pack_stream(512, lookahead_sequences=64, align=8, extra_tokens=2) as stream:
            made = stream.send(range(900), np.minimum(some(900), 500)) + stream.flush()
        return [(ids.tolist(), lengths.tolist()) for ids, lengths in made]

    assert bins(client) == bins(embedded)


def test_more_sequences_than_one_message_takes(embedded):
    count = 2 * SEQUENCES_PER_MESSAGE + 5
    with embedded.pack_stream(100, lookahead_sequences=10) as stream:
        bins = stream.send(range(count), [50] * count) + stream.flush()
    assert sorted(i for ids, _ in bins for i in ids.tolist()) == list(range(count))


@pytest.mark.parametrize(
    ("ids", "lengths", "field"),
    [
        ([1, 2], [5, 0], "lengths"),
        ([1, 2], [5, -7], "lengths"),
        ([1, 2], [5, 101], "lengths"),
        ([1, 2], [5, 98], "lengths"),
        ([1, 2], [5], "lengths"),
        ([1], [5, 6], "lengths"),
        ([1, 2], [5, float("nan")], "lengths"),
        ([1, 2], [5.0, 6.0], "lengths"),
        ([1, 2], ["5", "6"], "lengths"),
        ([1, 2], [5, None], "lengths"),
        (["a", "b"], [5, 6], "ids"),
        ([1.5, 2], [5, 6], "ids"),
        ([1, 2**63], [5, 6], "ids"),
        ([[1, 2]], [5, 6], "ids"),
    ],
)
def test_bad_sequences_are_refused_and_none_is_kept(either, ids, lengths, field):
    with either.pack_stream(100, lookahead_sequences=5, extra_tokens=3) as stream:
        assert stream.send([7], [20]) == []
        with pytest.raises(InvalidRequestError, match=field) as caught:
            stream.send(ids, lengths)
        assert caught.value.metadata["field"] == field
        assert stream.num_held == 1
        assert contents(stream.send([8], [30]) + stream.flush()) == {(7, 20): 1, (8, 30): 1}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_seq_len": 0}, "max_seq_len"),
        ({"lookahead_sequences": 0}, "lookahead_sequences"),
        ({"lookahead_sequences": 10**6}, "lookahead_sequences"),
        ({"lookahead_sequences": "many"}, "lookahead_sequences"),
        ({"max_sequences_per_bin": -1}, "max_sequences_per_bin"),
        ({"align": 101}, "align"),
        ({"extra_tokens": 1.5}, "extra_tokens"),
    ],
)
def test_bad_options(either, options, field):
    def use():
        with either.pack_stream(**({"max_seq_len": 100} | options)) as stream:
            stream.send([1], [5])

    with pytest.raises(InvalidRequestError, match=field) as caught:
        use()
    assert caught.value.metadata["field"] == f"options.{field}"


@pytest.mark.parametrize("end", ["kill", pytest.param("terminate", marks=pytest.mark.long)])
def test_a_server_that_dies_loses_and_repeats_nothing(corpus, make_server, end):
    lengths = some(4000, seed=9)
    bins = []
    with make_server(corpus.root) as server, connect(server.target, retry=RetryPolicy(deadline_seconds=60)) as client:
        with client.pack_stream(512, lookahead_sequences=200) as stream:
            for number, start in enumerate(range(0, 4000, 100)):
                if number in (7, 20):
                    getattr(server, end)()
                    server.wait()
                    again = threading.Thread(target=server.start)  # while the client tries
                    again.start()
                bins += stream.send(range(start, start + 100), lengths[start : start + 100])
                if number in (7, 20):
                    again.join()
            getattr(server, end)()
            server.wait()
            again = threading.Thread(target=server.start)
            again.start()
            bins += stream.flush()
            again.join()
        assert contents(bins) == Counter(enumerate(lengths.tolist()))
        assert all(n.sum() <= 512 for _, n in bins)


def test_an_idle_stream_does_not_hold_up_a_shutdown(corpus, make_server):
    with make_server(corpus.root, "--grace-seconds", "600") as server, connect(server.target) as client:
        stream = client.pack_stream(512)
        stream.send([1], [5])
        server.terminate()
        assert server.wait() == 0
        assert "Traceback" not in server.log()
        stream.close()


@pytest.mark.realtime
def test_without_a_server_the_sequences_are_kept(corpus, make_server):
    with make_server(corpus.root) as server, connect(server.target, retry=RetryPolicy(deadline_seconds=0.3)) as client:
        stream = client.pack_stream(100, lookahead_sequences=2)
        assert stream.send([1, 2], [60, 50]) == []
        server.kill()
        with pytest.raises(ServerUnavailableError):
            stream.send([3], [40])
        with pytest.raises(ServerUnavailableError):
            stream.flush()
        assert stream.num_held in (2, 3)
        kept = stream.num_held
        server.start()
        patient = connect(server.target, retry=RetryPolicy(deadline_seconds=20))
        stream._transport, stream._attempts = patient._transport, patient.pack_stream(1)._attempts
        assert sum(len(ids) for ids, _ in stream.flush()) == kept == 3
        stream.close()
        patient.close()


def test_streams_count_towards_the_servers_limit(corpus, make_server, wait_until):
    with make_server(corpus.root, "--max-streams", "1") as server:
        impatient = connect(server.target, retry=RetryPolicy(deadline_seconds=0))
        with impatient.pack_stream(100) as stream:
            stream.send([1], [5])
            with pytest.raises(TooManyStreamsError):
                impatient.pack_stream(100).send([1], [5])

        def has_room():
            try:
                return impatient.pack_stream(100).send([1], [5]) == []
            except TooManyStreamsError:
                return False

        wait_until(has_room)
        impatient.close()


def test_a_stalled_server_answers_late_but_whole(corpus, make_server):
    with make_server(corpus.root) as server, connect(server.target) as client, client.pack_stream(100) as stream:
        stream.send([1], [60])
        server.process.send_signal(signal.SIGSTOP)
        threading.Timer(0.5, server.process.send_signal, [signal.SIGCONT]).start()
        assert contents(stream.send([2], [40]) + stream.flush()) == {(1, 60): 1, (2, 40): 1}


def test_an_older_server_without_the_method():
    assert _WITHOUT_REASON[grpc.StatusCode.UNIMPLEMENTED] is NotImplementedByServerError


@pytest.mark.parametrize("at", range(1, 9))
def test_an_interrupt_leaves_a_stream_that_goes_on(embedded, at):
    options = pb.PackStreamOptions(max_seq_len=100, lookahead_sequences=2)
    stream = PackStream(Interrupted(embedded._transport._backend, at), options, RetryPolicy())
    bins, sent = [], Counter()
    for number in range(6):
        held = stream.num_held
        try:
            bins += stream.send([number], [30 + number])
        except KeyboardInterrupt:
            if stream.num_held == held:  # it came before the sequence was taken
                bins += stream.send([number], [30 + number])
        sent[number, 30 + number] += 1
    try:
        bins += stream.flush()
    except KeyboardInterrupt:
        bins += stream.flush()
    assert contents(bins) == sent
