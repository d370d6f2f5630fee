"""seqpack's list packers and seeds by name: the same bins for the same order, with its tolerance and seed."""

import gc

import numpy as np
import pytest
import seqpack
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.packing import greedy_pack_sequences, heap_pack_sequences, pack_sequences, seed_from_components

PAIRS = [
    (greedy_pack_sequences, seqpack.greedy_pack_sequences),
    (heap_pack_sequences, seqpack.heap_pack_sequences),
]


@st.composite
def cases(draw):
    capacity = draw(st.integers(1, 60))
    lengths = draw(st.lists(st.integers(1, capacity), max_size=80))
    return lengths, capacity, draw(st.integers(1, 9))


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=["greedy", "heap"])
@given(case=cases(), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=200)
def test_equals_seqpack_with_a_seed(ours, theirs, case, seed):
    """With a seed seqpack's order is deterministic too, so bins must be equal to the index."""
    assert ours(*case, seed) == theirs(*case, seed)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=["greedy", "heap"])
@pytest.mark.parametrize("tolerance", [1, 16])
def test_equals_seqpack_on_a_stable_order(ours, theirs, tolerance, monkeypatch):
    lengths = np.clip(np.random.default_rng(1).lognormal(5, 1, 3000), 1, 2048).astype(int).tolist()

    def stable(array, width, seed):
        return np.argsort(-(array // width), kind="stable")

    monkeypatch.setattr(seqpack.packing, "sort_indices_by_length", stable)
    assert ours(lengths, 2048, tolerance) == theirs(lengths, 2048, tolerance)


@pytest.mark.parametrize("packer", [greedy_pack_sequences, heap_pack_sequences])
@given(case=cases(), limit=st.integers(1, 6), seed=st.none() | st.integers(0, 9))
@settings(max_examples=150)
def test_limit_of_sequences(packer, case, limit, seed):
    lengths, capacity, tolerance = case
    bins = packer(lengths, capacity, tolerance, seed, max_sequences_per_bin=limit)
    assert sorted(index for b in bins for index in b) == list(range(len(lengths)))
    assert all(1 <= len(b) <= limit and sum(lengths[i] for i in b) <= capacity for b in bins)


@given(case=cases(), limit=st.none() | st.integers(1, 6), seed=st.integers(0, 9))
@settings(max_examples=150)
def test_next_fit_and_random_order_one_by_one(case, limit, seed):
    lengths, capacity, _ = case
    concatenated, dealt = [], []
    for index, length in enumerate(lengths):
        last = concatenated[-1] if concatenated else None
        if last is None or sum(lengths[i] for i in last) + length > capacity or len(last) == limit:
            concatenated.append([])
        concatenated[-1].append(index)
    for index in np.random.default_rng(seed).permutation(len(lengths)).tolist():
        room = (b for b in dealt if sum(lengths[i] for i in b) + lengths[index] <= capacity and len(b) != limit)
        chosen = next(room, None)
        if chosen is None:
            dealt.append([index])
        else:
            chosen.append(index)
    options = {"max_sequences_per_bin": limit, "seed": seed}
    assert pack_sequences(lengths, capacity, algorithm="next-fit", **options).bins() == concatenated
    assert pack_sequences(lengths, capacity, algorithm="random-order", **options).bins() == dealt


@pytest.mark.parametrize("packer", [greedy_pack_sequences, heap_pack_sequences])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_seq_len": 0}, "max_seq_len"),
        ({"max_seq_len": 8.0}, "max_seq_len"),
        ({"max_seq_len": 8, "tolerance": 0}, "tolerance"),
        ({"max_seq_len": 8, "seed": -1}, "seed"),
        ({"max_seq_len": 8, "max_sequences_per_bin": 0}, "max_sequences_per_bin"),
    ],
)
def test_bad_options_are_named(packer, options, message):
    with pytest.raises(ValueError, match=message):
        packer([1, 2], **options)


@pytest.mark.parametrize("was_on", [True, False])
def test_the_garbage_collector_is_left_as_it_was(was_on):
    before = gc.isenabled()
    (gc.enable if was_on else gc.disable)()
    try:
        pack_sequences([3, 2, 1], 4).bins()
        assert gc.isenabled() == was_on
    finally:
        (gc.enable if before else gc.disable)()


@given(st.lists(st.integers(-(2**70), 2**70), max_size=5))
def test_seeds_equal_those_of_seqpack(components):
    assert seed_from_components(*components) == seqpack.seed_from_components(*components)
    assert 0 <= seed_from_components(*components) < 2**64


def test_order_and_grouping_matter():
    """Components that sum or concatenate alike must not meet."""
    tuples = [(seed, epoch, rank) for seed in range(12) for epoch in range(12) for rank in range(12)]
    tuples += [(1, 23), (12, 3), (123,), (2, 1), ()]
    assert len({seed_from_components(*components) for components in tuples}) == len(tuples)
