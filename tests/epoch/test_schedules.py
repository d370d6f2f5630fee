"""Epochs whose batch size changes: complete, disjoint, balanced within optimizer steps, resumed in any phase."""

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.epoch import Assignment
from packhorse.topology import ADDED, Balance, RemainderPolicy, Topology


def batches_of(stream, rank, bins_of):
    """A rank's batches by step, read worker by worker and some steps at once."""
    topology, batches = stream.topology, {}
    for worker in range(topology.workers_per_rank):
        steps = topology.worker_steps(worker, stream.source.num_bins)
        for some in (steps[:3], steps[3:]):
            bins = bins_of(stream.bins(some, rank))
            assert len(bins) == topology.num_rank_bins(some)
            for step in some:
                size = topology.stretch_of(step).batch_size
                batches[step], bins = bins[:size], bins[size:]
    return [batches[step] for step in range(stream.num_steps)]


@given(st.data())
@settings(max_examples=60)
def test_every_bin_and_sequence_once(epochs, scheduled, bins_of, data):
    small, seed, epoch = data.draw(epochs)
    view = small.view(seed, epoch)
    topology, _ = data.draw(scheduled(view.num_bins, policies=(RemainderPolicy.SPREAD, RemainderPolicy.EMPTY)))
    stream = Assignment(view, topology.of_epoch(0, num_bins=view.num_bins, max_seq_len=8), seed=seed, epoch=epoch)
    every = [one for rank in range(topology.world_size) for batch in batches_of(stream, rank, bins_of) for one in batch]
    positions = [position for position, _, _ in every if position != ADDED]
    assert sorted(positions) == list(range(topology.start_position, view.num_bins))
    own = bins_of(view.bins(np.arange(topology.start_position, view.num_bins)))
    assert Counter(i for _, ids, _ in every for i in ids) == Counter(i for _, ids, _ in own for i in ids)


@given(st.data())
@settings(max_examples=60)
def test_a_balance_moves_bins_within_their_optimizer_step(epochs, scheduled, bins_of, data):
    small, seed, epoch = data.draw(epochs)
    view = small.view(seed, epoch)
    policies, balances = (RemainderPolicy.DROP,), tuple(set(Balance) - {Balance.NONE})
    topology, _ = data.draw(scheduled(view.num_bins, policies=policies, balances=balances))
    topology = topology.of_epoch(0, num_bins=view.num_bins, max_seq_len=8)
    plain = replace(topology, balance="none")

    def optimizer_steps(shape):
        stream = Assignment(view, shape, seed=seed, epoch=epoch)
        found = Counter()
        for rank in range(shape.world_size):
            for step, batch in enumerate(batches_of(stream, rank, bins_of)):
                window = shape.position_after(step - 1, view.num_bins)
                found.update((window, position) for position, _, _ in batch)
        return found

    assert optimizer_steps(topology) == optimizer_steps(plain)


@given(st.data())
@settings(max_examples=60)
def test_going_on_from_a_position_with_other_ranks(epochs, scheduled, bins_of, data):
    """What is left comes in the same optimizer steps, whatever divides them."""
    small, seed, epoch = data.draw(epochs)
    view = small.view(seed, epoch)
    topology, _ = data.draw(scheduled(view.num_bins, policies=(RemainderPolicy.DROP,)))
    topology = topology.of_epoch(0, num_bins=view.num_bins, max_seq_len=8)
    stream = Assignment(view, topology, seed=seed, epoch=epoch)
    consumed = data.draw(st.integers(0, stream.num_steps))
    position = topology.position_after(consumed - 1, view.num_bins)
    consumed -= topology.steps_into_optimizer_step(consumed - 1, view.num_bins)
    later = Assignment(view, replace(topology, start_position=position), seed=seed, epoch=epoch)
    for rank in range(topology.world_size):
        assert batches_of(later, rank, bins_of) == batches_of(stream, rank, bins_of)[consumed:]
    alone = Assignment(view, replace(topology, start_position=position, world_size=1), seed=seed, epoch=epoch)
    merged = [
        sorted(one for rank in range(topology.world_size) for one in batches_of(stream, rank, bins_of)[step])
        for step in range(consumed, stream.num_steps)
    ]
    if topology.balance is Balance.NONE:
        assert [sorted(batch) for batch in batches_of(alone, 0, bins_of)] == merged


@given(st.data())
@settings(max_examples=60)
def test_places_are_where_sequences_come(epochs, scheduled, bins_of, data):
    small, seed, epoch = data.draw(epochs)
    view = small.view(seed, epoch)
    topology, _ = data.draw(scheduled(view.num_bins))
    stream = Assignment(view, topology.of_epoch(0, num_bins=view.num_bins, max_seq_len=8), seed=seed, epoch=epoch)
    came = {}
    for rank in range(topology.world_size):
        for step, batch in enumerate(batches_of(stream, rank, bins_of)):
            for slot, (_, ids, _) in enumerate(batch):
                came[step, rank, slot] = ids
    positions = np.arange(view.num_bins)
    bins = bins_of(view.bins(positions))
    places = stream.locate(positions, np.zeros(len(positions), dtype=np.int64))
    for position, step, rank, slot, index in zip(
        positions, places.steps, places.ranks, places.slots, places.index_in_bin, strict=True
    ):
        if step < 0:
            assert position < topology.start_position or topology.remainder is RemainderPolicy.DROP
        else:
            assert came[step, rank, slot][index] == bins[position][1][0]


def test_a_stage_begins_with_an_optimizer_step():
    topology = Topology(world_size=2, accumulation=2, batch_schedule="0:8 10:4")
    assert [topology.position_after(step, 30) for step in range(6)] == [0, 8, 8, 16, 16, 20]
    assert [topology.stretch_of(step).batch_size for step in range(6)] == [2, 2, 2, 2, 1, 1]
