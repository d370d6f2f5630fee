"""Which bins each rank gets at which step: an epoch cut for a topology.

Owns `Assignment`: windows of positions, balanced or in order, and the last step made whole. What it knows of a window
is computed once and shared by the streams of all ranks. Leaves how bins are arranged in a window to `balance`, how a
last step is filled to `_last_step`, and how many steps travel together to the server.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.epoch.assignment._last_step import FilledStep, fill_last_step
from packhorse.epoch.assignment.balance import arrange
from packhorse.epoch.bins import Bins, joined
from packhorse.epoch.kernels.permutation import GOLDEN
from packhorse.epoch.keys import derive_key
from packhorse.epoch.sources.source import Source
from packhorse.topology import Balance, RemainderPolicy, Stretch, Topology

_CHUNK_BINS = 8192
"""Windows are arranged several at a time, up to about so many bins."""

_MOST_BINS = 1 << 21
"""Bins of all windows that an assignment remembers: 16 MB."""

_FEW_SEQUENCES = 1 << 16
"""A last step that holds no more is filled within a few milliseconds."""

_MOST_BINS_AT_ONCE = _MOST_BINS // 4
"""Bins of the windows of one block, which is made after all of them were arranged; ranks may be some blocks apart."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamLocations:
    """Where sequences are streamed. Every array is int64 [n]; -1 before start_position and where a bin is dropped."""

    steps: NDArray[np.int64]
    """Step, counted from start_position."""
    ranks: NDArray[np.int64]
    """Data-parallel rank."""
    slots: NDArray[np.int64]
    """Which of the rank's bins of that step."""
    index_in_bin: NDArray[np.int64]
    """The sequence's index within the bin as it is streamed."""


class Assignment:
    """An epoch cut for a topology. Safe to be used by many threads.

    Args:
        source: the epoch.
        topology: how it is divided; of PARTITION mode, and where it has a schedule, `of_epoch`.
        seed: of the run; with the epoch it decides which rank gets which share of a balanced optimizer step.
        epoch: 0-based.

    Raises:
        ValueError: start_position lies beyond the epoch's end.
    """

    def __init__(self, source: Source, topology: Topology, *, seed: int = 0, epoch: int = 0) -> None:
        self.source = source
        self.topology = topology
        self.num_steps = topology.num_steps(source.num_bins)
        self._num_full_steps = topology.num_full_steps(source.num_bins)
        num_tail = topology.num_tail_bins(source.num_bins)
        self._num_full_bins = topology.num_left(source.num_bins) - num_tail
        self._fills_long = num_tail * source.max_sequences_per_bin > _FEW_SEQUENCES
        self._key = derive_key(seed, epoch, "balance")
        self._arranging = threading.RLock()  # while something is computed that others may wait for
        self._filled_step: FilledStep | None = None
        self._lock = threading.Lock()  # of the two below, for moments only
        self._chunks: OrderedDict[int, _Chunk] = OrderedDict()
        self._num_remembered = 0  # bins of all chunks

    def bins(self, steps: range, rank: int) -> Bins:
        """Returns a rank's bins of some steps, a batch for each, in order.

        Args:
            steps: ascending, within [0, num_steps).
            rank: in [0, world_size).
        """
        offsets = self._offsets(steps, rank)
        if self.is_in_order(steps):
            return self.source.bins(self.topology.start_position + offsets)
        num_full = self._num_full_bins
        is_filled = offsets >= num_full
        if not is_filled.any():
            return self.source.bins(self.topology.start_position + offsets)
        filled = self._filled.bins.take(offsets[is_filled] - num_full)
        if is_filled.all():
            return filled
        both = joined((self.source.bins(self.topology.start_position + offsets[~is_filled]), filled))
        order = np.empty(len(offsets), dtype=np.int64)
        order[~is_filled] = np.arange(len(offsets) - len(filled))
        order[is_filled] = np.arange(len(offsets) - len(filled), len(offsets))
        return both if (np.diff(order) == 1).all() else both.take(order)

    def is_in_order(self, steps: range) -> bool:
        """Whether a rank's bins of some steps are at the positions that the topology alone tells."""
        return self.topology.balance is Balance.NONE and (not steps or steps[-1] < self._num_full_steps)

    @property
    def most_steps(self) -> int | None:
        """How many steps `bins` may be asked for to arrange each optimizer step once; None for any number."""
        return (
            None if self.topology.balance is Balance.NONE else max(1, _MOST_BINS_AT_ONCE // self.topology.bins_per_step)
        )

    def is_arranged(self, steps: range) -> bool:
        """Whether `bins` of some steps only looks up what is computed once for all ranks."""
        return next(self._not_arranged(steps), None) is None

    def arrange(self, steps: range) -> Iterator[None]:
        """Computes what `bins` of some steps looks up; yields after every time slice, each of a few milliseconds.

        One window of more than _CHUNK_BINS bins, or a last step that is not full, takes longer in proportion.
        """
        for stretch, of_chunk in self._not_arranged(steps):
            if of_chunk.stop > self._num_full_steps:
                _ = self._filled
            if stretch is not None:
                self._remembered(stretch, of_chunk)
            yield

    def _not_arranged(self, steps: range) -> Iterator[tuple[Stretch | None, range]]:
        """Yields the chunks of some steps that are not remembered, and the last step where it is yet to be filled."""
        if steps and steps[-1] >= self._num_full_steps and self._filled_step is None and self._fills_long:
            yield None, range(self._num_full_steps, self.num_steps)
        while self.topology.balance is not Balance.NONE and steps:
            number = self.topology.stretch_number(steps[0])
            of_chunk = self._steps_of_chunk(number, steps[0])
            with self._lock:
                is_there = of_chunk.start in self._chunks
            if not is_there:
                yield self.topology.stretches[number], of_chunk
            steps = steps[len(range(steps.start, min(steps.stop, of_chunk.stop), steps.step)) :]

    def bins_to_locate(self) -> int:
        """How many bins are arranged, at most, to locate one sequence; 0 where none are."""
        topology = self.topology
        return 0 if topology.balance is Balance.NONE else max(_CHUNK_BINS, topology.bins_per_optimizer_step)

    def locate(self, positions: NDArray[np.int64], index_in_bin: NDArray[np.int64]) -> StreamLocations:
        """Returns where sequences are streamed, given their bins' positions and their indices in these bins.

        Args:
            positions: int64 [n]; -1 for a sequence that has none.
            index_in_bin: int64 [n].
        """
        topology = self.topology
        offsets = positions - topology.start_position
        offsets = np.where((positions < 0) | (offsets < 0), -1, offsets)
        index_in_bin = index_in_bin.copy()
        in_tail = offsets >= self._num_full_bins
        if in_tail.any():
            if self.num_steps == self._num_full_steps:
                offsets[in_tail] = -1
            elif topology.remainder is RemainderPolicy.SPREAD:
                first = self._num_full_bins
                where, index_in_bin[in_tail] = self._filled.find(offsets[in_tail] - first, index_in_bin[in_tail])
                offsets[in_tail] = first + where
        is_there = offsets >= 0
        if topology.balance is not Balance.NONE:
            offsets[is_there] = self._moved(offsets[is_there])
        stretches = topology.stretches
        which = np.searchsorted([stretch.first_offset for stretch in stretches[1:]], offsets, side="right")
        per_step, per_rank, first_steps, first_offsets = np.array(
            [(each.bins_per_step, each.batch_size, each.first_step, each.first_offset) for each in stretches]
        ).T[:, which]
        steps, offsets = np.divmod(offsets - first_offsets, per_step)
        steps += first_steps
        ranks, slots = np.divmod(offsets, per_rank)
        return StreamLocations(*(np.where(is_there, field, -1) for field in (steps, ranks, slots, index_in_bin)))

    @property
    def _filled(self) -> FilledStep:
        """The last step, made whole once for all ranks."""
        with self._arranging:
            if self._filled_step is None:
                self._filled_step = fill_last_step(self.source, self.topology)
            return self._filled_step

    def _offsets(self, steps: range, rank: int) -> NDArray[np.int64]:
        """Which bins a rank gets in some steps: int64 [bins], counted from start_position.

        Those behind the last full step are the filled step's.
        """
        parts = []
        for stretch, own in self.topology.by_stretch(steps):
            if self.topology.balance is Balance.NONE:
                of_rank = stretch.offset_of(own[0]) + rank * stretch.batch_size
                slots = np.arange(of_rank, of_rank + stretch.batch_size, dtype=np.int64)
                if len(own) > 1:
                    stride = own.step * stretch.bins_per_step
                    slots = (np.arange(0, len(own) * stride, stride, dtype=np.int64)[:, None] + slots).ravel()
                parts.append(slots)
            while self.topology.balance is not Balance.NONE and own:
                chunk = self._chunk(own[0])
                inside = range(own.start, min(own.stop, chunk.steps.stop), own.step)
                of_chunk = slice(inside.start - chunk.steps.start, inside.stop - chunk.steps.start, own.step)
                parts.append(chunk.offsets[rank, of_chunk].ravel())
                own = own[len(inside) :]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _moved(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns where balancing puts the bins at these offsets from start_position: int64 [n], likewise."""
        moved = np.empty_like(offsets)
        is_left = np.ones(len(offsets), dtype=bool)
        while is_left.any():
            offset = int(offsets[is_left.argmax()])
            stretch = self.topology.stretch_at(offset)
            step = stretch.first_step + (offset - stretch.first_offset) // stretch.bins_per_step
            chunk = self._chunk(step)
            first = stretch.offset_of(chunk.steps.start)
            arranged = chunk.offsets.transpose(1, 0, 2).ravel()
            inverse = np.empty_like(arranged)
            inverse[arranged - first] = np.arange(first, first + len(arranged))
            ours = is_left & (offsets >= first) & (offsets < first + len(arranged))
            moved[ours] = inverse[offsets[ours] - first]
            is_left &= ~ours
        return moved

    def _chunk(self, step: int) -> "_Chunk":
        """Returns the windows that are arranged together with a step's, all of its stretch."""
        number = self.topology.stretch_number(step)
        return self._remembered(self.topology.stretches[number], self._steps_of_chunk(number, step))

    def _steps_of_chunk(self, number: int, step: int) -> range:
        """Returns the steps whose windows are arranged together with a step's, of the stretch of that number.

        The last window is arranged alone: it may have fewer steps, or a filled one.
        """
        stretches, per_window = self.topology.stretches, self.topology.steps_per_optimizer_step
        stretch = stretches[number]
        per_chunk = max(1, _CHUNK_BINS // (per_window * stretch.bins_per_step)) * per_window
        begin = stretch.first_step
        end = stretches[number + 1].first_step if number + 1 < len(stretches) else self.num_steps
        whole = begin + (min(end, self._num_full_steps) - begin) // per_window * per_window
        if step >= whole:
            return range(whole, min(end, self.num_steps))
        first = begin + (step - begin) // per_chunk * per_chunk
        return range(first, min(first + per_chunk, whole))

    def _remembered(self, stretch: Stretch, steps: range) -> "_Chunk":
        if (chunk := self._found(steps)) is not None:
            return chunk
        with self._arranging:  # the streams of other ranks ask for the same windows, and wait for this one
            if (chunk := self._found(steps)) is not None:
                return chunk
            chunk = self._arranged(stretch, steps)
            with self._lock:
                self._chunks[steps.start] = chunk
                self._num_remembered += chunk.offsets.size
                while len(self._chunks) > 1 and self._num_remembered > _MOST_BINS:
                    self._num_remembered -= self._chunks.popitem(last=False)[1].offsets.size
            return chunk

    def _found(self, steps: range) -> "_Chunk | None":
        with self._lock:
            chunk = self._chunks.get(steps.start)
            if chunk is not None:
                self._chunks.move_to_end(steps.start)
            return chunk

    def _arranged(self, stretch: Stretch, steps: range) -> "_Chunk":
        """Arranges the windows of some steps of a stretch: whole ones, or the last one alone."""
        topology = self.topology
        begin, end = (stretch.offset_of(min(each, self._num_full_steps)) for each in (steps.start, steps.stop))
        positions = np.arange(topology.start_position + begin, topology.start_position + end)
        costs = self.source.costs(positions, topology.cost_linear)
        if steps.stop > self._num_full_steps:
            costs = np.concatenate((costs, self._filled.bins.costs(topology.cost_linear)))
        per_window = min(topology.steps_per_optimizer_step, len(steps))
        costs = costs.reshape(-1, per_window * stretch.bins_per_step)
        begins = begin + np.arange(len(costs)) * per_window * stretch.bins_per_step
        arranged = arrange(costs, topology.balance, per_window, topology.world_size, self._keys(begins))
        arranged += begins[:, None, None, None]
        shape = (topology.world_size, len(steps), stretch.batch_size)
        return _Chunk(steps, arranged.transpose(2, 0, 1, 3).reshape(shape))

    def _keys(self, begins: NDArray[np.int64]) -> NDArray[np.uint64]:
        """One key for each window, from the offset where it begins: uint64 [n]."""
        positions = begins.astype(np.uint64) + np.uint64(self.topology.start_position)
        return (positions + np.uint64(1)) * GOLDEN ^ np.uint64(self._key)


class _Chunk(NamedTuple):
    """Windows that were arranged together."""

    steps: range
    offsets: NDArray[np.int64]
    """Each rank's bins at each of these steps, counted from start_position: int64 [D, steps, b]."""
