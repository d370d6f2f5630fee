"""Keys: every coordinate counts, and none can stand in for another."""

import pytest

from packhorse.epoch import EpochView, PlanIndex, derive_key, independent_seed
from packhorse.packing import seed_from_components


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
