"""First-fit-decreasing: among bins with room, the one opened earliest."""

from collections import Counter

from packhorse.packing import Template, fill_decreasing


def first_fit_decreasing(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs each sequence into the bin opened earliest that has room, in O(distinct lengths · log)."""
    return fill_decreasing(pairs, capacity, limit, _opened_first)


def _opened_first(room: int, first: int, stamp: int) -> tuple[int, int]:
    """Orders bins by when they were opened."""
    return first, 0
