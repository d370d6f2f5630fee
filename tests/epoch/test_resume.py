"""Going on from a position: the same as starting at 0 and skipping, whatever the number of workers (invariant 4)."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.epoch import Assignment, Topology
from packhorse.topology import RemainderPolicy


def steps_of(stream, rank, bins_of):
    """A rank's batches, one for each step."""
    return [bins_of(stream.bins(range(step, step + 1), rank)) for step in range(stream.num_steps)]


def test_start_after_a_step_equals_the_later_steps(epochs, topologies, bins_of):
    @given(epochs, st.data())
    @settings(max_examples=75)
    def check(drawn, data):
        small, seed, epoch = drawn
        view = small.view(seed, epoch)
        topology = data.draw(topologies(view.num_bins))
        stream = Assignment(view, topology)
        consumed = data.draw(st.integers(0, stream.num_steps))
        position = topology.position_after(consumed - 1, view.num_bins)
        into_window = topology.steps_into_optimizer_step(consumed - 1, view.num_bins)
        if consumed <= topology.num_full_steps(view.num_bins):
            whole_windows = consumed - into_window
            assert position == topology.start_position + whole_windows * topology.bins_per_step
        consumed -= into_window  # an optimizer step that was not finished comes again
        later = Assignment(view, replace(topology, start_position=position))
        assert later.num_steps == stream.num_steps - consumed
        for rank in range(topology.world_size):
            assert steps_of(later, rank, bins_of) == steps_of(stream, rank, bins_of)[consumed:]

    check()


def test_another_topology_goes_on_where_the_first_stopped(epochs, topologies, bins_of):
    """Elastic: what two runs of different shapes consume one after the other is the epoch, once."""

    @given(epochs, st.data())
    @settings(max_examples=60)
    def check(drawn, data):
        small, seed, epoch = drawn
        view = small.view(seed, epoch)
        policies = (RemainderPolicy.SPREAD, RemainderPolicy.EMPTY)
        first = Assignment(view, replace(data.draw(topologies(view.num_bins, policies)), start_position=0))
        consumed = data.draw(st.integers(0, first.num_steps))
        position = first.topology.position_after(consumed - 1, view.num_bins)
        consumed -= first.topology.steps_into_optimizer_step(consumed - 1, view.num_bins)
        shape = data.draw(topologies(view.num_bins, policies))
        second = Assignment(view, replace(shape, start_position=position))
        batches = [
            batch
            for stream, stop in ((first, consumed), (second, None))
            for rank in range(stream.topology.world_size)
            for batch in steps_of(stream, rank, bins_of)[:stop]
        ]
        ids = [member for batch in batches for _, members, _ in batch for member in members]
        assert sorted(ids) == sorted(small.pool.tolist())

    check()


def test_any_start_skips_exactly_the_positions_before_it(epochs, bins_of):
    @given(epochs, st.data())
    @settings(max_examples=60)
    def check(drawn, data):
        small, seed, epoch = drawn
        view = small.view(seed, epoch)
        start = data.draw(st.integers(0, view.num_bins))
        whole = bins_of(Assignment(view, Topology()).bins(range(view.num_bins), 0))
        stream = Assignment(view, Topology(start_position=start))
        assert bins_of(stream.bins(range(stream.num_steps), 0)) == whole[start:]

    check()


def test_blocks_are_their_steps_laid_end_to_end(epochs, topologies, bins_of):
    """A worker's block of many steps holds what the same steps hold alone; so no batch depends on the workers."""

    @given(epochs, st.data())
    @settings(max_examples=75)
    def check(drawn, data):
        small, seed, epoch = drawn
        view = small.view(seed, epoch)
        topology = data.draw(topologies(view.num_bins))
        stream = Assignment(view, topology)
        alone = Assignment(view, replace(topology, workers_per_rank=1))
        first_step = data.draw(st.integers(0, stream.num_steps))
        for rank in range(topology.world_size):
            batches = steps_of(alone, rank, bins_of)
            for worker in range(topology.workers_per_rank):
                steps = topology.worker_steps(worker, view.num_bins, first_step=first_step)
                block = bins_of(stream.bins(steps, rank))
                assert block == [one_bin for step in steps for one_bin in batches[step]]

    check()


def test_dtypes_survive_every_policy(prepared):
    for dtype in (np.uint32, np.int64):
        view = prepared({5: 7, 3: 4}, 9, dtype=dtype).view()
        for policy in RemainderPolicy:
            stream = Assignment(view, Topology(world_size=2, batch_size=2, remainder=policy))
            for rank in range(2):
                bins = stream.bins(range(stream.num_steps), rank)
                assert bins.ids.dtype == dtype
                assert (bins.lengths.dtype, bins.bin_ends.dtype, bins.positions.dtype) == (np.int32, np.int64, np.int64)
