"""The arithmetic of steps, ranks and workers, against the formulas of the design counted out one by one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.epoch import EpochStream, RemainderPolicy, Topology


def test_steps_and_positions_counted_out(topologies):
    @given(st.data(), st.integers(0, 60))
    @settings(max_examples=200, deadline=None)
    def check(data, num_bins):
        topology = data.draw(topologies(num_bins))
        left = list(range(topology.start_position, num_bins))
        per_step = topology.world_size * topology.batch_size
        steps = [left[i : i + per_step] for i in range(0, len(left), per_step)]
        full = [step for step in steps if len(step) == per_step]
        tail = steps[-1] if len(steps) > len(full) else []
        dropped = topology.remainder is RemainderPolicy.DROP
        assert topology.bins_per_step == per_step
        assert topology.num_left(num_bins) == len(left)
        assert topology.num_full_steps(num_bins) == len(full)
        assert topology.num_tail_bins(num_bins) == len(tail)
        assert topology.num_steps(num_bins) == (len(full) if dropped else len(steps))
        assert topology.num_bins_dropped(num_bins) == (len(tail) if dropped else 0)
        for step, positions in enumerate(full):
            by_rank = [topology.positions(range(step, step + 1), r)[0].tolist() for r in range(topology.world_size)]
            assert [p for rank in by_rank for p in rank] == positions
            assert topology.position_after(step, num_bins) == positions[-1] + 1
        if tail:
            assert topology.position_after(len(full), num_bins) == num_bins
        for offset in range(per_step):
            rank, slot = topology.place(offset)
            assert rank * topology.batch_size + slot == offset
            assert 0 <= slot < topology.batch_size

    check()


def test_workers_take_turns(topologies):
    @given(st.data(), st.integers(0, 60), st.integers(0, 70))
    @settings(max_examples=200, deadline=None)
    def check(data, num_bins, first_step):
        topology = data.draw(topologies(num_bins))
        every = range(topology.num_steps(num_bins))
        for worker in range(topology.workers_per_rank):
            own = [step for step in every if topology.worker_of(step) == worker]
            assert own == [step for step in every if step % topology.workers_per_rank == worker]
            assert list(topology.worker_steps(worker, num_bins)) == own
            later = topology.worker_steps(worker, num_bins, first_step=first_step)
            assert list(later) == [step for step in own if step >= first_step]

    check()


def test_batches_of_strided_steps():
    topology = Topology(world_size=3, batch_size=2, start_position=5)
    assert topology.positions(range(1, 6, 2), 1).tolist() == [[13, 14], [25, 26], [37, 38]]


@pytest.mark.parametrize("name", ["world_size", "workers_per_rank", "batch_size"])
@pytest.mark.parametrize("value", [0, -1, 1.0, True, None, "2"])
def test_bad_numbers_are_named(name, value):
    with pytest.raises(ValueError, match=f"^{name} must be an integer of at least 1"):
        Topology(**{name: value})


@pytest.mark.parametrize("value", [-1, 1.0, True, None])
def test_bad_start_is_named(value):
    with pytest.raises(ValueError, match=r"^start_position must be an integer of at least 0"):
        Topology(start_position=value)


def test_start_beyond_the_end_is_named(prepared):
    view = prepared({5: 7}, 9).view()
    assert EpochStream(view, Topology(start_position=7)).num_steps == 0
    with pytest.raises(ValueError, match=r"start_position must be in \[0, 7\], got 8"):
        EpochStream(view, Topology(start_position=8))
