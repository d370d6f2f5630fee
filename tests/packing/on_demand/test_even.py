"""Packs that cost the same, under every cap, with every item once."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.packing import even_bins
from packhorse.packing.on_demand.even import even_packs

A = 24_576
"""Cost of a token beside attention."""


def best_fit(sizes, capacities):
    """The bins of items under caps, one item after the other into the first bin with room: a valid start."""
    free, packs = [], []
    for size in sizes:
        at = next((i for i, room in enumerate(free) if (size <= room).all()), len(free))
        if at == len(free):
            free.append(capacities.copy())
        free[at] = free[at] - size
        packs.append(at)
    return np.array(packs, dtype=np.int64), len(free)


@st.composite
def problems(draw):
    """(sizes [M, d], costs [M], capacities [d])."""
    capacities = np.array(draw(st.lists(st.integers(5, 60), min_size=1, max_size=3)), dtype=np.int64)
    num = draw(st.integers(1, 40))
    sizes = np.array(
        [[draw(st.integers(int(not cap), int(limit))) for cap, limit in enumerate(capacities)] for _ in range(num)]
    )
    return sizes, np.array(draw(st.lists(st.integers(0, 1000), min_size=num, max_size=num))), capacities


@settings(max_examples=150, deadline=None)
@given(problems(), st.integers(0, 4))
def test_no_pair_of_packs_can_come_nearer(problem, num_more):
    sizes, costs, capacities = problem
    start, num_packs = best_fit(sizes, capacities)
    num_packs += num_more
    packs = even_packs(sizes, costs, capacities, start, num_packs)
    free = np.tile(capacities, (num_packs, 1))
    np.subtract.at(free, packs, sizes)
    assert (free >= 0).all()
    assert packs.min() >= 0
    of_packs = np.bincount(packs, costs, num_packs).astype(np.int64)
    close = int(of_packs.sum()) // num_packs >> 12
    for high, low in itertools.permutations(range(num_packs), 2):
        gap = of_packs[high] - of_packs[low]
        if gap <= close:
            continue
        for a in np.flatnonzero(packs == high):
            for b in [None, *np.flatnonzero(packs == low)]:
                moved = costs[a] - (0 if b is None else costs[b])
                grows = sizes[a] - (0 if b is None else sizes[b])
                fits = (grows <= free[low]).all() and (-grows <= free[high]).all()
                assert not fits or moved <= 0 or abs(gap - 2 * moved) >= gap


@pytest.mark.parametrize(
    ("world_size", "num", "capacity", "sigma"),
    [(8, 64, 16_384, 1.1), (8, 256, 16_384, 1.1), (8, 512, 16_384, 0.6), (32, 512, 32_768, 0.8)],
)
def test_ranks_hardly_wait_for_packs_of_equal_cost(world_size, num, capacity, sigma):
    for seed in range(5):
        lengths = np.minimum(np.random.default_rng(seed).lognormal(7.2, sigma, num), 8192).astype(np.int64) + 1
        costs = A * lengths + lengths**2
        start, num_bins = best_fit(-np.sort(-lengths)[:, None], np.array([capacity]))
        num_bins += -num_bins % world_size
        order = np.argsort(-lengths, kind="stable")
        packs = np.empty_like(start)
        packs[order] = even_packs(lengths[order][:, None], costs[order], np.array([capacity]), start, num_bins)
        of_packs = -np.sort(-np.bincount(packs, costs, num_bins)).reshape(-1, world_size)
        waiting = of_packs.max(axis=1).sum() / of_packs.mean(axis=1).sum() - 1
        forced = 0.0  # by the longest, if it costs more than a mean pack: its round lasts as long
        if costs.max() * num_bins > costs.sum():
            of_others = (costs.sum() - costs.max()) / (num_bins - 1)
            duration = costs.max() + (num_bins / world_size - 1) * of_others
            forced = world_size * duration / costs.sum() - 1
        assert waiting <= max(0.02, 1.01 * forced)


def test_kinds_share_no_bin_and_empty_bins_stay():
    sizes, kinds = np.array([[4], [4], [3], [3], [2]]), np.array([7, 7, 9, 9, 9])
    start = np.array([0, 1, 2, 3, 4]), np.array([2, 4, 5])
    indices, ends = even_bins(*start, sizes, sizes[:, 0], np.array([8]), kinds)
    assert [set(kinds[bin_]) for bin_ in np.split(indices, ends[:-1])] == [{7}, {9}, {9}]
    indices, ends = even_bins(np.arange(1), np.array([1, 1]), sizes[:1], sizes[:1, 0], np.array([8]))
    assert (indices.tolist(), ends.tolist()[-1], len(ends)) == ([0], 1, 2)
    nothing = np.zeros(0, dtype=np.int64)
    indices, ends = even_bins(nothing, nothing, np.zeros((0, 1), dtype=np.int64), nothing, np.array([8]))
    assert (len(indices), len(ends)) == (0, 0)
