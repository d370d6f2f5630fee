"""A last step that the epoch's bins do not fill, made whole as the remainder policy says.

Owns the filling. SPREAD deals the sequences of the step over all its bins; REPEAT and EMPTY add bins. SPREAD only ever
splits bins, and never a group, so no bin outgrows its capacity or its number of sequences; the bins that were missing
take what is split off. A bin of the epoch keeps its offset in the step, with one exception: where nothing is left to
split, and its rank has two bins more than another, it moves there whole.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from packhorse.epoch.bins import Bins, joined
from packhorse.epoch.sources.source import Source
from packhorse.packing import halve_into, laid_end_to_end
from packhorse.topology import ADDED, RemainderPolicy, Stretch, Topology


@dataclass(frozen=True, slots=True, eq=False)
class FilledStep:
    """A partial step made whole."""

    bins: Bins
    """The step's bins by offset, as many as a whole step has."""
    tail_ends: NDArray[np.int64]
    """Exclusive end of every bin of the partial step among its sequences: int64 [bins of the epoch in it]."""
    dealt_index: NDArray[np.int64]
    """Where each sequence of the partial step went, as an index into `bins.ids`: int64 [S]."""

    def find(
        self, offsets: NDArray[np.int64], index_in_bin: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns where sequences of the partial step went: the offsets of their bins, and their indices in these.

        Args:
            offsets: int64 [n], of their bins in the partial step.
            index_in_bin: int64 [n], in these bins.
        """
        starts = np.concatenate(([0], self.tail_ends))
        dealt = self.dealt_index[starts[offsets] + index_in_bin]
        found = np.searchsorted(self.bins.bin_ends, dealt, side="right")
        return found, dealt - np.concatenate(([0], self.bins.bin_ends))[found]


def fill_last_step(source: Source, topology: Topology) -> FilledStep:
    """Returns the last step of an epoch that does not fill it, under any policy but DROP."""
    num_tail = topology.num_tail_bins(source.num_bins)
    tail = source.bins(np.arange(source.num_bins - num_tail, source.num_bins))
    stretch = topology.stretch_at(topology.num_left(source.num_bins))
    num_added = stretch.bins_per_step - num_tail
    if topology.remainder is RemainderPolicy.SPREAD:
        return _dealt(tail, stretch)
    if topology.remainder is RemainderPolicy.REPEAT:
        added = source.bins(np.arange(num_added) % source.num_bins)
        added = replace(added, positions=np.full(num_added, ADDED))
    else:
        added = replace(
            tail.take(np.zeros(0, np.int64)),
            bin_ends=np.zeros(num_added, np.int64),
            positions=np.full(num_added, ADDED),
            component_ids=None if tail.component_ids is None else np.full(num_added, -1, np.int32),
            templates=None,
        )
    return FilledStep(joined((tail, added)), tail.bin_ends, np.arange(len(tail.ids)))


def _dealt(tail: Bins, stretch: Stretch) -> FilledStep:
    """Deals the sequences of a partial step over all bins of the step.

    The fullest bin that still has two sequences is halved, again and again, until no bin is empty or every bin has one
    sequence; a group counts as one. In the latter case bins move until no rank has two more than another.
    """
    num_tail, num_bins = len(tail.bin_ends), stretch.bins_per_step
    items = tail.items()
    ends = np.searchsorted(items, tail.bin_ends)  # of every bin among the items
    members = np.arange(len(items) - 1, dtype=np.int64)
    sizes = np.concatenate((np.diff(ends, prepend=0), np.zeros(num_bins - num_tail, np.int64)))
    starts = np.concatenate((ends, np.zeros(num_bins - num_tail, np.int64))) - sizes
    tokens = np.diff(np.concatenate(([0], np.cumsum(tail.lengths, dtype=np.int64)))[items])
    positions = np.concatenate((tail.positions, np.full(num_bins - num_tail, ADDED)))
    offsets = np.arange(num_bins).reshape(-1, stretch.batch_size).T.ravel()  # every rank's slot 0, …
    missing = offsets[offsets >= num_tail]
    num_filled = halve_into(members, starts, sizes, tokens, missing)
    empty, filled = missing[num_filled:], offsets[sizes[offsets] > 0][::-1]
    pairs = min(len(empty), len(filled))
    moves = int((filled[:pairs] % stretch.batch_size > empty[:pairs] % stretch.batch_size).sum())
    old, new = filled[:moves], empty[:moves]
    for values in (starts, sizes, positions):
        values[new], values[old] = values[old], values[new]
    item_order, item_ends = laid_end_to_end(members, starts, sizes)
    item_sizes = np.diff(items)[item_order]
    bounds = np.concatenate(([0], np.cumsum(item_sizes)))
    order = np.repeat(items[item_order] - bounds[:-1], item_sizes) + np.arange(len(tail.ids))
    bin_ends = bounds[item_ends]
    dealt_index = np.empty(len(order), dtype=np.int64)
    dealt_index[order] = np.arange(len(order))
    bins = Bins(
        ids=tail.ids[order],
        lengths=tail.lengths[order],
        bin_ends=bin_ends,
        positions=positions,
        first_tokens=None if tail.first_tokens is None else tail.first_tokens[order],
        component_ids=None if tail.component_ids is None else _component_ids(tail, order, bin_ends),
        group_ids=None if tail.group_ids is None else tail.group_ids[order],
        rows=None if tail.rows is None else tail.rows[order],
    )
    return FilledStep(bins, tail.bin_ends, dealt_index)


def _component_ids(tail: Bins, order: NDArray[np.int64], bin_ends: NDArray[np.int64]) -> NDArray[np.int32]:
    """Returns the dataset of every dealt bin; its sequences come from one bin of the tail."""
    assert tail.component_ids is not None
    of_sequences = np.repeat(tail.component_ids, tail.sizes())[order]
    sizes = np.diff(bin_ends, prepend=0)
    component_ids = np.full(len(bin_ends), -1, dtype=np.int32)
    component_ids[sizes > 0] = of_sequences[(bin_ends - sizes)[sizes > 0]]
    return component_ids
