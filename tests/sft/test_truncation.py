"""Balanced cutting: vectors of the original rule, and what holds for all lengths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.sft import truncate_pair, truncate_turns

# (source, target, cutoff) -> what LLaMA-Factory's own infer_seqlen returns.
VECTORS = {
    (10, 10, 100): (10, 10),
    (100, 10, 50): (40, 10),
    (10, 100, 50): (10, 40),
    (300, 100, 200): (150, 50),
    (100, 300, 200): (50, 150),
    (60, 40, 100): (60, 40),
    (500, 24, 50): (26, 24),
    (500, 25, 50): (48, 2),
    (24, 500, 50): (24, 26),
    (25, 500, 50): (3, 47),
    (7, 3, 5): (4, 1),
    (1, 1, 1): (1, 0),
    (0, 9, 4): (0, 4),
    (9, 0, 4): (4, 0),
    (1000, 3, 2): (2, 0),
    (4001, 2003, 2048): (1365, 683),
    (66, 32, 49): (34, 15),  # 16 in exact arithmetic
    (3, 5, 0): (0, 0),
}
lengths = st.integers(0, 300)


@pytest.mark.parametrize("given_lengths", VECTORS)
def test_pairs_are_cut_as_the_original_cuts_them(given_lengths: tuple[int, int, int]) -> None:
    assert truncate_pair(*given_lengths) == VECTORS[given_lengths]


@given(source=lengths, target=lengths, cutoff=lengths)
def test_a_pair_fills_its_budget_and_no_side_grows(source: int, target: int, cutoff: int) -> None:
    kept_source, kept_target = truncate_pair(source, target, cutoff)
    assert 0 <= kept_source <= source
    assert 0 <= kept_target <= target
    assert kept_source + kept_target == min(cutoff, source + target)
    if 2 * target < cutoff:
        assert kept_target == target
    elif 2 * source < cutoff:
        assert kept_source == source


def test_turns_take_what_the_ones_before_left() -> None:
    turns = [(30, 10), (20, 40), (5, 5)]
    assert truncate_turns(turns, 64) == [(30, 10), (8, 16), (0, 0)]
    assert truncate_turns(turns, 64, last_first=True) == [(0, 0), (20, 34), (5, 5)]
    assert truncate_turns(turns, 1000) == turns


@given(turns=st.lists(st.tuples(lengths, lengths), max_size=6), cutoff=lengths, last_first=st.booleans())
def test_turns_fill_their_budget(turns: list[tuple[int, int]], cutoff: int, last_first: bool) -> None:
    kept = truncate_turns(turns, cutoff, last_first=last_first)
    assert len(kept) == len(turns)
    assert sum(map(sum, kept)) == min(cutoff, sum(map(sum, turns)))


@pytest.mark.parametrize("lengths", [(-1, 2, 3), (1, -2, 3), (1, 2, -3)])
def test_negative_lengths_are_refused(lengths: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="none may be negative"):
        truncate_pair(*lengths)
