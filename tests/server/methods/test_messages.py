"""Bins as they travel: every template defined once in a stream, and the same bins at the other end."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.client.streams._templates import ReceivedTemplates
from packhorse.client.streams.blocks import decode_bins
from packhorse.dataset import open_prepared
from packhorse.epoch import Bins, Component, EpochView, Mixture, SkipSource, Stage, WindowedView
from packhorse.server.methods import _sent_templates
from packhorse.server.methods._sent_templates import SentTemplates
from packhorse.server.methods.messages import encode
from packhorse.topology import ADDED, Skips, StreamMode, Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import KEPT_TEMPLATES, stream_positions

ID_TYPES = {"uint32": pb.ID_TYPE_UINT32, "int64": pb.ID_TYPE_INT64}
BOOK = {0: (9, 4), 1: (7,), 5: (3, 3, 3), KEPT_TEMPLATES - 1: (2, 1), KEPT_TEMPLATES: (6, 6), 1 << 40: (5,)}
"""Templates by number, some of which no stream remembers."""


@pytest.fixture(scope="module", params=[0, 32], autouse=True, ids=["arrays", "one by one"])
def few_bins(request):
    """Few bins are numbered one by one, many by arrays: both must agree with the reader."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_sent_templates, "_FEW_BINS", request.param)
        yield


def bins_of(numbers, *, adhoc=((),), dtype=np.uint32, positions=None, pieces=False):
    """Bins of the book's templates; one with number -1 has the next of the ad-hoc lengths, again and again."""
    lengths = [BOOK[number] if number >= 0 else adhoc[i % len(adhoc)] for i, number in enumerate(numbers)]
    flat = np.array([n for each in lengths for n in each], dtype=np.int32)
    ids = np.arange(len(flat), dtype=dtype) * 3 + 1
    return Bins(
        ids=ids,
        lengths=flat,
        bin_ends=np.cumsum([len(each) for each in lengths], dtype=np.int64),
        positions=np.arange(len(numbers)) if positions is None else np.array(positions, dtype=np.int64),
        first_tokens=ids + 7 if pieces else None,
        templates=np.array(numbers, dtype=np.int64),
    )


def sent(bins, known, positions=None):
    message = pb.Bins()
    encode(bins, message, 3, known.numbered(bins), positions)
    return message


def received(bins, message, templates):
    return decode_bins(message, ID_TYPES[str(bins.ids.dtype)], templates=templates, context=3)


def assert_same(block, bins):
    for name in ("ids", "lengths", "bin_ends"):
        np.testing.assert_array_equal(getattr(block, name), getattr(bins, name), err_msg=name)
    assert (block.ids.dtype, block.lengths.dtype, block.bin_ends.dtype) == (np.int64, np.int32, np.int64)
    if bins.first_tokens is not None and len(bins.ids):
        np.testing.assert_array_equal(block.first_tokens, bins.first_tokens)


@settings(max_examples=150)
@given(
    st.lists(st.lists(st.sampled_from([*BOOK, -1]), max_size=12), max_size=5),
    st.sampled_from([np.uint32, np.int64]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 9]),  # few bins are numbered one by one, many all at once
)
def test_a_stream_of_any_templates_arrives_as_it_was_sent(messages, dtype, pieces, knows_no_template, times):
    known, templates = SentTemplates(), ReceivedTemplates()
    for numbers in messages:
        bins = bins_of(numbers * times, adhoc=[(), (8, 1), (2,)], dtype=dtype, pieces=pieces)
        if knows_no_template:
            bins = Bins(**{name: getattr(bins, name) for name in Bins.__slots__} | {"templates": None})
        assert_same(received(bins, sent(bins, known), templates), bins)


def test_a_template_is_defined_once_in_a_stream():
    known, templates = SentTemplates(), ReceivedTemplates()
    first = sent(bins_of([5, 0, 5]), known)
    assert np.frombuffer(first.defined_templates, "<u4").tolist() == [0, 5]
    assert np.frombuffer(first.defined_lengths, "<i4").tolist() == [9, 4, 3, 3, 3]
    second = sent(bins_of([0, 1, KEPT_TEMPLATES, -1, 5]), known)
    assert np.frombuffer(second.defined_templates, "<u4").tolist() == [1, KEPT_TEMPLATES, KEPT_TEMPLATES + 1]
    third = sent(bins_of([KEPT_TEMPLATES, 0, 1]), known)
    assert np.frombuffer(third.defined_templates, "<u4").tolist() == [KEPT_TEMPLATES]
    assert third.ByteSize() == sum(len(getattr(third, name)) for name in (
        "ids", "templates", "defined_templates", "defined_sizes", "defined_lengths")) + 5 * 2 + 9  # fmt: skip
    for numbers, message in (([5, 0, 5], first), ([0, 1, KEPT_TEMPLATES, -1, 5], second)):
        assert_same(received(bins_of(numbers), message, templates), bins_of(numbers))
    with pytest.raises(Exception, match="not defined"):
        received(bins_of([0]), sent(bins_of([0]), known), ReceivedTemplates())


@pytest.mark.parametrize("positions", [[0, 1, 2], [10**12, ADDED, 10**12 + 2**31], [ADDED] * 3, [7, 7, 0]])
def test_positions_are_sent_where_the_reader_does_not_know_them(positions):
    bins = bins_of([0, 0, 1], positions=positions)
    told = sent(bins, SentTemplates(), np.array(positions))
    assert not told.position_offsets
    untold = sent(bins, SentTemplates(), np.array([3, 4, 5]))
    assert len(untold.position_offsets) == 12
    assert received(bins, untold, ReceivedTemplates()).positions.tolist() == positions


@pytest.mark.parametrize("mode", list(StreamMode))
def test_stream_positions_are_those_of_an_assignment(mode, embedded):
    topology = Topology(world_size=3, workers_per_rank=2, batch_size=4, start_position=5, mode=mode, remainder="drop")
    for block in embedded.stream_bins("rows", rank=2, worker=1, topology=topology):
        steps = np.array(block.steps)[:, None]
        begins = 5 + steps * 12 + 8 if mode is StreamMode.PARTITION else 5 + steps * 4
        expected = begins + np.arange(4)
        assert block.positions.tolist() == expected.ravel().tolist()
        assert stream_positions(topology, 2, block.steps.start, len(block)).tolist() == expected.ravel().tolist()


def test_sources_number_templates_by_their_lengths(corpus):
    """Bins of one number have the same lengths, in sources made of sources too, and other bins other numbers."""
    rows, cut = (open_prepared(corpus.root / name) for name in ("rows", "truncated"))

    def windowed(epoch):
        return WindowedView(cut.plan, cut.pool, seed=1, epoch=epoch, num_windows=4)

    parts = [
        Component.of("rows", rows_of(rows), num_templates=len(rows.plan.template_size)),
        Component.of("untold", rows_of(rows)),
        Component.of("truncated", windowed, num_templates=len(cut.plan.template_size)),
    ]
    mixture = Mixture(parts, [Stage({"rows": 2, "truncated": 1, "untold": 1})], seed=3, num_bins=120)
    for source in (parts[0].source_of(0), windowed(0), SkipSource(windowed(1), Skips.of([(3, 9)])), mixture.epoch(0)):
        bins = source.bins(np.arange(source.num_bins))
        lengths_of, start = {}, 0
        datasets = [0] * len(bins) if bins.component_ids is None else bins.component_ids.tolist()
        for dataset, number, end in zip(datasets, bins.templates.tolist(), bins.bin_ends.tolist(), strict=True):
            lengths = dataset, tuple(bins.lengths[start:end].tolist())
            assert (number < 0) == (dataset == 1)
            if number >= 0:
                assert lengths_of.setdefault(number, lengths) == lengths
            start = end
        assert len(set(lengths_of.values())) == len(lengths_of) > 1
        assert mixture.num_templates > max(lengths_of)
        assert_same(received(bins, sent(bins, SentTemplates()), ReceivedTemplates()), bins)


def rows_of(dataset):
    return lambda epoch: EpochView(dataset.plan, dataset.pool, seed=1, epoch=epoch)


@settings(max_examples=100)
@given(st.lists(st.lists(st.sampled_from([*BOOK, -1]), max_size=12), max_size=5))
def test_few_bins_are_numbered_as_many_are(blocks):
    one_by_one, by_arrays = SentTemplates(), SentTemplates()
    for numbers in blocks:
        bins = bins_of(numbers)
        with pytest.MonkeyPatch.context() as patch:
            found = []
            for few, sent_before in ((32, one_by_one), (0, by_arrays)):
                patch.setattr(_sent_templates, "_FEW_BINS", few)
                found.append(sent_before.numbered(bins))
        for field in ("numbers", "defining"):
            np.testing.assert_array_equal(getattr(found[0], field), getattr(found[1], field))
