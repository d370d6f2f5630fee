"""Splitting: more bins from the same sequences, none empty, none fuller than before."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packhorse.packing.split import halve_into, laid_end_to_end, split_to_multiple


def laid_out(bins):
    indices = np.array([i for b in bins for i in b], dtype=np.int64)
    return indices, np.cumsum([len(b) for b in bins], dtype=np.int64)


def taken_apart(indices, ends):
    return [part.tolist() for part in np.split(indices, ends[:-1])]


def halved(bins, lengths, empty):
    """What `halve_into` makes of bins, and the empty ones it could not fill."""
    members, ends = laid_out(bins)
    sizes = np.array([len(b) for b in bins], dtype=np.int64)
    starts = ends - sizes
    filled = halve_into(members, starts, sizes, lengths, np.array(empty, dtype=np.int64))
    return taken_apart(*laid_end_to_end(members, starts, sizes)), list(empty)[filled:]


def halved_one_by_one(bins, lengths, empty):
    """The same in plain Python."""
    bins = [list(b) for b in bins]
    for added in empty:
        fullest = max((b for b in bins if len(b) > 1), key=lambda b: (sum(lengths[b]), -bins.index(b)), default=None)
        if fullest is None:
            break
        kept, moved = [], []
        for member in fullest:
            (kept if sum(lengths[kept]) <= sum(lengths[moved]) else moved).append(member)
        fullest[:] = kept
        bins[added] = moved
    return bins


@st.composite
def packings(draw):
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=12))
    lengths = draw(st.lists(st.integers(1, 20), min_size=sum(sizes), max_size=sum(sizes)))
    order = iter(draw(st.permutations(range(sum(sizes)))))
    return [[next(order) for _ in range(size)] for size in sizes], np.array(lengths, dtype=np.int64)


@given(packings(), st.integers(1, 9))
@settings(max_examples=300)
def test_a_multiple_of_bins_none_empty(case, multiple):
    bins, lengths = case
    wanted = -(-len(bins) // multiple) * multiple
    if wanted > len(lengths):
        with pytest.raises(ValueError, match=f"only {len(lengths)} sequences"):
            split_to_multiple(*laid_out(bins), lengths, multiple)
        result = taken_apart(*split_to_multiple(*laid_out(bins), lengths, multiple, allow_empty=True))
        assert sorted(result[: len(lengths)]) == [[i] for i in range(len(lengths))]
        assert result[len(lengths) :] == [[]] * (wanted - len(lengths))
        return
    allowed = split_to_multiple(*laid_out(bins), lengths, multiple, allow_empty=True)
    result = taken_apart(*split_to_multiple(*laid_out(bins), lengths, multiple))
    assert taken_apart(*allowed) == result  # none is empty where none has to be
    assert len(result) == wanted
    assert all(result)
    assert sorted(i for b in result for i in b) == list(range(len(lengths)))
    for old, new in zip(bins, result, strict=False):
        assert set(new) <= set(old)
    for new in result[len(bins) :]:
        assert any(set(new) <= set(old) for old in bins)
    # oracle: halving all bins, not only those that can be reached
    members = [sorted(b, key=lambda i: -lengths[i]) for b in bins] + [[] for _ in range(wanted - len(bins))]
    expected, unfilled = halved(members, lengths, range(len(bins), wanted))
    assert unfilled == []
    assert [sorted(b) for b in result] == [sorted(b) for b in expected]
    assert expected == halved_one_by_one(members, lengths, range(len(bins), wanted))


def test_the_fullest_is_halved_first_into_about_equal_tokens():
    lengths = np.array([9, 5, 4, 8, 1], dtype=np.int64)
    bins = [[0, 1, 2], [3, 4], []]
    assert halved(bins, lengths, [2]) == ([[0], [3, 4], [1, 2]], [])


def test_what_cannot_be_halved_is_told():
    bins = [[0], [1], [], []]
    assert halved(bins, np.array([3, 3]), [3, 2]) == (bins, [3, 2])


def test_an_exact_multiple_stays_as_it_is():
    indices, ends = laid_out([[0, 1], [2]])
    assert split_to_multiple(indices, ends, np.ones(3, np.int64), 2) == (indices, ends)
    none = split_to_multiple(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), 4)
    assert [part.tolist() for part in none] == [[], []]
