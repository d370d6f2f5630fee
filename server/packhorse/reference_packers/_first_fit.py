"""First-fit-decreasing: each sequence, longest first, goes into the earliest opened bin that has room for it."""

from collections import Counter

from packhorse.packing import Template, fill_decreasing


def first_fit_decreasing(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs longest first, each sequence into the earliest opened bin with room.

    Takes O(n log n) for n distinct lengths. For the arguments, see `REFERENCE_PACKERS`.
    """
    return fill_decreasing(pairs, capacity, limit, _opened_first)


def _opened_first(room: int, first: int, stamp: int) -> tuple[int, int]:
    """Returns the key of a bin with this room, opened as number `first` and last touched at `stamp`: its number."""
    return first, 0
