"""Seeds of several components: seqpack's values, and no collisions where sums would collide."""

import seqpack
from hypothesis import given
from hypothesis import strategies as st

from packhorse.packing import seed_from_components


@given(st.lists(st.integers(-(2**70), 2**70), max_size=5))
def test_equals_seqpack(components):
    assert seed_from_components(*components) == seqpack.seed_from_components(*components)
    assert 0 <= seed_from_components(*components) < 2**64


def test_order_and_grouping_matter():
    """Components that sum or concatenate alike must not meet."""
    tuples = [(seed, epoch, rank) for seed in range(12) for epoch in range(12) for rank in range(12)]
    tuples += [(1, 23), (12, 3), (123,), (2, 1), ()]
    assert len({seed_from_components(*components) for components in tuples}) == len(tuples)
