"""Lists of lengths: what is refused, and how they are counted and sorted, against seqpack and NumPy."""

from collections import Counter

import numpy as np
import pytest
import seqpack
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.packing import (
    greedy_pack_sequences,
    heap_pack_sequences,
    length_histogram_from_lengths,
    pack_sequences,
    shuffle_bins,
    sort_indices_by_length,
)

PACKERS_OF_LISTS = {
    "greedy": lambda lengths: greedy_pack_sequences(lengths, 8),
    "heap": lambda lengths: heap_pack_sequences(lengths, 8),
    "best-fit": lambda lengths: pack_sequences(lengths, 8),
    "next-fit": lambda lengths: pack_sequences(lengths, 8, algorithm="next-fit"),
    "random-order": lambda lengths: pack_sequences(lengths, 8, algorithm="random-order"),
}


@pytest.mark.parametrize("packer", PACKERS_OF_LISTS.values(), ids=PACKERS_OF_LISTS)
@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([3, 9, 10], r"lengths\[1\] = 9 is over max_seq_len 8.*truncate"),
        ([3, 2**70], r"lengths\[1\] = 1180591620717411303424 is over max_seq_len 8"),
        ([3, 0], r"lengths\[1\] must be an integer of at least 1, got 0"),
        ([3, 3, -2, -1], r"lengths\[2\].*got -2"),
        ([3, -(2**70)], r"lengths\[1\].*got -1180591620717411303424"),
        ([3, 2.0], r"lengths\[1\].*got 2.0"),
        ([3, True], r"lengths\[1\].*got True"),
        ([3, 1, True, 4], r"lengths\[2\].*got True"),
        ([3, np.array(4)], r"lengths\[1\].*got array"),
        ([3, "4", 2.5], r"lengths\[1\].*got '4'"),
        ([3, 2.5, "4"], r"lengths\[1\].*got 2.5"),
        ([3, None], r"lengths\[1\].*got None"),
        ([float("nan"), 3], r"lengths\[0\].*got nan"),
        (np.array([3.0, 4.0]), r"lengths\[0\].*got 3.0"),
        (np.array([True]), r"lengths\[0\].*got True"),
        (np.array(["3"]), r"lengths\[0\].*got '3'"),
        (np.array([3, 9], dtype=np.uint8), r"lengths\[1\] = 9 is over"),
        (np.array([3, 2**64 - 1], dtype=np.uint64), r"lengths\[1\] = 18446744073709551615 is over"),
        (np.array([[3, 4]]), r"one dimension, got shape \(1, 2\)"),
        ("345", "list or array of integers, got str"),
        ({3: 4}, "list or array of integers, got dict"),
        (7, "list or array of integers, got int"),
        (None, "list or array of integers, got NoneType"),
    ],
)
def test_bad_lengths_are_named(packer, lengths, message):
    with pytest.raises(ValueError, match=message):
        packer(lengths)


@pytest.mark.parametrize("packer", PACKERS_OF_LISTS.values(), ids=PACKERS_OF_LISTS)
@pytest.mark.parametrize(
    "kind", [list, tuple, np.array, lambda n: np.array(n, dtype=np.uint8), lambda n: np.array(n, object)]
)
def test_every_kind_of_list_will_do(packer, kind):
    bins = packer(kind([5, 3, 8, 1]))
    bins = bins if isinstance(bins, list) else bins.bins()
    assert sorted(index for b in bins for index in b) == [0, 1, 2, 3]
    empty = packer(kind([]))
    assert (empty if isinstance(empty, list) else empty.bins()) == []


lists = st.lists(st.integers(1, 50), max_size=60)


@given(lists, st.integers(1, 9), st.integers(0, 2**64 - 1))
@settings(max_examples=150)
def test_sorting_equals_seqpacks(lengths, tolerance, seed):
    array = np.array(lengths, dtype=np.int64)
    np.testing.assert_array_equal(
        sort_indices_by_length(lengths, tolerance, seed), seqpack.sort_indices_by_length(array, tolerance, seed)
    )
    np.testing.assert_array_equal(
        sort_indices_by_length(array, tolerance), np.argsort(-(array // tolerance), kind="stable")
    )


def test_sorting_sparse_lengths_is_stable():
    lengths = np.array([2**31 - 1, 7, 2**30, 7, 2**31 - 1] * 50)
    np.testing.assert_array_equal(sort_indices_by_length(lengths), np.argsort(-lengths, kind="stable"))


@pytest.mark.parametrize(("tolerance", "seed"), [(0, None), (1.0, None), (True, None), (1, -1), (1, 1.0)])
def test_bad_tolerance_and_seed(tolerance, seed):
    with pytest.raises(ValueError, match=r"tolerance|seed"):
        sort_indices_by_length([1, 2], tolerance, seed)


@given(lists, st.none() | st.integers(1, 60))
@settings(max_examples=150)
def test_histogram_equals_seqpacks(lengths, max_seq_len):
    counts, pools = length_histogram_from_lengths(lengths, max_seq_len)
    their_counts, their_pools = seqpack.length_histogram_from_lengths(lengths, max_seq_len)
    assert isinstance(counts, Counter)
    assert counts == their_counts
    assert pools.keys() == their_pools.keys()
    for length, pool in pools.items():
        np.testing.assert_array_equal(pool, their_pools[length])


@pytest.mark.parametrize("lengths", [[0], [-3], [2.5], [True], ["1"]])
def test_histogram_refuses_bad_lengths(lengths):
    with pytest.raises(ValueError, match=r"lengths\[0\]"):
        length_histogram_from_lengths(lengths, 8)


@given(st.lists(st.lists(st.integers())), st.integers(0, 2**64 - 1))
def test_shuffled_bins_equal_seqpacks(bins, seed):
    given_bins = list(bins)
    assert shuffle_bins(bins, seed) == seqpack.shuffle_bins(bins, seed)
    assert bins == given_bins


@pytest.mark.parametrize("bins", [5, "abc", (1, 2), range(3), None])
def test_shuffle_refuses_what_is_no_list(bins):
    with pytest.raises(ValueError, match="list or an array"):
        shuffle_bins(bins)
