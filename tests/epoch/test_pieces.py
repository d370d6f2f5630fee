"""Pools whose entries are pieces of sequences: first tokens go wherever ids go; an id leads to all its pieces."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.epoch import Assignment, EpochView, PlanIndex
from packhorse.packing import pack_histogram
from packhorse.topology import RemainderPolicy


class Split:
    """Sequences cut into pieces of at most `limit` tokens, planned."""

    def __init__(self, lengths, limit, dtype=np.uint32):
        pieces = [
            (min(limit, length - start), number * 3, start)
            for number, length in enumerate(lengths)
            for start in range(0, length, limit)
        ]
        pieces.sort()
        self.counts = {n: sum(p[0] == n for p in pieces) for n in {p[0] for p in pieces}}
        self.plan = PlanIndex.build(pack_histogram(self.counts, limit).templates, self.counts, limit)
        self.lengths, ids, first_tokens = (np.array(part) for part in zip(*pieces, strict=True))
        self.pool, self.first_tokens = ids.astype(dtype), first_tokens.astype(dtype)

    def view(self, seed, epoch):
        return EpochView(self.plan, self.pool, seed=seed, epoch=epoch, first_tokens=self.first_tokens)

    def entries(self, seed, epoch):
        """The same epoch over a pool that names its own entries."""
        return EpochView(self.plan, np.arange(len(self.pool)), seed=seed, epoch=epoch)


@st.composite
def splits(draw):
    lengths = draw(st.lists(st.integers(1, 60), min_size=1, max_size=25))
    dtype = draw(st.sampled_from([np.uint32, np.int64]))
    return Split(lengths, draw(st.integers(1, 20)), dtype), draw(st.integers(0, 2**64 - 1)), draw(st.integers(0, 9))


@given(splits())
@settings(max_examples=80)
def test_starts_stand_beside_their_ids(drawn):
    split, seed, epoch = drawn
    view = split.view(seed, epoch)
    bins = view.bins(np.arange(view.num_bins))
    entries = split.entries(seed, epoch).bins(np.arange(view.num_bins)).ids
    assert bins.first_tokens.dtype == split.first_tokens.dtype
    assert sorted(entries.tolist()) == list(range(len(split.pool)))
    assert bins.ids.tolist() == split.pool[entries].tolist()
    assert bins.first_tokens.tolist() == split.first_tokens[entries].tolist()
    assert bins.lengths.tolist() == split.lengths[entries].tolist()
    assert EpochView(split.plan, split.pool, seed=seed, epoch=epoch).bins([0]).first_tokens is None


@given(splits(), st.lists(st.integers(-2, 80), max_size=12))
@settings(max_examples=80)
def test_locate_returns_every_piece_of_an_id_by_ascending_start(drawn, wanted):
    split, seed, epoch = drawn
    view = split.view(seed, epoch)
    bins = view.bins(np.arange(view.num_bins))
    places = {}
    for position, (begin, end) in enumerate(pairwise([0, *bins.bin_ends.tolist()])):
        for at in range(begin, end):
            piece = (int(bins.first_tokens[at]), int(bins.lengths[at]), position, at - begin)
            places.setdefault(int(bins.ids[at]), []).append(piece)
    expected = [(i, *piece) for i in wanted for piece in sorted(places.get(i, [(-1, -1, -1, -1)]))]
    found = view.locate(wanted)
    arrays = (found.ids, found.first_tokens, found.lengths, found.positions, found.index_in_bin)
    assert list(zip(*(a.tolist() for a in arrays), strict=True)) == expected


@given(splits(), st.data())
@settings(max_examples=80)
def test_every_remainder_policy_carries_starts(topologies, drawn, data):
    split, seed, epoch = drawn
    view = split.view(seed, epoch)
    topology = data.draw(topologies(view.num_bins))
    stream, entries = Assignment(view, topology), Assignment(split.entries(seed, epoch), topology)
    came = []
    for rank in range(topology.world_size):
        bins = stream.bins(range(stream.num_steps), rank)
        twin = entries.bins(range(stream.num_steps), rank)
        assert bins.bin_ends.tolist() == twin.bin_ends.tolist()
        assert bins.positions.tolist() == twin.positions.tolist()
        assert bins.ids.tolist() == split.pool[twin.ids].tolist()
        assert bins.first_tokens.tolist() == split.first_tokens[twin.ids].tolist()
        came += zip(bins.ids.tolist(), bins.first_tokens.tolist(), strict=True)
    if topology.remainder is RemainderPolicy.SPREAD and not topology.start_position:
        assert sorted(came) == sorted(zip(split.pool.tolist(), split.first_tokens.tolist(), strict=True))


def test_starts_of_another_size_are_refused():
    split = Split([7, 3], 4)
    with pytest.raises(ValueError, match="2 first_tokens for 3 ids"):
        EpochView(split.plan, split.pool, seed=0, epoch=0, first_tokens=split.first_tokens[:2])
