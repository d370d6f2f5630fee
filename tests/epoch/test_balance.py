"""Arrangements: permutations of an optimizer step that favour no rank; and how long ranks wait, by its definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.epoch import Assignment
from packhorse.epoch.balance import arrange
from packhorse.epoch.figures.waiting import Waiting, idle_share, waiting_of, waiting_of_costs, waiting_of_plan
from packhorse.topology import Balance, Topology

BALANCES = (Balance.MICRO_STEP, Balance.OPTIMIZER_STEP)


def waits(costs, arranged, balance):
    """Sum of the slowest rank's cost over all waits, beside the mean rank's: 0 where no rank waits."""
    of_ranks = np.take_along_axis(costs, arranged.reshape(len(costs), -1), axis=1).reshape(arranged.shape).sum(axis=3)
    if balance is Balance.OPTIMIZER_STEP:
        of_ranks = of_ranks.sum(axis=1)
    return of_ranks.max(axis=-1).sum() / of_ranks.mean(axis=-1).sum() - 1


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.sampled_from(BALANCES), st.data())
@settings(max_examples=200)
def test_every_bin_of_an_optimizer_step_once_whatever_it_costs(optimizer_steps, steps, ranks, batch, balance, data):
    shape = (optimizer_steps, steps * ranks * batch)
    top = data.draw(st.sampled_from([0, 1, 50, 2**50]))
    costs = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, top, shape, endpoint=True)
    keys = np.arange(optimizer_steps, dtype=np.uint64)
    arranged = arrange(costs, balance, steps, ranks, keys)
    assert arranged.shape == (optimizer_steps, steps, ranks, batch)
    assert (np.sort(arranged.reshape(shape), axis=1) == np.arange(shape[1])).all()
    for number in range(optimizer_steps):  # it is arranged alike, alone or among others
        alone = arrange(costs[number : number + 1], balance, steps, ranks, keys[number : number + 1])
        assert (alone[0] == arranged[number]).all()


def test_one_bin_a_rank_is_cut_from_the_sorted_optimizer_step():
    """For fixed bins and batch_size 1 that is optimal: no other way to cut it into steps waits less."""
    costs = np.array([[9, 1, 5, 7, 3, 8]])
    arranged = arrange(costs, Balance.MICRO_STEP, 3, 2, np.zeros(1, np.uint64))
    steps = sorted(tuple(sorted(costs[0][step].ravel().tolist())) for step in arranged[0])
    assert steps == [(1, 3), (5, 7), (8, 9)]


@pytest.mark.parametrize("balance", BALANCES)
@pytest.mark.parametrize("batch", [1, 4])
def test_ranks_wait_less_than_in_order(balance, batch):
    costs = np.random.default_rng(1).lognormal(20, 0.7, (8, 16 * 8 * batch)).astype(np.int64)
    in_order = np.broadcast_to(np.arange(costs.shape[1]), costs.shape).reshape(8, 16, 8, batch)
    balanced = waits(costs, arrange(costs, balance, 16, 8, np.arange(8, dtype=np.uint64)), balance)
    assert balanced < waits(costs, in_order, balance) / (4 if balance is Balance.MICRO_STEP else 100)


@pytest.mark.parametrize("balance", BALANCES)
def test_no_rank_is_always_the_slow_one(balance):
    """Every rank is the slowest about as often, of 2,000 times: chi-square of 7 degrees below its 99.9 % point."""
    costs = np.random.default_rng(2).lognormal(20, 0.7, (2000, 16)).astype(np.int64)
    arranged = arrange(costs, balance, 2, 8, np.arange(2000, dtype=np.uint64))
    of_ranks = np.take_along_axis(costs, arranged.reshape(2000, 16), axis=1).reshape(2000, 2, 8)
    slowest = of_ranks[:, 0].argmax(axis=1) if balance is Balance.MICRO_STEP else of_ranks.sum(axis=1).argmax(axis=1)
    seen = np.bincount(slowest, minlength=8)
    assert ((seen - 250) ** 2 / 250).sum() < 24.3


def test_steps_of_an_optimizer_step_come_in_no_order_of_cost():
    costs = np.random.default_rng(3).integers(1, 10**9, (500, 64))
    arranged = arrange(costs, Balance.MICRO_STEP, 16, 4, np.arange(500, dtype=np.uint64))
    sums = np.take_along_axis(costs, arranged.reshape(500, 64), axis=1).reshape(500, 16, 4).sum(axis=2)
    first_is = (sums < sums[:, :1]).sum(axis=1)  # how many steps cost less than the first
    assert 6.5 < first_is.mean() < 8.5  # 7.5 for random order, 0 or 15 for sorted


COUNTS = {1: 400, 3: 300, 7: 200, 12: 90, 31: 40, 60: 9}


@given(st.tuples(*[st.integers(1, 4)] * 4), st.integers(0, 99))
def test_time_is_the_slowest_ranks_and_work_the_mean_ranks(shape, seed):
    costs = np.random.default_rng(seed).integers(1, 50, shape)
    times, works = [0, 0], [0.0, 0.0]
    for optimizer_step in costs.tolist():
        sums = [[sum(batch) for batch in step] for step in optimizer_step]  # [A][D]
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
    size = accumulation * world_size * batch_size
    num_optimizer_steps = view.num_bins // size
    assignment = Assignment(view, topology, seed=5)
    steps = range(num_optimizer_steps * accumulation)
    of_ranks = [view.costs(assignment.bins(steps, rank).positions, 24_576) for rank in range(world_size)]
    costs = np.stack([each.reshape(num_optimizer_steps, accumulation, batch_size) for each in of_ranks], axis=2)
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
