"""How long ranks wait: the measure against its definition, and an epoch's against its plan's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.epoch import Assignment
from packhorse.epoch.assignment.waiting import Waiting, idle_share, waiting_of, waiting_of_costs, waiting_of_plan
from packhorse.topology import Balance, Topology

COUNTS = {1: 400, 3: 300, 7: 200, 12: 90, 31: 40, 60: 9}


@given(st.tuples(*[st.integers(1, 4)] * 4), st.integers(0, 99))
def test_time_is_the_slowest_ranks_and_work_the_mean_ranks(shape, seed):
    costs = np.random.default_rng(seed).integers(1, 50, shape)
    times, works = [0, 0], [0.0, 0.0]
    for window in costs.tolist():
        sums = [[sum(batch) for batch in step] for step in window]  # [A][D]
        of_step = [[sum(step[rank] for step in sums) for rank in range(shape[2])]]  # [1][D]
        for where, waits in enumerate((sums, of_step)):
            times[where] += sum(max(ranks) for ranks in waits)
            works[where] += sum(sum(ranks) / len(ranks) for ranks in waits)
    found = Waiting.of_costs(costs)
    assert found.at_steps == pytest.approx(times[0] / works[0] - 1)
    assert found.at_optimizer_steps == pytest.approx(times[1] / works[1] - 1, abs=1e-12)
    assert found.at_steps >= found.at_optimizer_steps - 1e-12  # who waits once waits no longer
    assert idle_share(found.at_steps) == pytest.approx(1 - works[0] / times[0])


@pytest.mark.parametrize("balance", Balance)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_an_epochs_waiting_is_that_of_its_streams(prepared, balance, world_size, batch_size, accumulation):
    """What ranks really get, asked of the assignment. Keys differ, but not the sums of what a balance makes equal."""
    view = prepared(COUNTS, 64).view(seed=5)
    topology = Topology(
        world_size=world_size, batch_size=batch_size, accumulation=accumulation, balance=balance, remainder="drop"
    )
    window = accumulation * world_size * batch_size
    num_windows = view.num_bins // window
    assignment = Assignment(view, topology, seed=5)
    steps = range(num_windows * accumulation)
    of_ranks = [view.costs(assignment.bins(steps, rank).positions, 24_576) for rank in range(world_size)]
    costs = np.stack([each.reshape(num_windows, accumulation, batch_size) for each in of_ranks], axis=2)
    found = waiting_of(view, topology, [balance])
    streamed = Waiting.of_costs(costs)
    if balance is not Balance.OPTIMIZER_STEP:
        assert found[balance].at_steps == pytest.approx(streamed.at_steps)
    if balance is not Balance.MICRO_STEP:
        assert found[balance].at_optimizer_steps == pytest.approx(streamed.at_optimizer_steps)


def test_a_plan_waits_as_its_epoch_does(prepared):
    epoch = prepared(COUNTS, 64)
    topology = Topology(world_size=4, accumulation=3)
    assert waiting_of_plan(epoch.plan, topology) == waiting_of(epoch.view(), topology)


def test_balancing_shortens_the_wait_it_is_for():
    costs = np.random.default_rng(0).lognormal(20, 0.7, (8, 16 * 8)).astype(np.int64)
    found = waiting_of_costs(costs, Topology(world_size=8, accumulation=16))
    none, micro, optimizer = (found[balance] for balance in Balance)
    assert micro.at_steps < none.at_steps / 4
    assert optimizer.at_optimizer_steps < none.at_optimizer_steps / 100


def test_an_epoch_shorter_than_an_optimizer_step_is_not_measured(prepared):
    view = prepared({5: 3}, 5).view()
    assert waiting_of(view, Topology(world_size=2, accumulation=2)) is None
    assert waiting_of(view, Topology(world_size=3)) is not None


def test_an_optimizer_step_too_large_to_balance_is_refused(prepared):
    with pytest.raises(ValueError, match="world_size · batch_size · accumulation is 2,097,152"):
        waiting_of(prepared({5: 3}, 5).view(), Topology(world_size=1 << 20, accumulation=2))
