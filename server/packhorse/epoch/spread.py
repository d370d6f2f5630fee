"""SPREAD: the sequences of a last, partial step dealt over all its bins.

Owns the dealing. It only ever splits bins, so no bin outgrows its capacity or its number of sequences; the places that
were missing take what is split off. A bin of the epoch keeps its place in the step, unless nothing is left to split and
its rank has two bins more than another: then it moves there whole.
"""

from collections import deque
from collections.abc import Iterable

import numpy as np

from packhorse.epoch.topology import ADDED, Topology
from packhorse.epoch.view import Bins
from packhorse.packing.split import halve_into


def _slots_first(offsets: Iterable[int], topology: Topology) -> list[int]:
    """Sorts offsets in the step so that every rank's first slot comes before any rank's second."""
    return sorted(offsets, key=lambda offset: topology.place(offset)[::-1])


def deal(tail: Bins, topology: Topology) -> list[tuple[int, list[int]]]:
    """Deals the sequences of a partial step over its `bins_per_step` places.

    The fullest bin that still has two sequences is halved, again and again, until every place has a bin or every bin
    has one sequence. In the latter case bins move until no rank has two more than another.

    Args:
        tail: the epoch's last bins, fewer than `topology.bins_per_step`.
        topology: of the run.

    Returns:
        For each offset in [0, bins_per_step): its bin's position (ADDED where the policy added the bin), and its
        sequences as indices into `tail.ids`, in their old order.
    """
    members: list[list[int]] = [[] for _ in range(topology.bins_per_step)]
    start = 0
    for offset, end in enumerate(tail.bin_ends.tolist()):
        members[offset] = list(range(start, end))
        start = end
    positions = [*tail.positions.tolist(), *[ADDED] * (topology.bins_per_step - len(tail.bin_ends))]
    places = _slots_first(range(len(tail.bin_ends), topology.bins_per_step), topology)
    empty = deque(halve_into(members, tail.lengths, places))
    filled = _slots_first((offset for offset, group in enumerate(members) if group), topology)
    while empty and topology.place(filled[-1])[1] > topology.place(empty[0])[1]:
        old, new = filled.pop(), empty.popleft()
        members[new], members[old] = members[old], members[new]
        positions[new], positions[old] = positions[old], positions[new]
    return list(zip(positions, members, strict=True))


def select(tail: Bins, bins: list[tuple[int, list[int]]]) -> Bins:
    """Returns dealt bins (a slice of what `deal` returned) laid end to end."""
    members = np.array([m for _, group in bins for m in group], dtype=np.int64)
    return Bins(
        ids=tail.ids[members],
        lengths=tail.lengths[members],
        bin_ends=np.cumsum([len(group) for _, group in bins], dtype=np.int64),
        positions=np.array([position for position, _ in bins], dtype=np.int64),
        starts=None if tail.starts is None else tail.starts[members],
    )
