"""Shortest- and longest-pack-first, the histogram packers of Krell et al.

M. M. Krell, M. Kosec, S. P. Perez, A. Fitzgibbon, "Efficient Sequence Packing without Cross-contamination" (2021).
Among bins with equal room, both take the bin to which a sequence was added last. The paper's "depth" is our limit of
sequences in a bin. Leaves the loops, which take the bin with the smallest key, to `packhorse.packing`.
"""

from collections import Counter

from packhorse.packing import Template, fill_decreasing, spread_decreasing


def shortest_pack_first(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs longest first, each sequence into the emptiest bin; a sequence that fits nowhere opens a bin.

    For the arguments, see `REFERENCE_PACKERS`.
    """
    return spread_decreasing(pairs, capacity, limit, _most_room_latest, one_per_new_bin=True)


def longest_pack_first(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs longest first, each length into the fullest bins with room, as many sequences as fit.

    For the arguments, see `REFERENCE_PACKERS`.
    """
    return fill_decreasing(pairs, capacity, limit, _least_room_latest)


def _least_room_latest(room: int, first: int, stamp: int) -> tuple[int, int]:
    """Returns the key of a bin: the least room first, and among equal rooms the latest touched."""
    return room, -stamp


def _most_room_latest(room: int, first: int, stamp: int) -> tuple[int, int]:
    """Returns the key of a bin: the most room first, and among equal rooms the latest touched."""
    return -room, -stamp
