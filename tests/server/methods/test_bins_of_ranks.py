"""Bins packed on demand for D ranks: bin k is rank k mod D's, and ranks wait for each other little."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.packing.on_demand.online import OnlineBin, OnlineItem
from packhorse.server.base.faults import ServiceError
from packhorse.server.methods.on_demand import rounds as module
from packhorse.server.methods.on_demand.bins_of_ranks import order_of_costs
from packhorse.server.methods.on_demand.rounds import Rounds
from packhorse.topology import Balance, Topology, cost_of

CAPACITIES = np.array([100])
"""Of the bins of every round here."""


def laid_out(bins):
    lengths = np.array([length for lengths in bins for length in lengths], dtype=np.int64)
    return lengths, np.cumsum([len(lengths) for lengths in bins], dtype=np.int64)


def cost(lengths, cost_linear):
    return sum(cost_linear * length + length**2 for length in lengths)


def of_ranks(bins, ranks):
    """Cost of each step's bins: [steps, D]."""
    lengths, ends = laid_out(bins)
    order = order_of_costs(cost_of(lengths, ranks.cost_linear), ends, ranks)
    assert sorted(order.tolist()) == list(range(len(bins)))
    return np.array([cost(bins[b], ranks.cost_linear) for b in order]).reshape(-1, ranks.world_size)


@st.composite
def cases(draw):
    world_size = draw(st.integers(2, 5))
    num_steps = draw(st.integers(1, 4))
    lengths = st.lists(st.integers(1, 500), max_size=4)
    bins = draw(st.lists(lengths, min_size=world_size * num_steps, max_size=world_size * num_steps))
    return bins, world_size, draw(st.integers(0, 1000))


@given(cases())
@settings(max_examples=200)
def test_each_steps_bins_are_neighbours_by_cost(case):
    bins, world_size, cost_linear = case
    ranks = Topology(world_size=world_size, balance=Balance.MICRO_STEP, cost_linear=cost_linear)
    steps = of_ranks(bins, ranks)
    in_order = steps[np.lexsort((steps.max(axis=1), steps.min(axis=1)))]
    assert (in_order[:-1].max(axis=1) <= in_order[1:].min(axis=1)).all()


@given(cases())
@settings(max_examples=200)
def test_ranks_sums_agree_as_nearly_as_one_bin_lets_them(case):
    bins, world_size, cost_linear = case
    ranks = Topology(world_size=world_size, balance=Balance.OPTIMIZER_STEP, cost_linear=cost_linear)
    steps = of_ranks(bins, ranks)
    assert np.ptp(steps.sum(axis=0)) <= steps.max()


def test_sums_that_can_agree_do():
    bins = [[length] for length in (9, 7, 8, 6, 5, 4, 3, 2)]  # 44 tokens
    ranks = Topology(world_size=2, balance=Balance.OPTIMIZER_STEP, cost_linear=10**9)  # as good as tokens alone
    sums = of_ranks(bins, ranks).sum(axis=0)
    tokens = sorted(round(total / 10**9) for total in sums.tolist())
    assert tokens == [22, 22]


def test_without_a_balance_bins_stay_in_the_packers_order():
    for ranks in (Topology(world_size=3), Topology(balance=Balance.MICRO_STEP)):
        assert order_of_costs(*laid_out([[3], [1], [2]]), ranks).tolist() == [0, 1, 2]
    assert order_of_costs(*laid_out([]), Topology(world_size=3, balance=Balance.MICRO_STEP)).tolist() == []


def test_no_rank_always_has_the_most():
    ranks = Topology(world_size=4, balance=Balance.MICRO_STEP, cost_linear=0)
    greatest = {int(of_ranks([[n], [n + 1], [n + 2], [n + 3]], ranks)[0].argmax()) for n in range(1, 40)}
    assert greatest == {0, 1, 2, 3}


def bin_of(numbers, lengths):
    """A bin of single sequences."""
    pairs = zip(numbers, lengths, strict=True)
    return OnlineBin([OnlineItem((number,), (length,), (length,)) for number, length in pairs])


def one(number):
    """A bin of two sequences."""
    return bin_of([2 * number, 2 * number + 1], [10 + number, 5])


def ids(bins):
    return [number for bin_ in bins for number in bin_.ids]


@pytest.mark.parametrize(("balance", "size"), [(Balance.NONE, 3), (Balance.MICRO_STEP, 6), (Balance.OPTIMIZER_STEP, 6)])
def test_bins_leave_in_rounds(balance, size):
    rounds = Rounds(Topology(world_size=3, accumulation=2, balance=balance, cost_linear=0), CAPACITIES)
    left = []
    for number in range(2 * size + 1):
        leaving = rounds.add([one(number)])
        assert len(leaving) == (size if (number + 1) % size == 0 else 0)
        left += leaving
        assert rounds.num_sequences == 2 * (number + 1) - len(ids(left))
    assert sorted(ids(left)) == list(range(4 * size))
    with pytest.raises(ServiceError, match="needs 3 bins, and there are only 2 sequences"):
        rounds.flush([])
    assert rounds.num_sequences == 2
    rest = rounds.flush([one(2 * size + 1)])
    assert (len(rest), rounds.num_sequences) == (3, 0)
    assert sorted(ids(left + rest)) == list(range(4 * size + 4))


def test_one_rank_waits_for_no_round():
    rounds = Rounds(Topology(accumulation=4, balance=Balance.MICRO_STEP), CAPACITIES)
    assert ids(rounds.add([one(0)])) == [0, 1]
    assert ids(rounds.flush([one(1), one(2)])) == [2, 3, 4, 5]


def test_a_flush_may_add_empty_bins():
    rounds = Rounds(Topology(world_size=4), CAPACITIES, allow_empty=True)
    assert rounds.add([bin_of([1], [9])]) == []
    assert [bin_.ids for bin_ in rounds.flush([])] == [[1], [], [], []]
    assert rounds.flush([]) == []


def test_the_bins_of_a_round_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_ROUND_SEQUENCES", 4)
    rounds = Rounds(Topology(world_size=8), CAPACITIES)
    rounds.add([one(0), one(1)])
    with pytest.raises(ServiceError, match="flush earlier") as caught:
        rounds.add([one(2)])
    assert caught.value.metadata == {"field": "options.accumulation", "limit": "4"}


@pytest.mark.parametrize("balance", [Balance.MICRO_STEP, Balance.OPTIMIZER_STEP])
def test_a_flush_of_more_than_a_round_evens_all_its_bins(balance):
    random = np.random.default_rng(1)
    rounds = Rounds(Topology(world_size=2, accumulation=3, balance=balance, cost_linear=0), CAPACITIES)
    lengths = random.integers(1, 20, size=60)
    bins = [
        bin_of(part.tolist(), lengths[part].tolist())
        for part in np.split(np.argsort(-lengths), 15)  # the longest together
    ]
    left = rounds.flush(bins)
    assert (sorted(ids(left)), len(left)) == (list(range(60)), 16)
    assert max(sum(bin_.lengths) for bin_ in left) <= 100
    costs = [cost(bin_.lengths, 0) for bin_ in left]
    assert max(costs) <= 1.05 * sum(costs) / 16 < cost(bins[0].lengths, 0) / 2
