"""Published packers to compare with, which the packer "auto" never chooses.

Owns their names. Planning with them is in `packhorse.packing`, which finds them by a hook of `packhorse.shelf`.
"""

from collections import Counter
from collections.abc import Callable, Mapping

from packhorse.packing import Template
from packhorse.reference_packers._first_fit import first_fit_decreasing
from packhorse.reference_packers._greedy_knapsack import greedy_knapsack
from packhorse.reference_packers._length_sorted import length_sorted
from packhorse.reference_packers._pack_first import longest_pack_first, shortest_pack_first

__all__ = ["REFERENCE_PACKERS"]

REFERENCE_PACKERS: Mapping[str, Callable[[list[tuple[int, int]], int, int], Counter[Template]]] = {
    "first-fit": first_fit_decreasing,
    "greedy-knapsack": greedy_knapsack,
    "length-sorted": length_sorted,
    "longest-pack-first": longest_pack_first,
    "shortest-pack-first": shortest_pack_first,
}
"""Name → packer. Every packer takes (pairs, capacity, limit) and returns template → multiplicity.

`pairs` are (length in tokens, number of sequences), longest first and checked; `capacity` is a bin's, in tokens;
`limit` is the most sequences in a bin.
"""
