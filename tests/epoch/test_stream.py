"""Streams of one epoch: disjoint and together complete for every topology, policy, start and number of workers.

Owns invariant 3 and `EpochStream.place`; leaves continuing a stream to test_resume.
"""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.epoch import ADDED, EpochStream, RemainderPolicy, Topology
from packhorse.epoch import stream as stream_module
from packhorse.epoch.spread import deal


@pytest.fixture(scope="session")
def delivered(bins_of):
    """From an EpochStream to what arrives: {(step, rank, slot): (position, ids, lengths)}, read worker by worker."""

    def read(stream, steps_at_once):
        topology, num_bins = stream.topology, stream.view.num_bins
        bins = {}
        for rank in range(topology.world_size):
            for worker in range(topology.workers_per_rank):
                steps = topology.worker_steps(worker, num_bins)
                for first in range(0, len(steps), steps_at_once):
                    some = steps[first : first + steps_at_once]
                    block = bins_of(stream.read(some, rank))
                    assert len(block) == len(some) * topology.batch_size
                    for index, one_bin in enumerate(block):
                        step, slot = some[index // topology.batch_size], index % topology.batch_size
                        assert (step, rank, slot) not in bins
                        bins[step, rank, slot] = one_bin
        wanted = stream.num_steps * topology.bins_per_step
        assert len(bins) == wanted, "every rank gets the same number of full batches"
        return bins

    return read


@pytest.fixture(scope="session")
def case(epochs, topologies):
    """Strategy: (Prepared, EpochStream, steps read at once)."""

    @st.composite
    def draw_case(draw, policies=tuple(RemainderPolicy)):
        small, seed, epoch = draw(epochs)
        view = small.view(seed, epoch)
        topology = draw(topologies(view.num_bins, policies))
        return small, EpochStream(view, topology), draw(st.integers(1, 4))

    return draw_case


def whole_epoch(stream, bins_of):
    return bins_of(stream.view.bins(np.arange(stream.view.num_bins)))


def test_full_steps_hold_the_epoch_in_order(case, delivered, bins_of):
    @given(case())
    @settings(max_examples=100, deadline=None)
    def check(drawn):
        _, stream, at_once = drawn
        topology = stream.topology
        epoch = whole_epoch(stream, bins_of)
        for (step, rank, slot), one_bin in delivered(stream, at_once).items():
            offset = step * topology.bins_per_step + rank * topology.batch_size + slot
            if step < topology.num_full_steps(len(epoch)):
                assert one_bin == epoch[topology.start_position + offset]

    check()


def test_every_sequence_from_the_start_on_exactly_once(case, delivered, bins_of):
    """SPREAD and EMPTY: none lost, none repeated, each with its length; every position once; limits kept."""

    @given(case((RemainderPolicy.SPREAD, RemainderPolicy.EMPTY)))
    @settings(max_examples=250, deadline=None)
    def check(drawn):
        small, stream, at_once = drawn
        start = stream.topology.start_position
        expected = whole_epoch(stream, bins_of)[start:]
        bins = list(delivered(stream, at_once).values())
        pairs = Counter(pair for _, ids, lengths in bins for pair in zip(ids, lengths, strict=True))
        assert pairs == Counter(pair for _, ids, lengths in expected for pair in zip(ids, lengths, strict=True))
        assert all(count == 1 for count in pairs.values())
        positions = [position for position, _, _ in bins if position != ADDED]
        assert sorted(positions) == list(range(start, stream.view.num_bins))
        for _, ids, lengths in bins:
            assert sum(lengths) <= small.max_seq_len
            assert len(ids) <= min(small.limit, small.plan.max_sequences_per_bin)

    check()


def tail_of(stream, bins):
    """The bins of the partial step, rank by rank; nothing where the last step is full."""
    topology = stream.topology
    step = topology.num_full_steps(stream.view.num_bins)
    if step == stream.num_steps:
        return []
    return [[bins[step, r, s] for s in range(topology.batch_size)] for r in range(topology.world_size)]


def test_empty_adds_only_empty_bins(case, delivered, bins_of):
    @given(case((RemainderPolicy.EMPTY,)))
    @settings(max_examples=100, deadline=None)
    def check(drawn):
        _, stream, at_once = drawn
        epoch = whole_epoch(stream, bins_of)
        num_tail = stream.topology.num_tail_bins(len(epoch))
        tail = [one_bin for rank in tail_of(stream, delivered(stream, at_once)) for one_bin in rank]
        assert tail[:num_tail] == (epoch[-num_tail:] if num_tail else [])
        assert all(one_bin == (ADDED, (), ()) for one_bin in tail[num_tail:])

    check()


def test_spread_leaves_no_rank_idle(case, delivered, bins_of):
    """Places stay empty only for want of sequences, and then every rank has as many bins as any other, or one less."""

    @given(case((RemainderPolicy.SPREAD,)))
    @settings(max_examples=250, deadline=None)
    def check(drawn):
        _, stream, at_once = drawn
        epoch = whole_epoch(stream, bins_of)
        ranks = tail_of(stream, delivered(stream, at_once))
        if not ranks:
            return
        filled = [sum(1 for _, ids, _ in rank if ids) for rank in ranks]
        num_sequences = sum(len(ids) for rank in ranks for _, ids, _ in rank)
        assert sum(filled) == min(num_sequences, stream.topology.bins_per_step)
        assert max(filled) - min(filled) <= 1
        num_tail = stream.topology.num_tail_bins(len(epoch))
        for position, ids, _ in (one_bin for rank in ranks for one_bin in rank):
            whole = [old for _, old, _ in epoch[-num_tail:] if set(ids) <= set(old)]
            assert whole, "bins are split, never mixed"
            if position != ADDED:
                kept = [i for i in epoch[position][1] if i in ids]
                assert kept == list(ids), "what a bin keeps stays in its order"
                assert ids

    check()


def test_spread_moves_bins_that_cannot_be_split(prepared, bins_of):
    """Three bins of one sequence, two places for each of three ranks: each rank gets one, not two, one and none."""
    view = prepared({9: 9}, 9).view()
    stream = EpochStream(view, Topology(world_size=3, batch_size=2))
    ranks = [bins_of(stream.read(range(1, 2), rank)) for rank in range(3)]
    assert [[len(ids) for _, ids, _ in rank] for rank in ranks] == [[1, 0], [1, 0], [1, 0]]
    assert sorted(position for rank in ranks for position, _, _ in rank) == [ADDED] * 3 + [6, 7, 8]


def test_spread_halves_tokens(prepared, bins_of):
    """One bin of ten equal sequences over four ranks: 3, 2, 3 and 2 of them, by halving the fullest."""
    view = prepared({5: 10}, 50).view()
    stream = EpochStream(view, Topology(world_size=4))
    sizes = [len(bins_of(stream.read(range(1), rank))[0][1]) for rank in range(4)]
    assert sorted(sizes) == [2, 2, 3, 3]


def test_spread_deals_once_for_all_ranks_and_ids(prepared, monkeypatch):
    """What a step costs does not grow with who asks for it: here 3 streams, of 200 ranks each, and 300 ids."""
    calls = []
    monkeypatch.setattr(stream_module, "deal", lambda tail, topology: calls.append(1) or deal(tail, topology))
    view = prepared({5: 600, 3: 500}, 16).view()
    for _ in range(3):
        stream = EpochStream(view, Topology(world_size=200, workers_per_rank=2, batch_size=2))
        for rank in range(200):
            stream.read(range(stream.num_steps - 1, stream.num_steps), rank)
        for position in range(view.num_bins - 100, view.num_bins):
            assert stream.place(position, 0)
    assert len(calls) == 1
    EpochStream(view, Topology(world_size=300, batch_size=2)).read(range(1), 0)
    assert len(calls) == 2


def test_drop_leaves_out_exactly_what_it_reports(case, delivered, bins_of):
    @given(case((RemainderPolicy.DROP,)))
    @settings(max_examples=100, deadline=None)
    def check(drawn):
        _, stream, at_once = drawn
        epoch = whole_epoch(stream, bins_of)
        num_dropped = stream.topology.num_bins_dropped(len(epoch))
        bins = sorted(delivered(stream, at_once).values())
        assert bins == epoch[stream.topology.start_position : len(epoch) - num_dropped]
        assert num_dropped < stream.topology.bins_per_step

    check()


def test_repeat_repeats_exactly_the_first_positions(case, delivered, bins_of):
    @given(case((RemainderPolicy.REPEAT,)))
    @settings(max_examples=150, deadline=None)
    def check(drawn):
        _, stream, at_once = drawn
        epoch = whole_epoch(stream, bins_of)
        bins = delivered(stream, at_once)
        own = sorted(one_bin for one_bin in bins.values() if one_bin[0] != ADDED)
        assert own == epoch[stream.topology.start_position :]
        added = [one_bin[1:] for _, one_bin in sorted(bins.items()) if one_bin[0] == ADDED]
        assert added == [epoch[i % len(epoch)][1:] for i in range(len(added))]
        assert len(added) < stream.topology.bins_per_step

    check()


def test_place_tells_where_each_sequence_is_delivered(case, delivered, bins_of):
    @given(case())
    @settings(max_examples=150, deadline=None)
    def check(drawn):
        _, stream, at_once = drawn
        topology = stream.topology
        repeated = topology.remainder is RemainderPolicy.REPEAT
        places = {}
        for (step, rank, slot), (position, ids, _) in delivered(stream, at_once).items():
            if repeated and position == ADDED:
                continue  # the second time; the first is the sequence's place
            for index, member in enumerate(ids):
                assert member not in places
                places[member] = (step, rank, step % topology.workers_per_rank, slot, index)
        for position, ids, _ in whole_epoch(stream, bins_of):
            for index, member in enumerate(ids):
                place = stream.place(position, index)
                found = place and (place.step, place.rank, place.worker, place.slot, place.index_in_bin)
                assert found == places.get(member)

    check()
