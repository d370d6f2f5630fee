"""Skips against a list: what is left of range(n), and where everything went."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.topology import Skips

RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 15)).map(lambda r: (r[0], r[0] + r[1])), max_size=5)


@given(RANGES, st.integers(0, 50))
def test_what_is_left_is_numbered_without_a_gap(ranges, num_bins):
    skips = Skips.of(ranges).within(num_bins)
    left = [p for p in range(num_bins) if not any(first <= p < end for first, end in ranges)]
    assert num_bins - skips.num_skipped == len(left)
    assert [skips.to_whole(p) for p in range(len(left))] == left
    assert Skips.parse([str(skips)]) == skips
    assert bool(skips) == bool(skips.ranges)


@given(RANGES, RANGES, st.integers(0, 40))
def test_a_cursor_is_good_where_all_that_it_has_behind_it_is_the_same(ranges, others, position):
    """Equal `before` means: what was consumed up to the position is the same; later ranges may differ."""
    skips, other = Skips.of(ranges), Skips.of(others)
    if skips.before(position) == other.before(position):
        assert [skips.to_whole(p) for p in range(position)] == [other.to_whole(p) for p in range(position)]


def test_a_range_ahead_of_the_cursor_is_not_behind_it():
    assert Skips.of([(10, 20)]).before(10) == Skips()
    assert Skips.of([(10, 20)]).before(11) == Skips(((10, 20),))


@pytest.mark.parametrize("text", ["5", "5:", ":5", "a:b", "5:3", "5:5", "-1:4", "1:2:3"])
def test_what_is_no_range_is_named(text):
    with pytest.raises(ValueError, match=r"^skip .* (is not FIRST:END|is empty)"):
        Skips.parse([text])


@pytest.mark.parametrize("texts", [(), set(), iter([])])
def test_no_text_is_no_skip(texts):
    assert Skips.parse(texts) == Skips()
