"""One epoch of a mixture as a source: each position is a bin of some component's own epoch.

Owns the step from a position to (component, its epoch, its position) and back. Leaves the component of each position to
`_component_order`, joining what components say of ids to `_located_rows`, and the stages and the component's bins with
which this epoch begins to `mixture`.

A draw is `bins_per_draw` consecutive bins of one component. A bin's number counts the bins of its component in this
epoch before it. Shape letters: C components, N bins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.compiling import kernel_or
from packhorse.epoch.bins import Bins
from packhorse.epoch.sources._component_order import ComponentOrder
from packhorse.epoch.sources._located_rows import joined_locations, rows_of, rows_of_missing
from packhorse.epoch.sources.source import Locations, Source, checked_positions
from packhorse.epoch.sources.stages import Component
from packhorse.epoch.sources.unfilled import Outline, UnfilledBins, concatenated, filled, find_in, reordered

_BYTES_PER_COMPONENT = 128  # memory of a segment for each component, about
_ONE = np.uint64(1)
_BEGIN, _END, _LEAST, _GREATEST = range(4)  # columns of the table that `_group` writes


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Segment:
    """A range of an epoch's draws in which the weights are the same."""

    first: int
    """First draw of the segment in the epoch."""
    end: int
    """First draw after the segment."""
    order: ComponentOrder
    """Component of each draw; the order may begin before this segment and end after it."""
    offset: int
    """Number of draws of the order before this segment."""
    offset_counts: Sequence[int]
    """Number of these draws for each component."""
    before: NDArray[np.int64]
    """Number of draws that each component has in this epoch before this segment: int64 [C]."""
    counts: NDArray[np.int64]
    """Number of draws that each component has in this segment: int64 [C]."""

    def look_up(self, draws: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns the component of some of the segment's draws, and the number of its draws before in the segment."""
        return self.order.look_up(self.offset, self.offset_counts, draws - self.first)


class BinRange(NamedTuple):
    """The bins that one epoch of a mixture takes from a component: a range that may go over several of its epochs."""

    epoch: int
    """The component's epoch in which the range begins."""
    position: int
    """The position in this epoch at which the range begins."""
    num_bins: int
    """Number of bins."""


class _Part(NamedTuple):
    """The wanted bins that come from one epoch of a component."""

    component: int
    """Number of the component."""
    source: Source
    """The component's epoch."""
    bins: slice
    """Range of these bins when the bins of all parts are laid end to end."""
    positions: NDArray[np.int64]
    """Positions of these bins in the component's epoch: int64 [bins]."""


class MixtureEpoch:
    """One epoch of a mixture.

    Args:
        components: the mixture's components.
        segments: segments of all draws of the epoch, in order.
        begins: (epoch, position) at which each component continues when this epoch begins.
        bins_per_draw: consecutive bins that come from one component.
    """

    def __init__(
        self,
        components: Sequence[Component],
        segments: Sequence[Segment],
        begins: Sequence[tuple[int, int]],
        bins_per_draw: int = 1,
    ) -> None:
        self._components = components
        self._segments = segments
        self._bins_per_draw = bins_per_draw
        self.num_bins = segments[-1].end * bins_per_draw
        self.max_seq_len = max(component.max_seq_len for component in components)
        self.max_sequences_per_bin = max(component.max_sequences_per_bin for component in components)
        self._num_taken = (segments[-1].before + segments[-1].counts) * bins_per_draw
        self._firsts = np.array([segment.first for segment in segments], dtype=np.int64)
        self._first_epochs = [epoch for epoch, _ in begins]
        self._first_positions = np.array([position for _, position in begins], dtype=np.int64)
        num_datasets = (component.num_datasets for component in components)
        self._first_dataset = np.cumsum([0, *num_datasets], dtype=np.int32)
        self._first_template = np.cumsum([0, *(component.num_templates for component in components)]).tolist()

    @property
    def num_bytes(self) -> int:
        """The most bytes of memory of this epoch, without its datasets and the components' epochs."""
        order_bytes = sum(segment.order.most_bytes for segment in self._segments)
        return order_bytes + _BYTES_PER_COMPONENT * len(self._components) * len(self._segments)

    @property
    def taken(self) -> list[BinRange]:
        """The bins that this epoch takes from each component."""
        positions = self._first_positions.tolist()
        return [BinRange(*each) for each in zip(self._first_epochs, positions, self._num_taken.tolist(), strict=True)]

    def bins(self, positions: ArrayLike) -> Bins:
        """Returns the bins at the given positions, in that order; raises a ValueError if one is outside.

        Their component_ids are numbers of prepared datasets, in the order of components and of the datasets in each.
        """
        wanted_positions = checked_positions(positions, self.num_bins)
        order, parts = self._parts(*self._look_up(wanted_positions))
        sizes = [len(part.positions) for part in parts]
        first_datasets = self._first_dataset[[part.component for part in parts]]
        outline = Outline.of(len(wanted_positions), np.repeat(first_datasets, sizes))
        unfilled = concatenated([self._find_part(part, outline) for part in parts])
        if len(parts) > 1:
            by_part = outline
            outline = Outline.of(len(wanted_positions), np.empty(len(wanted_positions), dtype=np.int32))
            unfilled = reordered(unfilled, by_part, order, outline)
        return filled(unfilled, outline, wanted_positions)

    def _find_part(self, part: _Part, outline: Outline) -> UnfilledBins:
        """Finds the bins of a part, and writes its range of the outline."""
        has_templates = self._components[part.component].num_templates > 0
        first_template = self._first_template[part.component] if has_templates else None
        return find_in(part.source, part.positions, outline.part(part.bins), first_template)

    def costs(self, positions: ArrayLike, cost_linear: int) -> NDArray[np.int64]:
        """Returns the costs of the bins at the given positions: int64 [N]."""
        wanted_positions = checked_positions(positions, self.num_bins)
        order, parts = self._parts(*self._look_up(wanted_positions))
        return np.concatenate([part.source.costs(part.positions, cost_linear) for part in parts]).take(order)

    def locate(self, ids: ArrayLike) -> Locations:
        """Returns where ids are in this epoch; see `Locations` for the rows of one id.

        Asks each component's epochs from which this epoch takes bins, and joins their rows.
        """
        wanted_ids = np.ascontiguousarray(ids, dtype=np.int64)
        unique, which_of = np.unique(wanted_ids, return_inverse=True)
        parts = [rows_of_missing(unique)]  # in case that no component has an id
        for component, (epoch, begin, num_taken) in enumerate(self.taken):
            num_bins = max(self._components[component].num_bins, 1)
            # `epochs_on` counts from the component's first epoch. At least one is asked, also if no bin is taken from
            # the component: its ids are known then, without a position.
            first_on, end_on = begin // num_bins, -(-(begin + num_taken) // num_bins)
            for epochs_on in range(first_on, max(end_on, first_on + 1)):
                found = self._components[component].source_of(epoch + epochs_on).locate(unique)
                numbers = np.where(found.positions < 0, -1, found.positions + epochs_on * num_bins - begin)
                numbers[numbers >= num_taken] = -1
                positions = self._positions_of(component, numbers)
                inner_ids = np.zeros(len(found.ids), np.int64) if found.component_ids is None else found.component_ids
                dataset_ids = inner_ids + self._first_dataset[component]
                rows = rows_of(unique, found, np.where(found.lengths < 0, -1, dataset_ids), positions)
                parts.append(rows[:, found.lengths >= 0])
        return joined_locations(parts, unique, which_of)

    def _parts(
        self, components: NDArray[np.int32], numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], list[_Part]]:
        """Divides wanted bins by component and by its epochs.

        Args:
            components: component of each bin: int32 [N].
            numbers: number of each bin among those of its component in this epoch: int64 [N].

        Returns:
            For each wanted bin, its index if all parts are laid end to end, int64 [N]; and the parts. Without wanted
            bins there is one empty part, of the first component.
        """
        # `in_component`: each bin's position, counted from the first of the component's epochs, in the order of parts.
        order, in_component = np.empty((2, len(components)), dtype=np.int64)
        table = np.zeros((len(self._components), 4), dtype=np.int64)
        _group(components, numbers, self._first_positions, table, order, in_component)
        used = np.flatnonzero(table[:, _END] > table[:, _BEGIN]) if len(components) else np.array([0])
        parts = []
        for number, (begin, end, least, greatest) in zip(used.tolist(), table[used].tolist(), strict=True):
            component = self._components[number]
            num_bins = max(component.num_bins, 1)
            epochs, edges = [least // num_bins], [begin, end]  # epochs are counted from the component's first one
            if greatest // num_bins > least // num_bins:  # bins of several epochs of the component: sort them by epoch
                by_epoch = np.argsort(in_component[begin:end] // num_bins, kind="stable")
                in_component[begin:end] = in_component[begin:end][by_epoch]
                order[np.flatnonzero(components == number)[by_epoch]] = np.arange(begin, end)
                used_epochs, firsts = np.unique(in_component[begin:end] // num_bins, return_index=True)
                epochs, edges = used_epochs.tolist(), [*(begin + firsts).tolist(), end]
            for epochs_on, (first, after) in zip(epochs, pairwise(edges), strict=True):
                source = component.source_of(self._first_epochs[number] + epochs_on)
                positions = in_component[first:after] - epochs_on * num_bins
                parts.append(_Part(number, source, slice(first, after), positions))
        return order, parts

    def _look_up(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns each position's component, and the bin's number among those of the component in this epoch."""
        if self._bins_per_draw == 1:
            return self._look_up_draws(positions)
        draws, inside = np.divmod(positions, self._bins_per_draw)
        components, numbers = self._look_up_draws(draws)
        return components, numbers * self._bins_per_draw + inside

    def _look_up_draws(self, draws: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns each draw's component, and the draw's number among those of the component in this epoch."""
        if len(self._segments) == 1:
            return self._segments[0].look_up(draws)  # nothing comes before it in the epoch
        components = np.empty(len(draws), dtype=np.int32)
        numbers = np.empty(len(draws), dtype=np.int64)
        segment_of = np.searchsorted(self._firsts, draws, side="right") - 1
        for number in np.flatnonzero(np.bincount(segment_of)).tolist():
            segment, indices = self._segments[number], np.flatnonzero(segment_of == number)
            components[indices], numbers_in_segment = segment.look_up(draws[indices])
            numbers[indices] = numbers_in_segment + segment.before[components[indices]]
        return components, numbers

    def _positions_of(self, component: int, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the positions of a component's bins, given their numbers in this epoch; -1 for a number below 0."""
        positions = np.full(len(numbers), -1, dtype=np.int64)
        draws, inside = np.divmod(numbers, self._bins_per_draw)
        for segment in self._segments:
            in_segment = draws - segment.before[component]  # numbers of draws, counted from the segment's first
            is_there = (numbers >= 0) & (in_segment >= 0) & (in_segment < segment.counts[component])
            end = segment.offset + segment.end - segment.first
            found = segment.order.positions_of(
                component, segment.offset, segment.offset_counts, end, in_segment[is_there]
            )
            positions[is_there] = (found + segment.first) * self._bins_per_draw + inside[is_there]
        return positions


@kernel_or()
def _group(
    components: Any, numbers: Any, first_positions: Any, parts_out: Any, order_out: Any, positions_out: Any
) -> None:
    """Sorts bins by component, stably.

    A position here is numbers + first_positions[component]: it counts the component's bins from the beginning of the
    component's first epoch that this epoch takes bins from.

    Args:
        components: component of each bin: int32 [N].
        numbers: number of each bin among those of its component in this epoch: int64 [N].
        first_positions: position at which each component begins: int64 [C].
        parts_out: zeros; receives the begin and end of each component's bins in the new order, and their least and
            greatest position: int64 [C, 4].
        order_out: receives the new index of each bin: int64 [N].
        positions_out: receives positions in the new order: int64 [N].
    """
    ends = np.zeros(len(parts_out), np.uint64)  # unsigned: no index is checked for being below 0
    for component in components:
        ends[np.uint64(component)] += _ONE
    end = np.uint64(0)
    for number in range(len(parts_out)):
        parts_out[number, _BEGIN], ends[number], end = end, end, end + ends[number]
        parts_out[number, _END] = end
    for i in range(len(components)):
        component = np.uint64(components[i])
        at = ends[component]
        order_out[i], positions_out[at] = at, numbers[i] + first_positions[component]
        ends[component] = at + _ONE
    for number in range(len(parts_out)):
        begin, end = np.uint64(parts_out[number, _BEGIN]), np.uint64(parts_out[number, _END])
        if begin < end:
            least = greatest = positions_out[begin]
            for at in range(begin, end):
                least, greatest = min(least, positions_out[at]), max(greatest, positions_out[at])
            parts_out[number, _LEAST], parts_out[number, _GREATEST] = least, greatest
