"""How large a stream's blocks are."""

from itertools import pairwise

import pytest
from tests.flat_words import prepare
from tests.waiting import time_with

from packhorse.client.transport.requests import topology_message
from packhorse.prepare import Grouping
from packhorse.server.datasets.catalog import Catalog
from packhorse.server.datasets.mixtures import Mixtures
from packhorse.server.methods import open_stream as module
from packhorse.server.methods import sizes as message_sizes
from packhorse.server.methods.backend import Backend
from packhorse.server.methods.open_stream import LEAST_BLOCK_BYTES, STREAMS_BYTES, block_bytes
from packhorse.topology import Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import BIN_ARRAYS, WIRE_VERSION


@pytest.fixture(scope="module")
def make_backend(corpus):
    datasets = Mixtures(Catalog(corpus.root))
    return lambda **options: Backend(datasets, **options)


def request():
    return pb.StreamBinsRequest(
        dataset="rows", seed=3, topology=topology_message(Topology()), wire_version=WIRE_VERSION
    )


def test_all_streams_blocks_fit_into_their_memory():
    sizes = [block_bytes(number) for number in range(5000)]
    assert sizes[0] == sizes[1] == module.BLOCK_BYTES
    assert all(before >= after for before, after in pairwise(sizes))
    assert all(number * size <= STREAMS_BYTES or size == LEAST_BLOCK_BYTES for number, size in enumerate(sizes))
    assert 4 * sizes[1000] < 200_000  # a stream holds its block some four times


def test_the_bound_of_a_bin_without_a_template_counts_each_length_once(tmp_path):
    prepare(lengths=[8] * 6, output=tmp_path / "pairs", max_seq_len=16, grouping=Grouping(size=2), progress=False)
    datasets = Mixtures(Catalog(tmp_path))
    dataset = datasets.get("pairs")
    bins = Backend(datasets).get_bins(pb.GetBinsRequest(dataset="pairs", positions=[2], wire_version=WIRE_VERSION)).bins
    num_bytes = sum(len(getattr(bins, name)) for name in BIN_ARRAYS)
    assert not dataset.has_templates
    assert message_sizes.most_bytes_per_bin(dataset) == num_bytes + 4  # a position, which GetBins need not send


def test_blocks_shrink_where_many_streams_are_open_and_grow_again(make_backend, monkeypatch):
    monkeypatch.setattr(module, "UNREAD_BYTES", 0)
    monkeypatch.setattr(module, "LEAST_BLOCK_BYTES", 1)
    monkeypatch.setattr(module, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(module, "STREAMS_BYTES", 2000)
    open_streams = [1]
    stream = make_backend(num_streams=lambda: open_streams[0]).stream_bins(request())
    next(stream)
    steps = []
    for number in (1, 1, 1, 1, 10, 10, 1000, 1000, 10, 1, 1):
        open_streams[0] = number
        steps.append(next(stream).block.num_steps)
    few = steps[4]
    assert steps[3] // 10 <= few <= steps[3] // 4
    assert steps == [1, 4, 16, steps[3], few, few, 1, 1, 4, 16, steps[3]]


def test_blocks_stay_small_until_a_reader_must_have_read(make_backend, monkeypatch):
    """However fast they leave: they may all lie unread in the client's window."""
    monkeypatch.setattr(module, "LEAST_BLOCK_BYTES", 500)
    monkeypatch.setattr(module, "UNREAD_BYTES", 2000)
    stream = make_backend().stream_bins(request())
    next(stream)
    steps = [message.block.num_steps for message in stream]
    small = steps[3]
    num_small = steps.index(4 * small)
    assert steps[:num_small] == [1, 4, 16, *[small] * (num_small - 3)]
    assert sum(steps[: num_small - 1]) < 4 * (small + 1)
    assert sum(steps[:num_small]) >= 4 * small


def test_a_reader_that_takes_its_time_gets_no_more_than_it_takes_in_half_a_minute(make_backend, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module, "time", time_with(monotonic=lambda: now[0]))
    stream = make_backend().stream_bins(request())
    next(stream)
    steps = []
    for seconds_per_step in (0, 0, 2, 2, 10, 10, 100, 2, 2):
        steps.append(next(stream).block.num_steps)
        now[0] += seconds_per_step * steps[-1]
    assert steps == [1, 4, 16, 15, 15, 3, 3, 1, 4]
