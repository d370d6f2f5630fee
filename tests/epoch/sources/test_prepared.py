"""Bins at any position against the definition, and from ids back to positions."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.epoch import EpochView, PlanIndex, compile_kernels, materialize_epoch
from packhorse.packing import pack_histogram


def test_bins_follow_the_definition(epochs, bins_of):
    @given(epochs)
    @settings(max_examples=60)
    def check(drawn):
        small, seed, epoch = drawn
        view = small.view(seed, epoch)
        bins = view.bins(np.arange(view.num_bins))
        assert bins.ids.dtype == small.pool.dtype
        assert (bins.lengths.dtype, bins.bin_ends.dtype, bins.positions.dtype) == (np.int32, np.int64, np.int64)
        for position, ids, lengths in bins_of(bins):
            assert (list(ids), list(lengths)) == small.bin_at(position, seed, epoch)

    check()


def test_every_id_once_with_its_own_length(epochs):
    @given(epochs)
    @settings(max_examples=100)
    def check(drawn):
        small, seed, epoch = drawn
        view = small.view(seed, epoch)
        bins = view.bins(np.arange(view.num_bins))
        assert sorted(bins.ids.tolist()) == sorted(small.pool.tolist())
        lengths, sizes = list(small.counts), list(small.counts.values())
        length_of = dict(zip(small.pool.tolist(), np.repeat(lengths, sizes).tolist(), strict=True))
        assert [length_of[i] for i in bins.ids.tolist()] == bins.lengths.tolist()

    check()


def test_any_positions_in_any_order(epochs, bins_of):
    """Random access: a bin does not depend on what else is asked for."""

    @given(epochs, st.data())
    @settings(max_examples=60)
    def check(drawn, data):
        small, seed, epoch = drawn
        view = small.view(seed, epoch)
        whole = bins_of(view.bins(np.arange(view.num_bins)))
        wanted = data.draw(st.lists(st.integers(0, view.num_bins - 1), max_size=10))
        assert bins_of(view.bins(wanted)) == [whole[p] for p in wanted]

    check()


def test_locate_is_the_inverse_of_bins(epochs, bins_of):
    @given(epochs, st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5))
    @settings(max_examples=100)
    def check(drawn, others):
        small, seed, epoch = drawn
        view = small.view(seed, epoch)
        unknown = sorted({-1, 2**32, 2**63 - 1, *others} - set(small.pool.tolist()))
        places = {
            member: (length, position, index)
            for position, ids, lengths in bins_of(view.bins(np.arange(view.num_bins)))
            for index, (member, length) in enumerate(zip(ids, lengths, strict=True))
        }
        wanted = [*small.pool.tolist(), *unknown]
        found = view.locate(wanted)
        rows = zip(found.lengths.tolist(), found.positions.tolist(), found.index_in_bin.tolist(), strict=True)
        assert list(rows) == [places.get(i, (-1, -1, -1)) for i in wanted]

    check()


@pytest.fixture(scope="module")
def large(prepared):
    """More bins than the lookup table has entries, some lengths with a hundred thousand sequences."""
    rng = np.random.default_rng(3)
    counts = {int(n): int(c) for n, c in enumerate(rng.lognormal(5, 2, 200), 1)}
    return prepared({**counts, 150: 120_000, 60: 90_000}, 200, dtype=np.uint32)


def test_large_epoch(large, bins_of):
    assert large.plan.lookup_shift > 0
    view = large.view(2**64 - 1, 5)
    bins = view.bins(np.arange(view.num_bins))
    assert np.array_equal(np.sort(bins.ids), np.sort(large.pool))
    assert np.array_equal(bins.positions, np.arange(view.num_bins))
    sums = np.add.reduceat(bins.lengths, np.concatenate(([0], bins.bin_ends[:-1])))
    assert int(sums.max()) <= 200
    sampled = np.random.default_rng(0).integers(0, view.num_bins, 40)
    for position, ids, lengths in bins_of(view.bins(sampled)):
        assert (list(ids), list(lengths)) == large.bin_at(position, 2**64 - 1, 5)
    chosen = np.random.default_rng(1).integers(0, len(bins.ids), 2000)
    found = view.locate(bins.ids[chosen])
    bin_of = np.searchsorted(bins.bin_ends, chosen, side="right")
    assert np.array_equal(found.positions, bin_of)
    assert np.array_equal(found.index_in_bin, chosen - np.concatenate(([0], bins.bin_ends))[bin_of])
    assert np.array_equal(found.lengths, bins.lengths[chosen])


def test_both_id_types_give_the_same_bins(prepared):
    counts = {3: 40, 5: 30, 8: 20}
    narrow, wide = prepared(counts, 10, dtype=np.uint32), prepared(counts, 10, dtype=np.int64)
    positions = np.arange(narrow.plan.num_bins)
    ids = [small.view(9, 1).bins(positions).ids for small in (narrow, wide)]
    assert [a.dtype for a in ids] == [np.uint32, np.int64]
    assert ids[0].tolist() == ids[1].tolist()


def test_ids_beyond_32_bits(prepared):
    small = prepared({3: 40, 5: 30}, 10)
    pool = small.pool + 2**40
    view = EpochView(small.plan, pool, seed=1, epoch=2)
    bins = view.bins(np.arange(view.num_bins))
    assert sorted(bins.ids.tolist()) == sorted(pool.tolist())
    assert view.locate(bins.ids[:5]).lengths.tolist() == bins.lengths[:5].tolist()


def test_epochs_and_seeds_differ(prepared):
    small = prepared({3: 40, 5: 30, 8: 20}, 10)
    coordinates = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (0, 2)]
    orders = {tuple(small.view(*pair).bins(np.arange(20)).ids.tolist()) for pair in coordinates}
    assert len(orders) == len(coordinates)


@pytest.mark.parametrize("positions", [[-1], [7], [0, 3, 7], [2**40], [-(2**40), 0]])
def test_positions_outside_are_named(prepared, positions):
    view = prepared({5: 7}, 9).view()
    bad = next(p for p in positions if not 0 <= p < 7)
    with pytest.raises(ValueError, match=rf"positions must be in \[0, 7\), got {bad}$"):
        view.bins(positions)


def test_no_positions_and_no_sequences(prepared):
    view = prepared({5: 7}, 9).view()
    assert len(view.bins([]).ids) == len(view.locate([]).positions) == 0
    empty = prepared({}, 9).view()
    assert empty.num_bins == 0
    assert len(empty.bins([]).bin_ends) == 0
    assert empty.locate([3]).positions.tolist() == [-1]
    with pytest.raises(ValueError, match="positions"):
        empty.bins([0])


@pytest.mark.parametrize("size", [6, 8, 0])
def test_a_pool_of_another_size_is_refused(prepared, size):
    plan = prepared({5: 7}, 9).plan
    with pytest.raises(ValueError, match=f"the pool has {size} ids, but the plan uses 7"):
        EpochView(plan, np.arange(size), seed=0, epoch=0)


def test_read_only_pools_after_compiling(prepared):
    compile_kernels()
    small = prepared({5: 7, 2: 9}, 9)
    small.pool.flags.writeable = False
    view = small.view(4, 4)
    assert sorted(view.bins(np.arange(view.num_bins)).ids.tolist()) == sorted(small.pool.tolist())


COMPILED_LATER = """
import sys
import numpy as np
from numba.core.dispatcher import Dispatcher
from packhorse.epoch import EpochView, PlanIndex, WindowedView, compile_kernels

def signatures():  # of every compiled loop: a new one is compiled, or read from a cache where an earlier test did so
    modules = [module for name, module in sys.modules.items() if name.startswith("packhorse.")]
    loops = {loop for module in modules for loop in vars(module).values() if isinstance(loop, Dispatcher)}
    return {(loop.py_func.__qualname__, signature) for loop in loops for signature in loop.signatures}

wide = sys.argv[1] == "wide"
compile_kernels(wide=wide)
compiled = signatures()
plan = PlanIndex.build({(3, 2): 4, (2,): 1}, {3: 4, 2: 5}, 5)
for each in (plan, plan.widened()) if wide else (plan,):
    for dtype in (np.uint32, np.int64):
        mapped = np.arange(9, dtype=dtype)
        mapped.flags.writeable = False
        for pool in (mapped, mapped.copy()):
            for first_tokens in (None, np.zeros(9, dtype=np.uint32)):
                given = {"seed": 1, "epoch": 0, "first_tokens": first_tokens}
                for view in (EpochView(each, pool, **given), WindowedView(each, pool, num_windows=2, **given)):
                    assert sorted(view.bins(range(5)).ids.tolist()) == view.locate(range(9)).ids.tolist()
                    view.costs(range(5), 1)
                if each is not plan:  # as a pool of more than 2^31 entries has it
                    EpochView(each, pool, wide=True, **given).bins(range(5))
print(len(compiled) > 10, sorted(name for name, _ in signatures() - compiled))
"""


@pytest.mark.parametrize("plans", ["narrow", pytest.param("wide", marks=pytest.mark.long)])
def test_no_view_waits_for_a_compiler_once_kernels_are_compiled(plans):
    command = [sys.executable, "-c", COMPILED_LATER, plans]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True []"


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
