"""Filling the last step of an epoch, for which there are too few bins, so that every rank gets as many as before.

Owns the remainder policies that keep this step, and where its sequences are found afterwards. Leaves halving bins to
`packing/split`, and DROP, which leaves the step out, to `assignment`.

In this file an offset is the number of a bin in the last step.
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
    """The last step, after bins or sequences were added so that it is full."""

    bins: Bins
    """Bins of the full step, by their offset in it."""
    tail_ends: NDArray[np.int64]
    """Exclusive end of every bin of the epoch in this step, before it was filled: int64 [bins]."""
    new_index: NDArray[np.int64]
    """For each sequence of these bins, its index in `bins.ids`: int64 [S]."""

    def find(
        self, offsets: NDArray[np.int64], index_in_bin: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns where sequences are after filling: the offsets of their bins, and their indices in these bins.

        Args:
            offsets: int64 [n], offsets of their bins before filling.
            index_in_bin: int64 [n], indices of the sequences in these bins.
        """
        old_starts = np.concatenate(([0], self.tail_ends))
        new_starts = np.concatenate(([0], self.bins.bin_ends))
        sequences = self.new_index[old_starts[offsets] + index_in_bin]
        new_offsets = np.searchsorted(self.bins.bin_ends, sequences, side="right")
        return new_offsets, sequences - new_starts[new_offsets]


def fill_last_step(source: Source, topology: Topology) -> FilledStep:
    """Fills the last step of an epoch, which is not full, by the topology's policy, which is not DROP."""
    num_tail = topology.num_tail_bins(source.num_bins)
    tail = source.bins(np.arange(source.num_bins - num_tail, source.num_bins))
    stretch = topology.stretch_at(topology.num_left(source.num_bins))  # in which the bins that are left end
    num_added = stretch.bins_per_step - num_tail
    if topology.remainder is RemainderPolicy.SPREAD:
        return _spread(tail, stretch)
    if topology.remainder is RemainderPolicy.REPEAT:
        added = source.bins(np.arange(num_added) % source.num_bins)
        added = replace(added, positions=np.full(num_added, ADDED))
    else:
        added = replace(  # empty bins
            tail.take(np.zeros(0, np.int64)),
            bin_ends=np.zeros(num_added, np.int64),
            positions=np.full(num_added, ADDED),
            component_ids=None if tail.component_ids is None else np.full(num_added, -1, np.int32),
            templates=None,
        )
    return FilledStep(bins=joined((tail, added)), tail_ends=tail.bin_ends, new_index=np.arange(len(tail.ids)))


def _spread(tail: Bins, stretch: Stretch) -> FilledStep:
    """Spreads the sequences of a step that is not full over all bins of the full step.

    The fullest bin with at least two items (sequences, or groups) is halved into an empty bin, again and again, until
    no bin is empty or every bin has one item. So no bin gets more tokens or sequences than it had. Bins of the epoch
    keep their offsets. Only if bins stay empty, some bins move, so that no rank has two bins more than another.

    Args:
        tail: the bins of the epoch in this step.
        stretch: the stretch of this step.
    """
    num_tail, num_bins = len(tail.bin_ends), stretch.bins_per_step
    item_starts = tail.items()  # and the number of sequences at the end
    ends = np.searchsorted(item_starts, tail.bin_ends)  # exclusive end of every bin among the items
    item_numbers = np.arange(len(item_starts) - 1, dtype=np.int64)
    # Number of items of every bin of the full step, 0 for an added one, and where they begin in `item_numbers`.
    sizes = np.concatenate((np.diff(ends, prepend=0), np.zeros(num_bins - num_tail, np.int64)))
    starts = np.concatenate((ends, np.zeros(num_bins - num_tail, np.int64))) - sizes
    item_tokens = np.diff(np.concatenate(([0], np.cumsum(tail.lengths, dtype=np.int64)))[item_starts])
    positions = np.concatenate((tail.positions, np.full(num_bins - num_tail, ADDED)))
    # A rank's slots are its bins of a step; offset = rank * batch_size + slot.
    offsets_by_slot = np.arange(num_bins).reshape(-1, stretch.batch_size).T.ravel()  # first every rank's slot 0
    added = offsets_by_slot[offsets_by_slot >= num_tail]
    # Halves bins in place: `item_numbers`, `starts` and `sizes` are of the full step afterwards.
    num_filled = halve_into(item_numbers, starts, sizes, item_tokens, added)
    # If bins stay empty, the last filled one moves to the first empty one, as long as that is in an earlier slot.
    empty, filled = added[num_filled:], offsets_by_slot[sizes[offsets_by_slot] > 0][::-1]
    num_pairs = min(len(empty), len(filled))  # slots of the filled ones fall, those of the empty ones rise
    num_moved = int((filled[:num_pairs] % stretch.batch_size > empty[:num_pairs] % stretch.batch_size).sum())
    old, new = filled[:num_moved], empty[:num_moved]
    for values in (starts, sizes, positions):
        values[new], values[old] = values[old], values[new]
    # From items to their sequences: `order` has the index in `tail` of each sequence of the new bins.
    item_order, item_ends = laid_end_to_end(item_numbers, starts, sizes)
    item_sizes = np.diff(item_starts)[item_order]
    bounds = np.concatenate(([0], np.cumsum(item_sizes)))
    order = np.repeat(item_starts[item_order] - bounds[:-1], item_sizes) + np.arange(len(tail.ids))
    bin_ends = bounds[item_ends]
    new_index = np.empty(len(order), dtype=np.int64)  # the inverse of `order`
    new_index[order] = np.arange(len(order))
    bins = Bins(
        **tail.sequences(order),
        bin_ends=bin_ends,
        positions=positions,
        component_ids=None if tail.component_ids is None else _component_ids(tail, order, bin_ends),
    )
    return FilledStep(bins=bins, tail_ends=tail.bin_ends, new_index=new_index)


def _component_ids(tail: Bins, order: NDArray[np.int64], bin_ends: NDArray[np.int64]) -> NDArray[np.int32]:
    """Returns the component of every bin after spreading, -1 for an empty bin; for the arguments, see `_spread`."""
    assert tail.component_ids is not None
    component_of_sequence = np.repeat(tail.component_ids, tail.sizes())[order]
    sizes = np.diff(bin_ends, prepend=0)
    component_ids = np.full(len(bin_ends), -1, dtype=np.int32)
    component_ids[sizes > 0] = component_of_sequence[(bin_ends - sizes)[sizes > 0]]
    return component_ids
