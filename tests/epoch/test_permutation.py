"""Permutations: bijections of every size with a true inverse, and the values of a twin in Python integers; their keys.

Owns exactness; leaves how well they shuffle to test_shuffle_quality.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.compiling import kernel
from packhorse.epoch import EpochView, Permutation, PlanIndex, derive_key, independent_seed
from packhorse.epoch.draws import BLOCK, no_draws, permute_pools, permute_positions, set_draws
from packhorse.epoch.permutation import OFFSET
from packhorse.epoch.vector_instructions import LANES
from packhorse.packing import seed_from_components

KEY = 0x0123456789ABCDEF


def assert_bijection(size, key, tweak=0):
    """Forward hits every element once, and backward undoes it."""
    permutation = Permutation(size, key, tweak)
    identity = np.arange(size)
    image = permutation.forward(identity)
    assert int(image.min()) >= 0
    assert np.array_equal(np.bincount(image, minlength=size), np.ones(size, dtype=int)), (size, key)
    assert np.array_equal(permutation.backward(image), identity), (size, key)


def test_every_size_up_to_4096():
    for size in range(1, 4097):
        assert_bijection(size, KEY * size % 2**64)


@pytest.mark.parametrize("key", [0, 1, 2**32, 2**64 - 1])
def test_every_small_size_under_extreme_keys(key):
    for size in range(1, 300):
        assert_bijection(size, key, tweak=2**64 - 1 - key)


@pytest.mark.parametrize("power", range(21))
def test_around_powers_of_two(power):
    for size in {max(2**power - 1, 1), 2**power, 2**power + 1}:
        assert_bijection(size, KEY + size)


@pytest.mark.parametrize("size", [10**6, 3 * 10**6 + 7, 2**22 - 1, 2**21 + 2**11, 1999 * 2003])
def test_larger_sizes(size):
    assert_bijection(size, KEY ^ size)


LARGE_SIZES = sorted(
    {2**power + d for power in range(31, 63) for d in (-1, 0, 1)} - {2**62 + 1} | {10**12 + 39, 3_000_000_000}
)


@pytest.mark.parametrize("size", LARGE_SIZES)
def test_sampled_round_trips_of_large_sizes(size):
    rng = np.random.default_rng(size % 2**32)
    ends = np.concatenate((np.arange(500), size - 1 - np.arange(500)))
    sampled = np.unique(np.concatenate((ends, rng.integers(0, size, 5000))))
    permutation = Permutation(size, KEY ^ size)
    image = permutation.forward(sampled)
    assert int(image.min()) >= 0
    assert int(image.max()) < size
    assert len(np.unique(image)) == len(sampled)
    assert np.array_equal(permutation.backward(image), sampled)
    assert np.array_equal(permutation.forward(permutation.backward(sampled)), sampled)
    # 5,000 fair draws all miss the lowest or the highest eighth once in 10^290 runs.
    assert int(image.min()) < size // 8
    assert int(image.max()) >= size - size // 8


sizes = st.one_of(
    st.integers(1, 40),
    st.integers(1, 2**62),
    st.builds(lambda power, d: max(1, 2**power + d), st.integers(0, 61), st.integers(-1, 1)),
)
keys = st.integers(0, 2**64 - 1)


@given(sizes, keys, keys, st.data())
@settings(max_examples=150)
def test_equals_its_twin(twin, size, key, tweak, data):
    values = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=8))
    permutation = Permutation(size, key, tweak)
    oracle = twin(size, key, tweak)
    expected = [oracle(value) for value in values]
    assert permutation.forward(values).tolist() == expected
    assert permutation.backward(expected).tolist() == values
    assert permutation(values[0]) == expected[0]
    assert permutation.inverse(expected[0]) == values[0]


@pytest.mark.parametrize("size", [2, 15, 16, 17, 1000, 4095, 4096, 4097])
def test_equals_its_twin_everywhere(twin, size):
    """Sizes on both sides of each change in the number of rounds."""
    oracle = twin(size, KEY, 5)
    assert Permutation(size, KEY, 5).forward(np.arange(size)).tolist() == [oracle(x) for x in range(size)]


def test_keys_and_tweaks_change_the_order():
    values = np.arange(100)
    orders = {
        tuple(Permutation(1000, key, tweak).forward(values).tolist())
        for key in (0, 1, 2**32, 2**63)
        for tweak in (0, 1, 2**32, 2**63)
    }
    assert len(orders) == 16


def test_shape_dtype_and_strides_of_the_input():
    permutation = Permutation(1000, KEY)
    flat = permutation.forward(np.arange(24))
    assert flat.dtype == np.int64
    assert np.array_equal(permutation.forward(np.arange(24).reshape(2, 3, 4)), flat.reshape(2, 3, 4))
    assert np.array_equal(permutation.forward(np.arange(48)[::2]), permutation.forward(list(range(0, 48, 2))))
    assert np.array_equal(permutation.forward(np.arange(24, dtype=np.uint8)), flat)
    assert permutation.forward([]).shape == (0,)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("values", [[-1], [10], [0, 5, 10], [3, -(2**40)]])
def test_values_outside_are_refused(direction, values):
    with pytest.raises(ValueError, match=r"values must be in \[0, 10\)"):
        getattr(Permutation(10, KEY), direction)(values)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1), "size"),
        ((-1, 1), "size"),
        ((2**62 + 1, 1), "size"),
        ((1.0, 1), "size"),
        ((True, 1), "size"),
        ((10, -1), "key"),
        ((10, 2**64), "key"),
        ((10, 1.5), "key"),
        ((10, 1, -1), "tweak"),
        ((10, 1, 2**64), "tweak"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=f"^{message} must be an integer in"):
        Permutation(*arguments)


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 700, 4095, 4096, 5000, 2**33 + 1])
def test_positions_are_permuted_in_blocks_as_they_are_one_by_one(size):
    """Blocks of sizes that take twelve and thirty rounds go through all of them together."""
    shuffle = Permutation(size, key=11)
    positions = np.arange(min(size, 1500))
    together = np.empty_like(positions)
    permute_positions(shuffle.row, positions, together)
    assert together.tolist() == shuffle.forward(positions).tolist()


@pytest.mark.parametrize("words", [np.uint32, np.uint64])
@pytest.mark.parametrize("most", [16, 5000, 2**31])
def test_pools_are_permuted_in_blocks_as_they_are_one_by_one(words, most):
    """Every block has draws of many sizes, so some take more rounds, and some land beyond their size and go on."""
    random = np.random.default_rng(most)
    sizes = [most, most - 1, *random.integers(1, most, 40).tolist()]
    shuffles = [Permutation(size, key=11, tweak=number) for number, size in enumerate(sizes)]
    rows = np.stack([shuffle.row for shuffle in shuffles])
    rows[:, OFFSET] = random.integers(0, 2**31 - 1, len(sizes))
    which = random.integers(0, len(sizes), BLOCK - LANES)
    firsts = [int(random.integers(0, sizes[each])) for each in which.tolist()]
    for num in (0, 1, 15, 16, 17, len(which)):
        entries = np.empty(BLOCK, dtype=words)
        permute_one_of_each(rows, which[:num], np.array(firsts[:num]), np.empty(0, dtype=words), entries)
        wanted = [
            int(rows[each, OFFSET]) + shuffles[each](first)
            for each, first in zip(which[:num].tolist(), firsts[:num], strict=True)
        ]
        assert entries[:num].tolist() == wanted


@kernel
def permute_one_of_each(rows, which, firsts, words, entries):
    draws = no_draws(words)
    for s in range(len(which)):
        set_draws(draws, np.uint64(s), rows, which[s], np.uint64(firsts[s]))
    permute_pools(draws, np.uint64(len(which)), entries)


def test_keys_of_different_coordinates_differ():
    """Sums of seed and epoch would meet within this grid many times over."""
    numbers = [*range(20), 255, 256, 2**32, 2**63, 2**64 - 1]
    keys = {derive_key(s, e, purpose) for s in numbers for e in numbers for purpose in ("bins", "pool", "pool2", "")}
    assert len(keys) == 4 * len(numbers) ** 2
    assert all(0 <= key < 2**64 for key in keys)


def test_seed_and_epoch_are_not_interchangeable():
    assert derive_key(1, 2, "bins") != derive_key(2, 1, "bins")


def test_independent_seeds_differ_for_every_rank_and_worker():
    seeds = {independent_seed(s, r, w) for s in range(8) for r in range(8) for w in range(8)}
    assert len(seeds) == 8**3
    assert independent_seed(3, 1, 2) == seed_from_components(3, 1, 2)


@pytest.mark.parametrize("name", ["seed", "epoch"])
@pytest.mark.parametrize("value", [-1, 2**64, 1.0, True, None, "1"])
def test_bad_seed_or_epoch_is_named(name, value, prepared):
    small = prepared({1: 1}, 1)
    assert isinstance(small.plan, PlanIndex)
    with pytest.raises(ValueError, match=f"^{name} must be an integer in"):
        EpochView(small.plan, small.pool, **{"seed": 0, "epoch": 0, name: value})
