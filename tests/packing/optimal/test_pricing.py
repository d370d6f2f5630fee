"""Pricing against plain dynamic programming, and that the bins it names are worth what it says."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.packing.optimal._budget import Budget, OutOfTimeError, OutOfWorkError
from packhorse.packing.optimal._pricing import price


@st.composite
def priced_lengths(draw):
    capacity = draw(st.integers(1, 60))
    lengths = sorted(draw(st.sets(st.integers(1, capacity), min_size=1, max_size=12)), reverse=True)
    prices = draw(st.lists(st.integers(0, 50), min_size=len(lengths), max_size=len(lengths)))
    limit = draw(st.integers(1, 14) | st.just(capacity))
    return lengths, prices, capacity, limit


def greatest_worth(lengths, prices, capacity, limit):
    """One round for each sequence of the bin."""
    best = [0] * (capacity + 1)
    for _ in range(limit):
        best = [
            max([best[c]] + [best[c - n] + p for n, p in zip(lengths, prices, strict=True) if n <= c])
            for c in range(capacity + 1)
        ]
    return best


@given(priced_lengths())
@settings(max_examples=300)
def test_worth_of_a_bin_with_each_length(case):
    lengths, prices, capacity, limit = case
    pricing = price(np.array(lengths), np.array(prices), capacity, limit, Budget(10**12, math.inf))
    beside = greatest_worth(lengths, prices, capacity, limit - 1)
    assert pricing.worth_with.tolist() == [p + beside[capacity - n] for n, p in zip(lengths, prices, strict=True)]
    assert pricing.best_worth == max(pricing.worth_with)
    if any(prices):
        assert pricing.best_worth == greatest_worth(lengths, prices, capacity, limit)[capacity]


@given(priced_lengths())
@settings(max_examples=300)
def test_bins_are_worth_what_pricing_says(case):
    lengths, prices, capacity, limit = case
    pricing = price(np.array(lengths), np.array(prices), capacity, limit, Budget(10**12, math.inf))
    for index in range(len(lengths)):
        runs = pricing.bin_with(index)
        assert [i for i, _ in runs] == sorted({i for i, _ in runs})
        assert index in dict(runs)
        assert all(copies >= 1 for _, copies in runs)
        assert sum(copies for _, copies in runs) <= limit
        assert sum(copies * lengths[i] for i, copies in runs) <= capacity
        assert sum(copies * prices[i] for i, copies in runs) == pricing.worth_with[index]


def test_prices_near_the_largest_integers_are_exact():
    """Floats would round 2^60 + 1 away."""
    pricing = price(np.array([3, 2]), np.array([2**60 + 1, 2**59]), 6, 6, Budget(10**12, math.inf))
    assert pricing.best_worth == 2**61 + 2
    assert pricing.bin_with(0) == ((0, 2),)


@pytest.mark.parametrize("limit", [4000, 5])
def test_the_budget_ends_it(limit):
    lengths = np.arange(4000, 0, -1)
    with pytest.raises(OutOfTimeError):
        price(lengths, lengths, 4000, limit, Budget(10**12, -math.inf))
    with pytest.raises(OutOfWorkError):
        price(lengths, lengths, 4000, limit, Budget(1000, math.inf))
