"""`materialize_epoch`: every index once, seeds that decide, and pools that do not fit the templates refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.epoch import EpochView, PlanIndex, materialize_epoch
from packhorse.packing import pack_histogram


def pools_of(lengths):
    array = np.asarray(lengths)
    return {int(n): np.flatnonzero(array == n) for n in np.unique(array)}


@given(st.lists(st.integers(1, 30), max_size=120), st.integers(0, 2**64 - 1))
@settings(max_examples=60)
def test_every_index_once_in_a_bin_of_its_template(lengths, seed):
    pools = pools_of(lengths)
    templates = pack_histogram({n: len(pool) for n, pool in pools.items()}, 30).templates
    bins = list(materialize_epoch(templates, pools, seed=seed))
    assert sorted(index for one_bin in bins for index in one_bin) == list(range(len(lengths)))
    recipes = [tuple(lengths[index] for index in one_bin) for one_bin in bins]
    assert {recipe: recipes.count(recipe) for recipe in recipes} == dict(templates)
    assert all(type(index) is int for one_bin in bins for index in one_bin)


@pytest.fixture(scope="module")
def many():
    """More bins than are made at once."""
    lengths = np.random.default_rng(0).integers(1, 60, 20_000)
    pools = pools_of(lengths)
    return pack_histogram({n: len(pool) for n, pool in pools.items()}, 64).templates, pools


def test_seed_decides_everything(many):
    templates, pools = many
    first = list(materialize_epoch(templates, pools, seed=5))
    assert len(first) > 2 * 4096
    assert list(materialize_epoch(dict(reversed(templates.items())), pools, seed=5)) == first
    assert list(materialize_epoch(templates, pools, seed=6)) != first


def test_without_a_seed_every_call_differs(many):
    templates, pools = many
    bins = [list(materialize_epoch(templates, pools)) for _ in range(2)]
    assert bins[0] != bins[1]
    assert sorted(i for b in bins[0] for i in b) == sorted(i for b in bins[1] for i in b) == list(range(20_000))


def test_same_bins_as_the_view(many):
    templates, pools = many
    plan = PlanIndex.build(templates, {n: len(pool) for n, pool in pools.items()}, 64)
    pool = np.concatenate([pools[n] for n in sorted(pools)])
    view = EpochView(plan, pool, seed=5, epoch=0)
    bins = view.bins(np.arange(view.num_bins))
    expected = [part.tolist() for part in np.split(bins.ids, bins.bin_ends[:-1])]
    assert list(materialize_epoch(templates, pools, seed=5)) == expected


def test_empty_pools_and_no_templates():
    assert list(materialize_epoch({}, {})) == []
    assert list(materialize_epoch({}, {4: np.empty(0, np.int64)}, seed=1)) == []
    assert list(materialize_epoch({(3,): 1}, {3: np.array([7]), 4: np.empty(0, np.int64)}, seed=1)) == [[7]]


@pytest.mark.parametrize(
    ("templates", "pools", "message"),
    [
        ({(3, 2): 2}, {3: [0, 1], 2: [2]}, "use 2 sequences of length 2, but there are 1"),
        ({(3, 2): 2}, {3: [0, 1], 2: [2, 3, 4]}, "use 2 sequences of length 2, but there are 3"),
        ({(3, 2): 2}, {3: [0, 1]}, "uses length 2, which no sequence has"),
        ({(3, 2): 2}, {3: [0, 1], 2: [2, 3], 1: [4]}, "use 0 sequences of length 1, but there are 1"),
        ({}, {3: [0]}, "use 0 sequences of length 3, but there are 1"),
        ({(2, 3): 2}, {3: [0, 1], 2: [2, 3]}, "not a descending list"),
    ],
)
def test_pools_that_do_not_fit_are_refused_before_the_first_bin(templates, pools, message):
    with pytest.raises(ValueError, match=message):
        materialize_epoch(templates, {n: np.array(pool) for n, pool in pools.items()}, seed=0)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True])
def test_bad_seed(seed):
    with pytest.raises(ValueError, match="seed"):
        materialize_epoch({(3,): 1}, {3: np.array([7])}, seed=seed)
