"""Arrangements: permutations of a window that even out what ranks wait for, and favour no rank."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.epoch.assignment.balance import arrange
from packhorse.topology import Balance

BALANCES = (Balance.MICRO_STEP, Balance.OPTIMIZER_STEP)


def waits(costs, arranged, balance):
    """Sum of the slowest rank's cost over all waits, beside the mean rank's: 0 where no rank waits."""
    of_ranks = np.take_along_axis(costs, arranged.reshape(len(costs), -1), axis=1).reshape(arranged.shape).sum(axis=3)
    if balance is Balance.OPTIMIZER_STEP:
        of_ranks = of_ranks.sum(axis=1)
    return of_ranks.max(axis=-1).sum() / of_ranks.mean(axis=-1).sum() - 1


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.sampled_from(BALANCES), st.data())
@settings(max_examples=200)
def test_every_bin_of_a_window_once_whatever_it_costs(windows, steps, ranks, batch, balance, data):
    shape = (windows, steps * ranks * batch)
    top = data.draw(st.sampled_from([0, 1, 50, 2**50]))
    costs = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, top, shape, endpoint=True)
    keys = np.arange(windows, dtype=np.uint64)
    arranged = arrange(costs, balance, steps, ranks, keys)
    assert arranged.shape == (windows, steps, ranks, batch)
    assert (np.sort(arranged.reshape(shape), axis=1) == np.arange(shape[1])).all()
    for window in range(windows):  # a window is arranged alike, alone or among others
        alone = arrange(costs[window : window + 1], balance, steps, ranks, keys[window : window + 1])
        assert (alone[0] == arranged[window]).all()


def test_one_bin_a_rank_is_cut_from_the_sorted_window():
    """For fixed bins and batch_size 1 that is optimal: no other way to cut a window into steps waits less."""
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
    """Over 2,000 windows every rank is the slowest about as often: chi-square of 7 degrees below its 99.9 % point."""
    costs = np.random.default_rng(2).lognormal(20, 0.7, (2000, 16)).astype(np.int64)
    arranged = arrange(costs, balance, 2, 8, np.arange(2000, dtype=np.uint64))
    of_ranks = np.take_along_axis(costs, arranged.reshape(2000, 16), axis=1).reshape(2000, 2, 8)
    slowest = of_ranks[:, 0].argmax(axis=1) if balance is Balance.MICRO_STEP else of_ranks.sum(axis=1).argmax(axis=1)
    seen = np.bincount(slowest, minlength=8)
    assert ((seen - 250) ** 2 / 250).sum() < 24.3


def test_steps_of_a_window_come_in_no_order_of_cost():
    costs = np.random.default_rng(3).integers(1, 10**9, (500, 64))
    arranged = arrange(costs, Balance.MICRO_STEP, 16, 4, np.arange(500, dtype=np.uint64))
    sums = np.take_along_axis(costs, arranged.reshape(500, 64), axis=1).reshape(500, 16, 4).sum(axis=2)
    first_is = (sums < sums[:, :1]).sum(axis=1)  # how many steps cost less than the first
    assert 6.5 < first_is.mean() < 8.5  # 7.5 for random order, 0 or 15 for sorted
