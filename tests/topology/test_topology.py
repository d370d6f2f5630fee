"""The arithmetic of steps, ranks and workers, against the formulas of the design counted out one by one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.topology import Balance, RemainderPolicy, Topology


def test_steps_and_positions_counted_out(topologies):
    @given(st.data(), st.integers(0, 60))
    @settings(max_examples=200)
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
            if (step + 1) % topology.steps_per_optimizer_step == 0:
                assert topology.position_after(step, num_bins) == positions[-1] + 1
                assert topology.steps_into_optimizer_step(step, num_bins) == 0
            elif step + 1 < topology.num_steps(num_bins):
                done = topology.steps_into_optimizer_step(step, num_bins) * per_step
                assert topology.position_after(step, num_bins) == positions[-1] + 1 - done
        if tail and not dropped:
            assert topology.position_after(len(full), num_bins) == num_bins

    check()


def test_workers_take_turns(topologies):
    @given(st.data(), st.integers(0, 60), st.integers(0, 70))
    @settings(max_examples=200)
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


@pytest.mark.parametrize("name", ["world_size", "workers_per_rank", "batch_size"])
@pytest.mark.parametrize("value", [0, -1, 1.0, True, None, "2"])
def test_bad_numbers_are_named(name, value):
    with pytest.raises(ValueError, match=f"^{name} must be an integer of at least 1"):
        Topology(**{name: value})


@pytest.mark.parametrize("value", [-1, 1.0, True, None])
def test_bad_start_is_named(value):
    with pytest.raises(ValueError, match=r"^start_position must be an integer of at least 0"):
        Topology(start_position=value)


def test_start_beyond_the_end_is_named():
    assert Topology(start_position=7).num_steps(7) == 0
    with pytest.raises(ValueError, match=r"start_position must be in \[0, 7\], got 8"):
        Topology(start_position=8).num_steps(7)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("remainder", "most", "remainder must be one of spread, drop, repeat, empty, got 'most'"),
        ("mode", 3, "mode must be one of partition, independent, got 3"),
        ("balance", "step", "balance must be one of none, micro-step, optimizer-step, got 'step'"),
        ("cost_linear", -1, "cost_linear must be an integer of at least 0, got -1"),
        ("accumulation", 0, "accumulation must be an integer of at least 1, got 0"),
    ],
)
def test_bad_choices_are_named(field, value, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Topology(**{field: value})


def test_choices_by_name():
    topology = Topology(remainder="DROP", balance="micro_step", mode="Partition")
    assert (topology.remainder, topology.balance) == (RemainderPolicy.DROP, Balance.MICRO_STEP)


def test_independent_streams_have_nothing_to_balance():
    with pytest.raises(ValueError, match="balance must be none where mode is independent"):
        Topology(mode="independent", balance="micro-step")
    alone = Topology(world_size=8, workers_per_rank=4, batch_size=2, mode="independent")
    assert (alone.bins_per_step, alone.step_stride) == (2, 1)
    assert (alone.of_one_stream().bins_per_step, alone.of_one_stream().world_size) == (2, 1)


@pytest.mark.parametrize("field", ["remainder", "mode", "balance", "world_size", "cost_linear"])
def test_errors_quote_a_bounded_part_of_values(field):
    with pytest.raises(ValueError, match=f"^{field} must be .*, got 'xxx") as caught:
        Topology(**{field: "x" * 100_000})
    assert len(str(caught.value)) < 200
