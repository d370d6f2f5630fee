"""Rooms: the formula, and its inverse, counted out."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from packhorse.topology import RoomRule


@given(st.integers(1, 60), st.integers(1, 20), st.integers(-1, 9), st.integers(1, 80))
@example(1, 2, -1, 1)  # no room fits: not even that of a sequence without its last token
def test_a_room_is_the_least_multiple_that_holds_the_tokens(max_seq_len, align, extra_tokens, length):
    rule = RoomRule(max_seq_len, align, extra_tokens)
    room = rule.room(length)
    assert room == next(n for n in range(align, 1000, align) if n >= length + extra_tokens)
    assert max(n for n in range(1, 200) if rule.room(n) == room) == rule.longest_in(room)
    assert rule.longest_length == max(max_seq_len, rule.longest)
    assert (rule.room(length) <= max_seq_len) == (length <= rule.longest)
    assert rule.room(np.array([length, length + 1])).tolist() == [room, rule.room(length + 1)]


def test_a_plain_rule_changes_nothing():
    assert RoomRule(8).is_plain
    assert not RoomRule(8, 2).is_plain
    assert not RoomRule(8, 1, 1).is_plain
    assert not RoomRule(8, 1, -1).is_plain
    assert RoomRule(8).room(5) == 5


@pytest.mark.parametrize("name", ["max_seq_len", "align", "extra_tokens"])
def test_bad_numbers_are_named(name):
    with pytest.raises(ValueError, match=f"^{name} must be an integer"):
        RoomRule(**({"max_seq_len": 8} | {name: -2}))
