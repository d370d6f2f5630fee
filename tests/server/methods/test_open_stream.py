"""Blocks of a stream that are made at the same time: the same as one by one, and what follows a failure."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from packhorse.client.transport.requests import topology_message
from packhorse.server.datasets.catalog import Catalog
from packhorse.server.datasets.mixtures import Mixtures
from packhorse.server.methods import open_stream
from packhorse.server.methods._sent_templates import SentTemplates
from packhorse.server.methods.backend import Backend
from packhorse.topology import Balance, RemainderPolicy, Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import WIRE_VERSION


@pytest.fixture(scope="module")
def backend(corpus):
    return Backend(Mixtures(Catalog(corpus.root)))


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def request(dataset="rows", balance=Balance.NONE):
    topology = Topology(
        world_size=2, batch_size=3, remainder=RemainderPolicy.SPREAD, balance=balance, accumulation=2, start_position=5
    )
    return pb.StreamBinsRequest(dataset=dataset, seed=3, topology=topology_message(topology), wire_version=WIRE_VERSION)


def taken(stream):
    """The steps of all of its blocks."""
    return list(iter(stream.take, range(0)))


@pytest.mark.parametrize("dataset", ["rows", "named", "truncated"])
@pytest.mark.parametrize("balance", Balance)
def test_blocks_made_side_by_side_are_those_made_one_by_one(backend, threads, monkeypatch, dataset, balance):
    monkeypatch.setattr(open_stream.OpenStream, "_steps_per_block", lambda *_: 1)
    header, *one_by_one = backend.stream_bins(request(dataset, balance))
    stream = backend.open_stream(request(dataset, balance))
    assert stream.header == header.header
    steps = taken(stream)
    assert len(steps) > 4
    for first in range(0, len(steps), 4):  # as many as there are threads, the last of them first
        later = [threads.submit(stream.make, each) for each in reversed(steps[first : first + 4])]
        assert [block.result(20) for block in reversed(later)] == one_by_one[first : first + 4]


@pytest.mark.parametrize("workers", [1, 2])
def test_positions_that_the_topology_tells_are_not_sent(corpus, workers):
    backend = Backend(Mixtures(Catalog(corpus.root)))
    for each in (3 - workers, workers):  # what is kept of the first serves the second
        stream = request()
        stream.topology.workers_per_rank = each
        _, *messages = backend.stream_bins(stream)
        assert len(messages) > 3
        assert [len(message.block.bins.position_offsets) for message in messages[:-1]] == [0] * (len(messages) - 1)


def test_a_block_waits_for_those_before_it_only_to_name_templates(backend, threads, monkeypatch):
    named, stream = threading.Event(), backend.open_stream(request())
    first, second, *_ = taken(stream)
    numbered = SentTemplates.numbered
    monkeypatch.setattr(SentTemplates, "numbered", lambda self, bins: named.set() or numbered(self, bins))
    later = threads.submit(stream.make, second)
    assert not named.wait(0.2)
    assert stream.make(first).block.first_step == first.start
    assert later.result(20).block.first_step == second.start


def test_what_waits_for_a_block_that_is_not_coming_is_let_go(backend, threads):
    for end in (lambda stream, _: stream.close(), lambda stream, steps: stream.make(steps)):
        stream = backend.open_stream(request())
        first, second, *_ = taken(stream)
        later = threads.submit(stream.make, second)
        if end(stream, first) is None:  # closed
            assert later.result(20) is None
        else:
            assert later.result(20).block.first_step == second.start


def test_a_failure_ends_the_stream_behind_it_and_not_before(backend, threads, monkeypatch):
    stream = backend.open_stream(request())
    first, second, third, *_ = taken(stream)
    bins = open_stream.as_declared

    def failing(made, manifest):
        if threading.current_thread().name == "fails":
            raise OSError("the disk is gone")
        return bins(made, manifest)

    monkeypatch.setattr(open_stream, "as_declared", failing)
    behind = threads.submit(stream.make, third)
    raised = []

    def fail():
        with pytest.raises(OSError, match="the disk is gone") as caught:
            stream.make(second)
        raised.append(caught)

    thread = threading.Thread(target=fail, name="fails")
    thread.start()
    thread.join(20)
    assert raised
    assert behind.result(20) is None
    assert stream.make(first).block.first_step == first.start


def test_how_far_a_block_reaches_is_told_before_files_are_looked_at(backend, monkeypatch):
    """Who changes a file between the two is told of the stream, or the stream of the change."""
    stream = backend.open_stream(request())
    progress = stream._request.progress
    begin, seen = progress.position, []
    is_current = stream.is_current
    monkeypatch.setattr(stream, "is_current", lambda: seen.append(progress.position) or is_current())
    first, second, *_ = taken(stream)
    stream.make(first)
    stream.make(second)
    assert begin < seen[0] < seen[1] == progress.position
