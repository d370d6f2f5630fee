"""Shortest- and longest-pack-first, the histogram packers of Krell et al.

M. M. Krell, M. Kosec, S. P. Perez, A. Fitzgibbon, "Efficient Sequence Packing without Cross-contamination" (2021):
among bins with equal room they take the one touched last. Their "depth" is the most sequences in a bin.
"""

from collections import Counter

from packhorse.packing import Template, fill_decreasing, spread_decreasing


def shortest_pack_first(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs longest first, each sequence into the emptiest bin; those that fit nowhere open a bin each."""
    return spread_decreasing(pairs, capacity, limit, _most_room_latest, one_per_new_bin=True)


def longest_pack_first(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs longest first, each length into the fullest bins with room, as many copies as fit."""
    return fill_decreasing(pairs, capacity, limit, _least_room_latest)


def _least_room_latest(room: int, first: int, stamp: int) -> tuple[int, int]:
    """Orders bins: least room first, of several the one touched last."""
    return room, -stamp


def _most_room_latest(room: int, first: int, stamp: int) -> tuple[int, int]:
    """Orders bins: most room first, of several the one touched last."""
    return -room, -stamp
