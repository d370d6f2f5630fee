"""Training without packing, against sequences laid out one by one."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.analysis import concatenated, padded, random_order, sorted_batches, ways_without_packing
from packhorse.topology import RoomRule

ROOMS = st.dictionaries(st.integers(1, 20), st.integers(1, 9), min_size=1, max_size=6)


def one_by_one(rooms: dict[int, int]) -> list[int]:
    return [room for room, count in rooms.items() for _ in range(count)]


def num_cut(lengths: list[int], max_seq_len: int, first_token: int) -> int:
    """Sequences in more than one row, where the first begins at this token of a row."""
    cut, at = 0, first_token
    for length in lengths:
        cut += at // max_seq_len != (at + length - 1) // max_seq_len
        at += length
    return cut


@given(ROOMS)
def test_padded_rows_hold_one_sequence_each(rooms: dict[int, int]) -> None:
    made, all_of_them = padded(rooms, 20), one_by_one(rooms)
    assert (made.rows, made.computed_tokens) == (len(all_of_them), 20 * len(all_of_them))
    assert made.efficiency == pytest.approx(sum(all_of_them) / (20 * len(all_of_them)))


@given(ROOMS, st.integers(1, 7))
def test_sorted_batches_are_as_long_as_their_longest(rooms: dict[int, int], rows_per_batch: int) -> None:
    longest_first = sorted(one_by_one(rooms), reverse=True)
    batches = [longest_first[i : i + rows_per_batch] for i in range(0, len(longest_first), rows_per_batch)]
    assert sorted_batches(rooms, rows_per_batch).computed_tokens == sum(len(batch) * batch[0] for batch in batches)


@given(ROOMS, st.integers(2, 15))
def test_concatenation_cuts_what_it_cuts_on_average_over_all_beginnings(rooms: dict[int, int], size: int) -> None:
    lengths = one_by_one(rooms)
    mean = Fraction(sum(num_cut(lengths, size, first) for first in range(size)), size)
    made = concatenated(rooms, size)
    assert made.sequences_cut == round(mean)
    assert made.rows == -(-sum(lengths) // size)


def test_concatenation_in_random_order_cuts_as_many_as_is_said() -> None:
    generator = np.random.default_rng(4)
    lengths = np.clip(generator.lognormal(4, 1, 20_000), 1, 3000).astype(int)
    said = concatenated(Counter(lengths.tolist()), 1024).sequences_cut
    cut = [num_cut(generator.permutation(lengths).tolist(), 1024, 0) for _ in range(5)]
    assert said == pytest.approx(np.mean(cut), rel=0.01)


@given(ROOMS, st.none() | st.integers(1, 4))
def test_rows_in_random_order_take_the_next_sequence_until_it_does_not_fit(
    rooms: dict[int, int], limit: int | None
) -> None:
    order = np.random.default_rng(0).permutation(one_by_one(rooms)).tolist()
    rows, left, sequences = 0, 0, 0
    for room in order:
        if not rows or room > left or sequences == limit:
            rows, left, sequences = rows + 1, 20, 0
        left, sequences = left - room, sequences + 1
    assert random_order(rooms, 20, limit).rows == rows


def test_many_sequences_are_drawn_and_scaled_up() -> None:
    few, many = random_order({300: 2000, 700: 1000}, 1000), random_order({300: 2_000_000, 700: 1_000_000}, 1000)
    assert many.rows == pytest.approx(1000 * few.rows, rel=0.02)


def test_the_concatenation_takes_long_sequences_as_they_are_and_aligns_none() -> None:
    rule = RoomRule(10, align=5, extra_tokens=1)
    padded_way, sorted_way, random_way, joined = ways_without_packing({3: 2, 29: 1}, rule, "split")
    assert padded_way.rows == 6  # rooms 5, 5, and of 29 tokens 9 + 9 + 9 + 2: rooms 10, 10, 10, 5
    assert sorted_way.computed_tokens == 6 * 10
    assert random_way.efficiency == pytest.approx(45 / random_way.computed_tokens)
    assert joined.rows == 4  # 4 + 4 + 30 tokens
    assert joined.sequences_cut == round(0.3 + 0.3 + 1)
