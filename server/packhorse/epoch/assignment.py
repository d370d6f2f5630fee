"""Which bins each rank gets at which step: an epoch divided by a topology.

Owns `Assignment`. The streams of all ranks share one, so what it computes for one rank is ready for the others. Leaves
filling a last step for which there are too few bins to `_last_step`, the order of bins in an optimizer step to
`balance`, the arithmetic of steps to `topology.Topology`, and how many steps are sent together to `packhorse.server`.

In this file an offset is a position minus the topology's start_position. Those after the last full step count the bins
of the filled step. A chunk is several optimizer steps that are balanced by one call. Shape letters: n sequences or
optimizer steps, D ranks, b bins of a rank in a step.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.epoch._last_step import FilledStep, fill_last_step
from packhorse.epoch.balance import arrange as arrange_by_cost
from packhorse.epoch.bins import Bins, joined
from packhorse.epoch.permutation import GOLDEN
from packhorse.epoch.seeds import derive_key
from packhorse.epoch.sources.source import Source
from packhorse.storage import BoundedCache
from packhorse.topology import Balance, RemainderPolicy, Stretch, Topology

_CHUNK_BINS = 8192
"""Bins of a chunk, about."""
_MOST_BINS = 1 << 21
"""Most bins of all chunks that an assignment remembers: 16 MB."""
_FEW_SEQUENCES = 1 << 16
"""Sequences up to which a last step is filled within a few milliseconds."""
_MOST_BINS_AT_ONCE = _MOST_BINS // 4
"""Most bins of the steps of one block: so few that the chunks of a block are all remembered while it is made, also if
ranks are some blocks apart."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamLocations:
    """Where n sequences are streamed. Every array is int64 [n]; -1 for a bin before start_position or a dropped one."""

    steps: NDArray[np.int64]
    """Step, counted from start_position."""
    ranks: NDArray[np.int64]
    """Data-parallel rank."""
    slots: NDArray[np.int64]
    """Index of the bin among the rank's bins of that step."""
    index_in_bin: NDArray[np.int64]
    """The sequence's index in the streamed bin."""


class Assignment:
    """An epoch divided by a topology. Thread-safe.

    Args:
        source: the epoch.
        topology: a topology in PARTITION mode; one with a schedule must come from `of_epoch`.
        seed: the run's seed; with the epoch it decides which rank gets which part of a balanced optimizer step.
        epoch: 0-based.

    Raises:
        ValueError: start_position is beyond the epoch's end.
    """

    def __init__(self, source: Source, topology: Topology, *, seed: int = 0, epoch: int = 0) -> None:
        self.source = source
        self.topology = topology
        self.num_steps = topology.num_steps(source.num_bins)
        self._num_full_steps = topology.num_full_steps(source.num_bins)
        num_tail = topology.num_tail_bins(source.num_bins)
        self._num_full_bins = topology.num_left(source.num_bins) - num_tail
        self._takes_long_to_fill = num_tail * source.max_sequences_per_bin > _FEW_SEQUENCES
        self._key = derive_key(seed, epoch, "balance")
        self._computing = threading.RLock()  # held while a thread computes what all ranks share
        self._filled_step: FilledStep | None = None
        self._chunks: BoundedCache[int, _Chunk] = BoundedCache(_MOST_BINS, size_of=lambda chunk: chunk.offsets.size)

    def bins(self, steps: range, rank: int) -> Bins:
        """Returns a rank's bins of some steps, a batch for each, in order.

        Args:
            steps: ascending, within [0, num_steps).
            rank: in [0, world_size).
        """
        offsets = self._offsets(steps, rank)
        if self.is_in_order(steps):  # nearly all calls: no offset has to be looked at
            return self.source.bins(self.topology.start_position + offsets)
        num_full = self._num_full_bins
        is_filled = offsets >= num_full
        if not is_filled.any():
            return self.source.bins(self.topology.start_position + offsets)
        filled = self._get_filled_step().bins.take(offsets[is_filled] - num_full)
        if is_filled.all():
            return filled
        both = joined((self.source.bins(self.topology.start_position + offsets[~is_filled]), filled))
        # Bins of the epoch come first in `both`; put them and the filled ones back into the order of `offsets`.
        order = np.empty(len(offsets), dtype=np.int64)
        order[~is_filled] = np.arange(len(offsets) - len(filled))
        order[is_filled] = np.arange(len(offsets) - len(filled), len(offsets))
        return both if (np.diff(order) == 1).all() else both.take(order)

    def is_in_order(self, steps: range) -> bool:
        """Returns whether the positions of a rank's bins at some steps follow from the topology only."""
        return self.topology.balance is Balance.NONE and (not steps or steps[-1] < self._num_full_steps)

    @property
    def most_steps(self) -> int | None:
        """The most steps for one call of `bins` whose chunks are all remembered at once; None for any number."""
        is_balanced = self.topology.balance is not Balance.NONE
        return max(1, _MOST_BINS_AT_ONCE // self.topology.bins_per_step) if is_balanced else None

    def is_arranged(self, steps: range) -> bool:
        """Returns whether all that `bins` needs for some steps, and all ranks share, is computed."""
        return not self._must_fill(steps) and next(self._missing_chunks(steps), None) is None

    def arrange(self, steps: range) -> Iterator[None]:
        """Computes what `bins` needs for some steps, and all ranks share. Yields every few milliseconds.

        An optimizer step of more than _CHUNK_BINS bins, or a last step that is not full, takes longer in proportion.
        """
        if self._must_fill(steps):
            self._get_filled_step()
            yield
        for stretch, chunk_steps in self._missing_chunks(steps):
            self._get_chunk(stretch, chunk_steps)
            yield

    def _must_fill(self, steps: range) -> bool:
        """Returns whether some steps need the filled last step, which is not there yet and takes long."""
        needs_filled = bool(steps) and steps[-1] >= self._num_full_steps
        return needs_filled and self._filled_step is None and self._takes_long_to_fill

    def _missing_chunks(self, steps: range) -> Iterator[tuple[Stretch, range]]:
        """Yields (stretch, steps) of the chunks that some steps need and that are not remembered."""
        if self.topology.balance is Balance.NONE:
            return
        while steps:
            number = self.topology.stretch_number(steps[0])
            chunk_steps = self._steps_of_chunk(number, steps[0])
            if self._chunks.find(chunk_steps.start) is None:
                yield self.topology.stretches[number], chunk_steps
            steps = steps[len(_steps_before(chunk_steps.stop, steps)) :]

    def bins_to_locate(self) -> int:
        """Returns the most bins that must be arranged to locate one sequence; 0 without a balance."""
        topology = self.topology
        return 0 if topology.balance is Balance.NONE else max(_CHUNK_BINS, topology.bins_per_optimizer_step)

    def locate(self, positions: NDArray[np.int64], index_in_bin: NDArray[np.int64]) -> StreamLocations:
        """Returns where sequences are streamed, given their bins' positions and their indices in these bins.

        Args:
            positions: int64 [n]; -1 for a sequence without a position.
            index_in_bin: int64 [n].
        """
        topology = self.topology
        offsets = positions - topology.start_position
        offsets = np.where((positions < 0) | (offsets < 0), -1, offsets)
        index_in_bin = index_in_bin.copy()
        in_tail = offsets >= self._num_full_bins
        if in_tail.any():
            if self.num_steps == self._num_full_steps:  # the last step is dropped
                offsets[in_tail] = -1
            elif topology.remainder is RemainderPolicy.SPREAD:
                num_full = self._num_full_bins
                new_offsets, index_in_bin[in_tail] = self._get_filled_step().find(
                    offsets[in_tail] - num_full, index_in_bin[in_tail]
                )
                offsets[in_tail] = num_full + new_offsets
        is_streamed = offsets >= 0
        if topology.balance is not Balance.NONE:
            offsets[is_streamed] = self._streamed_offsets(offsets[is_streamed])
        stretches = topology.stretches
        stretch_of = np.searchsorted([stretch.first_offset for stretch in stretches[1:]], offsets, side="right")
        per_step, per_rank, first_steps, first_offsets = np.array(  # of the stretch of each sequence: int64 [n] each
            [(each.bins_per_step, each.batch_size, each.first_step, each.first_offset) for each in stretches]
        ).T[:, stretch_of]
        steps, offsets_in_step = np.divmod(offsets - first_offsets, per_step)
        ranks, slots = np.divmod(offsets_in_step, per_rank)
        columns = (first_steps + steps, ranks, slots, index_in_bin)
        return StreamLocations(*(np.where(is_streamed, column, -1) for column in columns))

    def _get_filled_step(self) -> FilledStep:
        """Returns the last step, filled once for all ranks."""
        with self._computing:
            if self._filled_step is None:
                self._filled_step = fill_last_step(self.source, self.topology)
            return self._filled_step

    def _offsets(self, steps: range, rank: int) -> NDArray[np.int64]:
        """Returns the offsets of a rank's bins at some steps: int64 [bins]."""
        parts = []
        for stretch, steps_left in self.topology.by_stretch(steps):
            if self.topology.balance is Balance.NONE:
                begin = stretch.offset_of(steps_left[0]) + rank * stretch.batch_size
                offsets = np.arange(begin, begin + stretch.batch_size, dtype=np.int64)
                if len(steps_left) > 1:
                    stride = steps_left.step * stretch.bins_per_step
                    begins = np.arange(0, len(steps_left) * stride, stride, dtype=np.int64)
                    offsets = (begins[:, None] + offsets).ravel()
                parts.append(offsets)
                continue
            while steps_left:
                chunk = self._chunk_with(steps_left[0])
                inside = _steps_before(chunk.steps.stop, steps_left)
                first = chunk.steps.start
                indices = slice(inside.start - first, inside.stop - first, inside.step)
                parts.append(chunk.offsets[rank, indices].ravel())
                steps_left = steps_left[len(inside) :]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _streamed_offsets(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the offset at which each bin is streamed with a balance, from its offset in the epoch: int64 [n]."""
        streamed = np.empty_like(offsets)
        is_left = np.ones(len(offsets), dtype=bool)
        while is_left.any():
            offset = int(offsets[is_left.argmax()])
            stretch = self.topology.stretch_at(offset)
            step = stretch.first_step + (offset - stretch.first_offset) // stretch.bins_per_step
            chunk = self._chunk_with(step)
            first = stretch.offset_of(chunk.steps.start)
            arranged = chunk.offsets.transpose(1, 0, 2).ravel()  # by (step, rank, slot)
            inverse = np.empty_like(arranged)
            inverse[arranged - first] = np.arange(first, first + len(arranged))
            is_inside = is_left & (offsets >= first) & (offsets < first + len(arranged))
            streamed[is_inside] = inverse[offsets[is_inside] - first]
            is_left &= ~is_inside
        return streamed

    def _chunk_with(self, step: int) -> "_Chunk":
        """Returns the chunk that a step is in."""
        number = self.topology.stretch_number(step)
        return self._get_chunk(self.topology.stretches[number], self._steps_of_chunk(number, step))

    def _steps_of_chunk(self, number: int, step: int) -> range:
        """Returns the steps of the chunk that a step is in; the step is in the stretch with this number.

        A chunk lies in one stretch. The last optimizer step is a chunk of its own, because it may have fewer steps or
        the filled one.
        """
        stretches, per_optimizer_step = self.topology.stretches, self.topology.steps_per_optimizer_step
        stretch = stretches[number]
        per_chunk = max(1, _CHUNK_BINS // (per_optimizer_step * stretch.bins_per_step)) * per_optimizer_step
        begin = stretch.first_step
        end = stretches[number + 1].first_step if number + 1 < len(stretches) else self.num_steps
        whole_end = begin + (min(end, self._num_full_steps) - begin) // per_optimizer_step * per_optimizer_step
        if step >= whole_end:
            return range(whole_end, min(end, self.num_steps))
        first = begin + (step - begin) // per_chunk * per_chunk
        return range(first, min(first + per_chunk, whole_end))

    def _get_chunk(self, stretch: Stretch, steps: range) -> "_Chunk":
        """Returns the chunk with the given steps of a stretch, and computes it if it is not remembered."""
        if (chunk := self._chunks.find(steps.start)) is not None:
            return chunk
        with self._computing:  # the streams of other ranks need the same chunk, and wait for this thread
            return self._chunks.get(steps.start, lambda: self._compute_chunk(stretch, steps))

    def _compute_chunk(self, stretch: Stretch, steps: range) -> "_Chunk":
        """Computes the chunk with the given steps of a stretch: whole optimizer steps, or the last one."""
        topology = self.topology
        # Only bins of full steps are asked for by position; the filled step has its own, which are appended.
        begin, end = (stretch.offset_of(min(each, self._num_full_steps)) for each in (steps.start, steps.stop))
        positions = np.arange(topology.start_position + begin, topology.start_position + end)
        costs = self.source.costs(positions, topology.cost_linear)
        if steps.stop > self._num_full_steps:
            costs = np.concatenate((costs, self._get_filled_step().bins.costs(topology.cost_linear)))
        per_optimizer_step = min(topology.steps_per_optimizer_step, len(steps))
        costs = costs.reshape(-1, per_optimizer_step * stretch.bins_per_step)
        begins = begin + np.arange(len(costs)) * per_optimizer_step * stretch.bins_per_step
        arranged = arrange_by_cost(costs, topology.balance, per_optimizer_step, topology.world_size, self._keys(begins))
        arranged += begins[:, None, None, None]
        shape = (topology.world_size, len(steps), stretch.batch_size)
        return _Chunk(steps, arranged.transpose(2, 0, 1, 3).reshape(shape))  # from [n, A, D, b] to [D, n · A, b]

    def _keys(self, begins: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Returns a key for each optimizer step, from the offset at which it begins: uint64 [n]."""
        positions = begins.astype(np.uint64) + np.uint64(self.topology.start_position)
        return (positions + np.uint64(1)) * GOLDEN ^ np.uint64(self._key)  # + 1, or position 0 would get `_key` itself


def _steps_before(end: int, steps: range) -> range:
    """Returns those of ascending steps that are below `end`."""
    return range(steps.start, min(steps.stop, end), steps.step)


class _Chunk(NamedTuple):
    """Optimizer steps that were arranged together."""

    steps: range
    """Steps of these optimizer steps."""
    offsets: NDArray[np.int64]
    """Offsets of each rank's bins at each of these steps: int64 [D, steps, b]."""
