"""`pack_sequences`: every index once, the plan's own bins, no better than the optimum, and its options."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.packing.exhaustive import fewest_bins

from packhorse.packing import (
    LIST_ONLY,
    PACKERS,
    PackingStats,
    canonical_templates,
    pack_histogram,
    pack_sequences,
)

ALGORITHMS = sorted({*PACKERS, *LIST_ONLY} - {"optimal"})


@st.composite
def cases(draw, most=60):
    capacity = draw(st.integers(1, 40))
    lengths = draw(st.lists(st.integers(1, capacity), max_size=most))
    return lengths, capacity, draw(st.none() | st.integers(1, 5))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(case=cases(), seed=st.none() | st.integers(0, 2**64 - 1))
@settings(max_examples=80)
def test_every_index_once_within_room_and_limit(algorithm, case, seed):
    lengths, capacity, limit = case
    packed = pack_sequences(lengths, capacity, algorithm=algorithm, max_sequences_per_bin=limit, seed=seed)
    assert (packed.indices.dtype, packed.bin_ends.dtype) == (np.int64, np.int64)
    bins = packed.bins()
    assert sorted(index for b in bins for index in b) == list(range(len(lengths)))
    assert len(bins) == packed.num_bins
    assert all(1 <= len(b) <= (limit or capacity) and sum(lengths[i] for i in b) <= capacity for b in bins)
    assert packed.stats() == PackingStats.from_bins(bins, lengths, capacity, max_sequences_per_bin=limit)
    assert packed.algorithm == algorithm


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(case=cases(most=7))
@settings(max_examples=40)
def test_never_better_than_the_optimum(algorithm, case):
    lengths, capacity, limit = case
    optimum = fewest_bins(lengths, capacity, limit or capacity)
    num_bins = pack_sequences(lengths, capacity, algorithm=algorithm, max_sequences_per_bin=limit, seed=0).num_bins
    assert num_bins >= optimum
    if limit is None and algorithm in ("best-fit", "first-fit", "greedy-knapsack"):
        assert num_bins <= 11 * optimum / 9 + 6 / 9  # Dósa (2007), tight


@given(cases(), st.none() | st.integers(0, 2**64 - 1))
@settings(max_examples=100)
def test_bins_are_the_plans(case, seed):
    """In the canonical order of templates, each with its lengths in order."""
    lengths, capacity, limit = case
    packed = pack_sequences(lengths, capacity, max_sequences_per_bin=limit, seed=seed)
    plan = pack_histogram(Counter(lengths), capacity, algorithm="best-fit", max_sequences_per_bin=limit)
    expected = [template for template, number in canonical_templates(plan.templates) for _ in range(number)]
    assert [tuple(lengths[i] for i in b) for b in packed.bins()] == expected


def test_without_a_seed_equal_lengths_keep_their_order():
    packed = pack_sequences([4, 2, 4, 2, 2, 4], 6)
    assert packed.bins() == [[0, 1], [2, 3], [5, 4]]
    assert packed.bin_ends.tolist() == [2, 4, 6]


def test_seeds_shuffle_equal_lengths_evenly():
    """Each of the 24 orders of four equal lengths comes up about as often as the others."""
    orders = Counter(tuple(pack_sequences([1] * 4, 1, seed=seed).indices.tolist()) for seed in range(4800))
    assert len(orders) == 24
    assert sum((seen - 200) ** 2 / 200 for seen in orders.values()) < 60  # chi-square, 23 degrees: p < 4e-5


def test_a_seed_gives_one_order_for_ever():
    assert pack_sequences([1] * 8, 1, seed=7).indices.tolist() == GOLDEN
    assert pack_sequences([1] * 8, 1, seed=2**64 - 1).indices.tolist() != GOLDEN


GOLDEN = [7, 4, 6, 1, 2, 5, 0, 3]


@given(cases(), st.integers(1, 8), st.integers(-1, 3))
@settings(max_examples=100)
def test_align_and_extra_tokens(case, align, extra_tokens):
    lengths, capacity, limit = case
    room = -(-max(capacity + extra_tokens, 1) // align) * align
    effective = [-(-max(length + extra_tokens, 1) // align) * align for length in lengths]
    options = {"align": align, "extra_tokens": extra_tokens, "max_sequences_per_bin": limit}
    packed = pack_sequences(lengths, room, **options)
    assert packed.bins() == pack_sequences(effective, room, max_sequences_per_bin=limit).bins()
    assert packed.lengths.tolist() == effective
    plan = pack_histogram(Counter(lengths), room, algorithm="best-fit", **options)
    assert (
        plan.templates
        == pack_histogram(Counter(effective), room, algorithm="best-fit", max_sequences_per_bin=limit).templates
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"align": 0}, "align"),
        ({"align": 2.0}, "align"),
        ({"align": True}, "align"),
        ({"extra_tokens": -2}, "extra_tokens"),
        ({"extra_tokens": "1"}, "extra_tokens"),
        ({"extra_tokens": 2}, "7 takes 9 tokens with extra_tokens 2 and align 1, over max_seq_len 8"),
        ({"align": 5}, "7 takes 10 tokens"),
        ({"max_sequences_per_bin": 0}, "max_sequences_per_bin"),
        ({"max_seq_len": 2**31}, "max_seq_len"),
        ({"algorithm": "no-such"}, "no-such.*best-fit"),
    ],
)
def test_bad_options_are_named(options, message):
    arguments = {"max_seq_len": 8, **options}
    with pytest.raises(ValueError, match=message):
        pack_sequences([3, 7], **arguments)
    with pytest.raises(ValueError, match=message):
        pack_histogram({3: 1, 7: 1}, **arguments)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, True])
def test_bad_seed(seed):
    with pytest.raises(ValueError, match="seed"):
        pack_sequences([1], 8, seed=seed)


@pytest.mark.parametrize("algorithm", sorted(LIST_ONLY))
def test_list_only_packers_say_so(algorithm):
    with pytest.raises(ValueError, match="call pack_sequences"):
        pack_histogram({1: 1}, 8, algorithm=algorithm)
