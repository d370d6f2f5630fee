"""SPREAD: the sequences of a last, partial step dealt over all its bins.

Owns the dealing. It only ever splits bins, so no bin outgrows its capacity or its number of sequences; the bins that
were missing take what is split off. A bin of the epoch keeps its offset in the step, with one exception: where nothing
is left to split and its rank has two bins more than another, it moves there whole.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.epoch.topology import ADDED, Topology
from packhorse.epoch.view import Bins
from packhorse.packing.split import halve_into, laid_end_to_end


@dataclass(frozen=True, eq=False)
class DealtStep:
    """A partial step made whole."""

    bins: Bins
    """The step's bins by offset: as many as `topology.bins_per_step`."""
    tail_ends: NDArray[np.int64]
    """Exclusive end of every bin of the partial step among its sequences: int64 [bins of the epoch in it]."""
    dealt_index: NDArray[np.int64]
    """Where each sequence of the partial step went, as an index into `bins.ids`: int64 [S]."""

    def select(self, first: int, last: int) -> Bins:
        """Returns the bins at the offsets [first, last) of the step."""
        ends = self.bins.bin_ends
        start, end = int(ends[first - 1]) if first else 0, int(ends[last - 1])
        starts = self.bins.starts
        return Bins(
            ids=self.bins.ids[start:end],
            lengths=self.bins.lengths[start:end],
            bin_ends=ends[first:last] - start,
            positions=self.bins.positions[first:last],
            starts=None if starts is None else starts[start:end],
        )

    def find(self, index: int) -> tuple[int, int]:
        """Returns the offset and the index in its bin of the partial step's sequence `index`."""
        dealt = int(self.dealt_index[index])
        offset = int(np.searchsorted(self.bins.bin_ends, dealt, side="right"))
        return offset, dealt - (int(self.bins.bin_ends[offset - 1]) if offset else 0)


def deal(tail: Bins, topology: Topology) -> DealtStep:
    """Deals the sequences of a partial step over its `bins_per_step` bins.

    The fullest bin that still has two sequences is halved, again and again, until no bin is empty or every bin has one
    sequence. In the latter case bins move until no rank has two more than another.

    Args:
        tail: the epoch's last bins, fewer than `topology.bins_per_step`.
        topology: of the run.
    """
    num_tail, num_bins = len(tail.bin_ends), topology.bins_per_step
    members = np.arange(len(tail.ids), dtype=np.int64)
    sizes = np.diff(tail.bin_ends, prepend=0, append=np.full(num_bins - num_tail, len(tail.ids)))
    starts = np.concatenate(([0], tail.bin_ends[:-1], np.zeros(num_bins - num_tail, np.int64)))[:num_bins]
    positions = np.concatenate((tail.positions, np.full(num_bins - num_tail, ADDED)))
    offsets = np.arange(num_bins).reshape(topology.world_size, topology.batch_size).T.ravel()  # every rank's slot 0, …
    missing = offsets[offsets >= num_tail]
    num_filled = halve_into(members, starts, sizes, tail.lengths, missing)
    empty, filled = missing[num_filled:], offsets[sizes[offsets] > 0][::-1]
    pairs = min(len(empty), len(filled))
    moves = int((filled[:pairs] % topology.batch_size > empty[:pairs] % topology.batch_size).sum())
    old, new = filled[:moves], empty[:moves]
    for values in (starts, sizes, positions):
        values[new], values[old] = values[old], values[new]
    order, bin_ends = laid_end_to_end(members, starts, sizes)
    dealt_index = np.empty(len(order), dtype=np.int64)
    dealt_index[order] = np.arange(len(order))
    bins = Bins(
        ids=tail.ids[order],
        lengths=tail.lengths[order],
        bin_ends=bin_ends,
        positions=positions,
        starts=None if tail.starts is None else tail.starts[order],
    )
    return DealtStep(bins, tail.bin_ends, dealt_index)
