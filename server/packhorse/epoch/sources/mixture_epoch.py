"""One epoch of a mixture as a source: each position is a bin of some component's own epoch.

Owns the step from a position to (component, its epoch, its position) and back, and remembers it for chunks of
positions. Leaves the choice of each position's component to `_split_tree`, and the stages and the component's bins with
which this epoch begins to `mixture`.

A draw is `bins_per_draw` consecutive bins of one component. A bin's number counts the bins of its component in this
epoch before it. Shape letters: C components, N bins.
"""

import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.compiling import kernel_or
from packhorse.epoch.bins import Bins
from packhorse.epoch.sources._split_tree import SplitTree, deal
from packhorse.epoch.sources.source import (
    Locations,
    Outline,
    Source,
    UnfilledBins,
    checked_positions,
    concatenated,
    filled,
    find_in,
    reordered,
)
from packhorse.epoch.sources.stages import Component
from packhorse.storage import BoundedCache

_CHUNK = 1 << 14  # positions of a chunk
_BYTES_PER_POSITION = 8
_MOST_BYTES = 4 << 20  # memory of the chunks that are remembered, those used last; at least two are


class _Chunk(NamedTuple):
    """Consecutive positions whose components were computed together."""

    before: list[int]
    """Number of positions that each component gets before the chunk."""
    components: NDArray[np.int32]
    """Component of each position: int32 [positions]."""
    numbers: NDArray[np.uint32]
    """For each position, number of the component's positions before it in the chunk: uint32 [positions]."""


class ComponentOrder:
    """The component of each position from 0 on. Thread-safe.

    A position here is a draw of a segment's weights, so it may be beyond the segment that uses the order.

    Args:
        tree: decides which component gets which position; positions are below the sum of its caps.
        length: end of the positions that are ever asked for; None for no end.
    """

    def __init__(self, tree: SplitTree, length: int | None = None) -> None:
        self._tree = tree
        self._length = length
        self._lock = threading.Lock()
        self._chunks: BoundedCache[int, _Chunk] = BoundedCache(max(2, _MOST_BYTES // (_BYTES_PER_POSITION * _CHUNK)))

    @property
    def most_bytes(self) -> int:
        """The most bytes of memory that the order takes."""
        whole = _MOST_BYTES + _BYTES_PER_POSITION * _CHUNK
        return whole if self._length is None else min(_BYTES_PER_POSITION * self._length, whole)

    def before(self, num: int) -> list[int]:
        """Returns the number of the first `num` positions that each component gets; `num` may be of any size."""
        return self._tree.before(num)

    def at(
        self, first: int, before: Sequence[int], positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns the component of each position, and the number of its positions from `first` to there.

        Args:
            first: the position from which `positions` are counted.
            before: `self.before(first)`.
            positions: int64 [N], at least 0.
        """
        components = np.empty(len(positions), dtype=np.int32)
        numbers = np.empty(len(positions), dtype=np.int64)
        done = 0
        while done < len(positions):
            number = (first + int(positions[done])) // _CHUNK
            chunk = self._chunk(number)
            base = np.array([a - b for a, b in zip(chunk.before, before, strict=True)], dtype=np.int64)
            begin = number * _CHUNK - first
            done = _look_up(chunk.components, chunk.numbers, base, begin, positions, done, components, numbers)
        return components, numbers

    def positions_of(
        self, component: int, first: int, before: Sequence[int], end: int, numbers: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Returns the positions of a component with some numbers, counted from `first`: int64 [N]; the inverse of `at`.

        Args:
            component: the component.
            first: as for `at`.
            before: as for `at`.
            end: end of the positions that are searched.
            numbers: for each position, the number of the component's positions from `first` to there: int64 [N].
        """
        positions = np.empty(len(numbers), dtype=np.int64)
        chunks = range(first // _CHUNK, -(-end // _CHUNK))
        for i, number in enumerate(numbers.tolist()):
            wanted = number + before[component]
            which = bisect_right(chunks, wanted, key=lambda c: self._tree.before_of(component, c * _CHUNK)) - 1
            chunk = self._chunk(chunks[which])
            inside = np.flatnonzero(chunk.components == component)[wanted - chunk.before[component]]
            positions[i] = chunks[which] * _CHUNK + int(inside) - first
        return positions

    def _chunk(self, number: int) -> _Chunk:
        """Returns a chunk, and remembers it."""
        with self._lock:
            return self._chunks.get(number, lambda: self._dealt(number))

    def _dealt(self, number: int) -> _Chunk:
        """Computes a chunk."""
        tree, first = self._tree, number * _CHUNK
        length = _CHUNK if self._length is None else min(_CHUNK, self._length - first)
        before, *state = tree.state_at(first)
        components, numbers = np.empty(length, dtype=np.int32), np.empty(length, dtype=np.uint32)
        deal(tree.root, tree.children, tree.units, tree.keys, *state, components, numbers)
        return _Chunk(before, components, numbers)


@kernel_or()
def _look_up(
    components: Any,
    numbers: Any,
    base: Any,
    first: Any,
    positions: Any,
    begin: Any,
    components_out: Any,
    numbers_out: Any,
) -> Any:
    """Looks positions up in a chunk, from index `begin` on, until one lies outside it; returns the index of this one.

    Args:
        components: `_Chunk.components`.
        numbers: `_Chunk.numbers`.
        base: number to add for each component: int64 [C].
        first: the chunk's first position.
        positions: int64 [N].
        begin: index into `positions` of the first to look up.
        components_out: receives components: int32 [N].
        numbers_out: receives numbers: int64 [N].
    """
    for i in range(begin, len(positions)):
        inside = np.uint64(positions[i] - first)  # a negative one becomes very large
        if inside >= np.uint64(len(components)):
            return i
        component = np.uint64(components[inside])  # unsigned: it is not checked for being below 0
        components_out[i] = component
        numbers_out[i] = base[component] + np.int64(numbers[inside])
    return len(positions)


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

    def at(self, draws: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns the component of some of the segment's draws, and the number of its draws before in the segment."""
        return self.order.at(self.offset, self.offset_counts, draws - self.first)


class BinRange(NamedTuple):
    """The bins that one epoch of a mixture takes from a component: a range that may go over several of its epochs."""

    epoch: int
    """The component's epoch in which the range begins."""
    position: int
    """The position in this epoch at which the range begins."""
    num_bins: int
    """Number of bins."""


class _Part(NamedTuple):
    """Those of the wanted bins that belong to one epoch of a component."""

    component: int
    """Number of the component."""
    source: Source
    """The component's epoch."""
    bins: slice
    """Range of these bins, if the bins of all parts are laid end to end."""
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
        of_segments = sum(segment.order.most_bytes for segment in self._segments)
        return of_segments + _BYTES_PER_COMPONENT * len(self._components) * len(self._segments)

    @property
    def taken(self) -> "list[BinRange]":
        """The bins that this epoch takes from each component."""
        positions = self._first_positions.tolist()
        return [BinRange(*each) for each in zip(self._first_epochs, positions, self._num_taken.tolist(), strict=True)]

    def bins(self, positions: ArrayLike) -> Bins:
        """Returns the bins at the given positions, in that order; raises a ValueError if one is outside.

        Their component_ids are numbers of prepared datasets, in the order of components and of the datasets in each.
        """
        wanted = checked_positions(positions, self.num_bins)
        order, parts = self._parts(*self._at(wanted))
        sizes = [len(part.positions) for part in parts]
        first_datasets = self._first_dataset[[part.component for part in parts]]
        outline = Outline.of(len(wanted), np.repeat(first_datasets, sizes))
        unfilled = concatenated([self._find_part(part, outline) for part in parts])
        if len(parts) > 1:
            by_part, outline = outline, Outline.of(len(wanted), np.empty(len(wanted), dtype=np.int32))
            unfilled = reordered(unfilled, by_part, order, outline)
        return filled(unfilled, outline, wanted)

    def _find_part(self, part: _Part, outline: Outline) -> UnfilledBins:
        """Finds the bins of a part, and writes its range of the outline."""
        has_templates = self._components[part.component].num_templates > 0
        first_template = self._first_template[part.component] if has_templates else None
        return find_in(part.source, part.positions, outline.part(part.bins), first_template)

    def costs(self, positions: ArrayLike, cost_linear: int) -> NDArray[np.int64]:
        """Returns the costs of the bins at the given positions: int64 [N]."""
        wanted = checked_positions(positions, self.num_bins)
        order, parts = self._parts(*self._at(wanted))
        return np.concatenate([part.source.costs(part.positions, cost_linear) for part in parts]).take(order)

    def locate(self, ids: ArrayLike) -> Locations:
        """Returns where ids are in this epoch; see `Locations` for the rows of one id.

        It asks every component, for each of its epochs from which this one takes bins, and joins the rows.
        """
        wanted = np.ascontiguousarray(ids, dtype=np.int64)
        unique, which_of = np.unique(wanted, return_inverse=True)
        parts = [_rows(unique, np.full(len(unique), -1), _nowhere(unique))]  # in case that no component has an id
        for component, (epoch, begin, num_taken) in enumerate(self.taken):
            num_bins, end = max(self._components[component].num_bins, 1), begin + num_taken
            for ahead in range(begin // num_bins, max(-(-end // num_bins), begin // num_bins + 1)):
                found = self._components[component].source_of(epoch + ahead).locate(unique)
                numbers = np.where(found.positions < 0, -1, found.positions + ahead * num_bins - begin)
                numbers[numbers >= end - begin] = -1
                positions = self._positions_of(component, numbers)
                own = np.zeros(len(found.ids), np.int64) if found.component_ids is None else found.component_ids
                own = own + self._first_dataset[component]
                # The component's positions and indices become those of this epoch; columns as in `_rows`.
                rows = _rows(unique, np.where(found.lengths < 0, -1, own), found)
                rows[4] = positions
                rows[5] = np.where(positions < 0, -1, found.index_in_bin)
                parts.append(rows[:, found.lengths >= 0])
        rows = _without_superseded(np.concatenate(parts, axis=1))
        sizes = np.bincount(rows[0], minlength=len(unique))[which_of]
        ends = np.cumsum(sizes)
        begins = np.searchsorted(rows[0], which_of)
        rows = rows[:, np.repeat(begins - (ends - sizes), sizes) + np.arange(int(sizes.sum()))]
        return Locations(
            ids=unique[rows[0]],
            component_ids=rows[1],
            first_tokens=rows[2],
            lengths=rows[3],
            positions=rows[4],
            index_in_bin=rows[5],
        )

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
        order, owns = np.empty((2, len(components)), dtype=np.int64)
        table = np.zeros((len(self._components), 4), dtype=np.int64)
        _group(components, numbers, self._first_positions, table, order, owns)
        wanted = np.flatnonzero(table[:, _END] > table[:, _BEGIN]) if len(components) else np.array([0])
        parts = []
        for number, (begin, end, least, most) in zip(wanted.tolist(), table[wanted].tolist(), strict=True):
            component = self._components[number]
            num_bins = max(component.num_bins, 1)
            epochs, edges = [least // num_bins], [begin, end]
            if most // num_bins > epochs[0]:  # bins of several epochs of the component: sort them by epoch
                by_epoch = np.argsort(owns[begin:end] // num_bins, kind="stable")
                owns[begin:end] = owns[begin:end][by_epoch]
                order[np.flatnonzero(components == number)[by_epoch]] = np.arange(begin, end)
                each, firsts = np.unique(owns[begin:end] // num_bins, return_index=True)
                epochs, edges = each.tolist(), [*(begin + firsts).tolist(), end]
            for ahead, bins in zip(epochs, map(slice, edges, edges[1:]), strict=False):
                source = component.source_of(self._first_epochs[number] + ahead)
                parts.append(_Part(number, source, bins, owns[bins] - ahead * num_bins))
        return order, parts

    def _at(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns each position's component, and the bin's number among those of the component in this epoch."""
        if self._bins_per_draw == 1:
            return self._draws_at(positions)
        draws, inside = np.divmod(positions, self._bins_per_draw)
        components, numbers = self._draws_at(draws)
        return components, numbers * self._bins_per_draw + inside

    def _draws_at(self, draws: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Returns each draw's component, and the draw's number among those of the component in this epoch."""
        if len(self._segments) == 1:
            return self._segments[0].at(draws)
        components = np.empty(len(draws), dtype=np.int32)
        numbers = np.empty(len(draws), dtype=np.int64)
        which = np.searchsorted(self._firsts, draws, side="right") - 1
        for number in np.flatnonzero(np.bincount(which)).tolist():
            segment, ours = self._segments[number], np.flatnonzero(which == number)
            components[ours], inside = segment.at(draws[ours])
            numbers[ours] = inside + segment.before[components[ours]]
        return components, numbers

    def _positions_of(self, component: int, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the positions of a component's bins, given their numbers in this epoch; -1 for a number below 0."""
        positions = np.full(len(numbers), -1, dtype=np.int64)
        draws, inside = np.divmod(numbers, self._bins_per_draw)
        for segment in self._segments:
            ahead = draws - segment.before[component]
            ours = (numbers >= 0) & (ahead >= 0) & (ahead < segment.counts[component])
            end = segment.offset + segment.end - segment.first
            found = segment.order.positions_of(component, segment.offset, segment.offset_counts, end, ahead[ours])
            positions[ours] = (found + segment.first) * self._bins_per_draw + inside[ours]
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


def _nowhere(ids: NDArray[np.int64]) -> Locations:
    """Returns locations of ids that no dataset has."""
    missing = np.full(len(ids), -1, dtype=np.int64)
    return Locations(ids=ids, first_tokens=missing, lengths=missing, positions=missing, index_in_bin=missing)


def _rows(unique: NDArray[np.int64], component_ids: NDArray[np.int64], found: Locations) -> NDArray[np.int64]:
    """Returns locations as a table: int64 [6, rows].

    The six are: index of the id in `unique`, component, first token, length, position, index in the bin.
    """
    which = np.searchsorted(unique, found.ids)
    return np.stack((which, component_ids, found.first_tokens, found.lengths, found.positions, found.index_in_bin))


def _without_superseded(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sorts rows of `_rows` by (id, component, first token, position), and drops those that another one makes needless.

    These are an id's row without a component if it has another row with one, and a piece's row without a position if
    the piece has another row with one.
    """
    rows = rows[:, np.lexsort((rows[4], rows[2], rows[1], rows[0]))]
    same = np.zeros((3, rows.shape[1]), dtype=bool)  # whether id, component and first token equal those of the next row
    same[:, :-1] = rows[:3, 1:] == rows[:3, :-1]
    return rows[:, ~(((rows[1] < 0) & same[0]) | ((rows[4] < 0) & same.all(axis=0)))]
