"""Streams of one epoch: disjoint and together complete for every topology, policy, start and number of workers.

Owns invariant 3, with and without a balance, and `Assignment.locate`; leaves continuing a stream to test_resume.
"""

import threading
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.epoch import Assignment
from packhorse.epoch import assignment as assignment_module
from packhorse.epoch._last_step import fill_last_step
from packhorse.topology import ADDED, Balance, RemainderPolicy, Topology


@pytest.fixture(scope="session")
def delivered(bins_of):
    """From an Assignment to what arrives: {(step, rank, slot): (position, ids, lengths)}, read worker by worker."""

    def read(stream, steps_at_once):
        topology, num_bins = stream.topology, stream.source.num_bins
        bins = {}
        for rank in range(topology.world_size):
            for worker in range(topology.workers_per_rank):
                steps = topology.worker_steps(worker, num_bins)
                for first in range(0, len(steps), steps_at_once):
                    some = steps[first : first + steps_at_once]
                    block = bins_of(stream.bins(some, rank))
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
    """Strategy: (Prepared, Assignment, steps read at once)."""

    @st.composite
    def draw_case(draw, policies=tuple(RemainderPolicy), balances=tuple(Balance)):
        small, seed, epoch = draw(epochs)
        view = small.view(seed, epoch)
        topology = draw(topologies(view.num_bins, policies, balances))
        return small, Assignment(view, topology, seed=seed, epoch=epoch), draw(st.integers(1, 4))

    return draw_case


def whole_epoch(stream, bins_of):
    return bins_of(stream.source.bins(np.arange(stream.source.num_bins)))


def test_full_steps_hold_the_epoch_in_order(case, delivered, bins_of):
    @given(case(balances=(Balance.NONE,)))
    @settings(max_examples=100)
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
    @settings(max_examples=100)
    def check(drawn):
        small, stream, at_once = drawn
        start = stream.topology.start_position
        expected = whole_epoch(stream, bins_of)[start:]
        bins = list(delivered(stream, at_once).values())
        pairs = Counter(pair for _, ids, lengths in bins for pair in zip(ids, lengths, strict=True))
        assert pairs == Counter(pair for _, ids, lengths in expected for pair in zip(ids, lengths, strict=True))
        assert all(count == 1 for count in pairs.values())
        positions = [position for position, _, _ in bins if position != ADDED]
        assert sorted(positions) == list(range(start, stream.source.num_bins))
        for _, ids, lengths in bins:
            assert sum(lengths) <= small.max_seq_len
            assert len(ids) <= min(small.limit, small.plan.max_sequences_per_bin)

    check()


def tail_of(stream, bins):
    """The bins of the partial step, rank by rank; nothing where the last step is full."""
    topology = stream.topology
    step = topology.num_full_steps(stream.source.num_bins)
    if step == stream.num_steps:
        return []
    return [[bins[step, r, s] for s in range(topology.batch_size)] for r in range(topology.world_size)]


def test_empty_adds_only_empty_bins(case, delivered, bins_of):
    @given(case((RemainderPolicy.EMPTY,), (Balance.NONE,)))
    @settings(max_examples=100)
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

    @given(case((RemainderPolicy.SPREAD,), (Balance.NONE,)))
    @settings(max_examples=100)
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
    stream = Assignment(view, Topology(world_size=3, batch_size=2))
    ranks = [bins_of(stream.bins(range(1, 2), rank)) for rank in range(3)]
    assert [[len(ids) for _, ids, _ in rank] for rank in ranks] == [[1, 0], [1, 0], [1, 0]]
    assert sorted(position for rank in ranks for position, _, _ in rank) == [ADDED] * 3 + [6, 7, 8]


def test_spread_halves_tokens(prepared, bins_of):
    """One bin of ten equal sequences over four ranks: 3, 2, 3 and 2 of them, by halving the fullest."""
    view = prepared({5: 10}, 50).view()
    stream = Assignment(view, Topology(world_size=4))
    sizes = [len(bins_of(stream.bins(range(1), rank))[0][1]) for rank in range(4)]
    assert sorted(sizes) == [2, 2, 3, 3]


def test_a_last_step_is_filled_once_for_all_ranks_and_ids(prepared, monkeypatch):
    """What a step costs does not grow with who asks for it: here 3 × 200 ranks and 100 positions."""
    calls = []
    monkeypatch.setattr(assignment_module, "fill_last_step", lambda *args: calls.append(1) or fill_last_step(*args))
    view = prepared({5: 600, 3: 500}, 16).view()
    stream = Assignment(view, Topology(world_size=200, batch_size=2))
    for rank in range(200):
        for _ in range(3):
            stream.bins(range(stream.num_steps - 1, stream.num_steps), rank)
    last = np.arange(view.num_bins - 100, view.num_bins)
    assert (stream.locate(last, np.zeros(100, np.int64)).steps >= 0).all()
    assert len(calls) == 1


def test_drop_leaves_out_exactly_what_it_reports(case, delivered, bins_of):
    @given(case((RemainderPolicy.DROP,)))
    @settings(max_examples=100)
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
    @settings(max_examples=75)
    def check(drawn):
        _, stream, at_once = drawn
        epoch = whole_epoch(stream, bins_of)
        bins = delivered(stream, at_once)
        own = sorted(one_bin for one_bin in bins.values() if one_bin[0] != ADDED)
        assert own == epoch[stream.topology.start_position :]
        added = sorted(one_bin[1:] for one_bin in bins.values() if one_bin[0] == ADDED)
        assert added == sorted(epoch[i % len(epoch)][1:] for i in range(len(added)))
        assert len(added) < stream.topology.bins_per_step

    check()


def test_place_tells_where_each_sequence_is_delivered(case, delivered, bins_of):
    @given(case())
    @settings(max_examples=75)
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
                places[member] = (step, rank, slot, index)
        wanted = [
            (position, index, member)
            for position, ids, _ in whole_epoch(stream, bins_of)
            for index, member in enumerate(ids)
        ]
        found = stream.locate(*(np.array(column, dtype=np.int64) for column in list(zip(*wanted, strict=True))[:2]))
        rows = zip(found.steps, found.ranks, found.slots, found.index_in_bin, strict=True)
        for (_, _, member), row in zip(wanted, rows, strict=True):
            assert tuple(map(int, row)) == places.get(member, (-1,) * 4)

    check()


def test_balancing_trains_every_optimizer_step_on_the_same_bins(case, delivered):
    """Against the same topology without a balance: window by window the same positions, ids and lengths."""

    @given(case(balances=(Balance.MICRO_STEP, Balance.OPTIMIZER_STEP)))
    @settings(max_examples=100)
    def check(drawn):
        _, stream, at_once = drawn
        plain = Assignment(stream.source, replace(stream.topology, balance=Balance.NONE))
        windows = [{}, {}]
        for window, one in zip(windows, (stream, plain), strict=True):
            for (step, _, _), one_bin in delivered(one, at_once).items():
                window.setdefault(step // stream.topology.accumulation, []).append(one_bin)
        assert {w: sorted(bins) for w, bins in windows[0].items()} == {
            w: sorted(bins) for w, bins in windows[1].items()
        }

    check()


def test_steps_of_many_windows_far_apart_are_remembered_within_bounds(prepared, monkeypatch):
    monkeypatch.setattr(assignment_module, "_CHUNK_BINS", 8)
    monkeypatch.setattr(assignment_module, "_MOST_BINS", 32)
    view = prepared({5: 900, 3: 500}, 16).view(3, 4)
    topology = Topology(world_size=2, batch_size=2, accumulation=2, balance="micro-step")
    bounded = Assignment(view, topology, seed=3, epoch=4)
    steps = range(0, bounded.num_steps, 3)
    backwards = [bounded.bins(range(step, step + 1), 1).positions.tolist() for step in reversed(steps)]
    monkeypatch.undo()
    whole = Assignment(view, topology, seed=3, epoch=4).bins(steps, 1)
    assert [p for batch in reversed(backwards) for p in batch] == whole.positions.tolist()
    remembered = [chunk for step in range(bounded.num_steps) if (chunk := bounded._chunks.find(step)) is not None]
    assert 0 < sum(chunk.offsets.size for chunk in remembered) <= 32


class Costly:
    """A source that counts how often it is asked for costs, and may be held up there.

    Args:
        source: any.
    """

    def __init__(self, source):
        self._source = source
        self.num_asked, self.gate, self.asked = 0, threading.Event(), threading.Event()
        self.gate.set()

    def __getattr__(self, name):
        return getattr(self._source, name)

    def costs(self, positions, cost_linear):
        self.num_asked += 1
        self.asked.set()
        assert self.gate.wait(20)
        return self._source.costs(positions, cost_linear)


@pytest.mark.parametrize("size", [{"batch_size": 2}, {"batch_schedule": "0:8 16:16 48:8 80:24"}])
def test_windows_are_arranged_one_chunk_after_the_other(prepared, monkeypatch, size):
    monkeypatch.setattr(assignment_module, "_CHUNK_BINS", 8)
    source = Costly(prepared({5: 900, 3: 500}, 16).view(3, 4))
    topology = Topology(world_size=2, accumulation=2, balance="micro-step", **size)
    topology = topology.of_epoch(0, num_bins=source.num_bins, max_seq_len=16)
    assignment = Assignment(source, topology, seed=3, epoch=4)
    steps = range(1, assignment.num_steps, 3)
    assert not assignment.is_arranged(steps)
    pieces = assignment.arrange(steps)
    for number in range(1, 6):
        next(pieces)
        assert source.num_asked == number
    list(pieces)
    assert assignment.is_arranged(steps)
    before = source.num_asked
    bins = assignment.bins(steps, 1)
    assert source.num_asked == before
    whole = Assignment(source, topology, seed=3, epoch=4).bins(steps, 1)
    assert bins.positions.tolist() == whole.positions.tolist()


def test_windows_that_are_arranged_do_not_wait_for_others(prepared, monkeypatch):
    monkeypatch.setattr(assignment_module, "_CHUNK_BINS", 8)
    source = Costly(prepared({5: 900, 3: 500}, 16).view(3, 4))
    assignment = Assignment(source, Topology(world_size=2, batch_size=4, balance="optimizer-step"), seed=3)
    list(assignment.arrange(range(1)))
    source.gate.clear()
    source.asked.clear()
    others = threading.Thread(target=lambda: list(assignment.arrange(range(1, 2))))
    others.start()
    assert source.asked.wait(20)
    assert assignment.is_arranged(range(1))
    assert len(assignment.bins(range(1), 0)) == 4  # while the next windows are being arranged
    assert others.is_alive()
    source.gate.set()
    others.join(20)


def test_a_long_last_step_is_filled_before_its_block(prepared, monkeypatch):
    view = prepared({5: 90, 3: 50}, 16).view(3, 4)
    topology = Topology(world_size=view.num_bins * 2)
    assert Assignment(view, topology).is_arranged(range(1)), "a short one is filled with its block"
    monkeypatch.setattr(assignment_module, "_FEW_SEQUENCES", 8)
    assignment = Assignment(view, topology)
    assert not assignment.is_arranged(range(1))
    assert len(list(assignment.arrange(range(1)))) == 1
    assert assignment.is_arranged(range(1))


def test_the_windows_of_one_block_are_remembered_together(prepared):
    view = prepared({5: 90, 3: 50}, 16).view(3, 4)
    wide = Assignment(view, Topology(world_size=1 << 13, batch_size=1 << 3, balance="micro-step"))
    assert 1 <= wide.most_steps * wide.topology.bins_per_step <= assignment_module._MOST_BINS // 2
    assert Assignment(view, Topology(world_size=1 << 20)).most_steps is None
    assert Assignment(view, Topology(world_size=1 << 20, balance="micro-step")).most_steps == 1
