"""Which bins each rank gets at which step: an epoch cut for a topology.

Owns `Assignment`: windows of positions, balanced or in order, and the last step made whole. What it knows of a window
is computed once and shared by the streams of all ranks. Leaves how bins are arranged in a window to `balance`, how a
last step is filled to `last_step`, and how many steps travel together to the server.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.epoch._last_step import FilledStep, fill_last_step
from packhorse.epoch.balance import arrange
from packhorse.epoch.bins import Bins, joined
from packhorse.epoch.keys import derive_key
from packhorse.epoch.source import Source
from packhorse.topology import Balance, RemainderPolicy, Topology

_CHUNK_BINS = 8192
"""Windows are arranged several at a time, up to about so many bins."""

_MOST_BINS = 1 << 21
"""Bins of all windows that an assignment remembers: 16 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where sequences are streamed. Every array is int64 [n]; -1 before start_position and where a bin is dropped."""

    steps: NDArray[np.int64]
    """Step, counted from start_position."""
    ranks: NDArray[np.int64]
    """Data-parallel rank."""
    slots: NDArray[np.int64]
    """Which of the rank's batch_size bins of that step."""
    index_in_bin: NDArray[np.int64]
    """The sequence's index within the bin as it is streamed."""


class Assignment:
    """An epoch cut for a topology. Safe to be used by many threads.

    Args:
        source: the epoch.
        topology: how it is divided; of PARTITION mode.
        seed: of the run; with the epoch it decides which rank gets which share of a balanced window.
        epoch: 0-based.

    Raises:
        ValueError: start_position lies beyond the epoch's end.
    """

    def __init__(self, source: Source, topology: Topology, *, seed: int = 0, epoch: int = 0) -> None:
        self.source = source
        self.topology = topology
        self.num_steps = topology.num_steps(source.num_bins)
        self._num_full_steps = topology.num_full_steps(source.num_bins)
        self._key = derive_key(seed, epoch, "balance")
        self._lock = threading.RLock()
        self._filled_step: FilledStep | None = None
        self._chunks: OrderedDict[int, NDArray[np.int64]] = OrderedDict()

    def bins(self, steps: range, rank: int) -> Bins:
        """Returns a rank's bins of some steps, batch_size for each, in order.

        Args:
            steps: ascending, within [0, num_steps).
            rank: in [0, world_size).
        """
        wanted = self._slots(steps, rank).ravel()
        is_filled = wanted < 0
        if not is_filled.any():
            return self.source.bins(wanted)
        filled = self._filled.bins.take(-1 - wanted[is_filled])
        if is_filled.all():
            return filled
        both = joined((self.source.bins(wanted[~is_filled]), filled))
        order = np.empty(len(wanted), dtype=np.int64)
        order[~is_filled] = np.arange(len(wanted) - len(filled))
        order[is_filled] = np.arange(len(wanted) - len(filled), len(wanted))
        return both if (np.diff(order) == 1).all() else both.take(order)

    def bins_to_place(self) -> int:
        """How many bins are arranged, at most, to find the place of one sequence; 0 where none are."""
        topology = self.topology
        return 0 if topology.balance is Balance.NONE else max(_CHUNK_BINS, topology.bins_per_window)

    def positions(self, steps: range, rank: int) -> NDArray[np.int64]:
        """Returns the positions that a rank gets: int64 [len(steps), batch_size]; -1 where the policy added a bin."""
        wanted = self._slots(steps, rank)
        if (wanted < 0).any():
            wanted = np.where(wanted < 0, self._filled.bins.positions[-1 - np.minimum(wanted, -1)], wanted)
        return wanted

    def places(self, positions: NDArray[np.int64], index_in_bin: NDArray[np.int64]) -> Places:
        """Returns where sequences are streamed, given their bins' positions and their indices in these bins.

        Args:
            positions: int64 [n]; -1 for a sequence that has none.
            index_in_bin: int64 [n].
        """
        topology = self.topology
        offsets = positions - topology.start_position
        offsets = np.where((positions < 0) | (offsets < 0), -1, offsets)
        index_in_bin = index_in_bin.copy()
        in_tail = offsets >= self._num_full_steps * topology.bins_per_step
        if in_tail.any():
            if self.num_steps == self._num_full_steps:
                offsets[in_tail] = -1
            elif topology.remainder is RemainderPolicy.SPREAD:
                first = self._num_full_steps * topology.bins_per_step
                where, index_in_bin[in_tail] = self._filled.find(offsets[in_tail] - first, index_in_bin[in_tail])
                offsets[in_tail] = first + where
        is_there = offsets >= 0
        if topology.balance is not Balance.NONE:
            offsets[is_there] = self._moved(offsets[is_there])
        steps, offsets = np.divmod(offsets, topology.bins_per_step)
        ranks, slots = np.divmod(offsets, topology.batch_size)
        return Places(*(np.where(is_there, field, -1) for field in (steps, ranks, slots, index_in_bin)))

    @property
    def _filled(self) -> FilledStep:
        """The last step, made whole once for all ranks."""
        with self._lock:
            if self._filled_step is None:
                self._filled_step = fill_last_step(self.source, self.topology)
            return self._filled_step

    def _slots(self, steps: range, rank: int) -> NDArray[np.int64]:
        """What a rank gets: int64 [len(steps), batch_size]; a position, or -1 - offset for a bin of the filled step."""
        topology = self.topology
        every = np.arange(steps.start, steps.stop, steps.step, dtype=np.int64)
        if topology.balance is Balance.NONE:
            first = every * topology.bins_per_step + rank * topology.batch_size
            offsets = first[:, None] + np.arange(topology.batch_size, dtype=np.int64)
        else:
            offsets = np.empty((len(every), topology.batch_size), dtype=np.int64)
            windows, step_in_window = np.divmod(every, topology.steps_per_window)
            chunks = self._chunks_of(windows)
            for chunk in np.unique(chunks):
                ours = chunks == chunk
                begin, arranged = self._chunk(int(chunk))  # [n, A, D, b]
                offsets[ours] = arranged[windows[ours] - begin, step_in_window[ours], rank]
            offsets += (windows * topology.bins_per_window)[:, None]
        num_full = self._num_full_steps * topology.bins_per_step
        return np.where(offsets < num_full, topology.start_position + offsets, num_full - 1 - offsets)

    def _moved(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns where balancing puts the bins at these offsets from start_position: int64 [n], likewise."""
        windows, within = np.divmod(offsets, self.topology.bins_per_window)
        moved = np.empty_like(offsets)
        for window in np.unique(windows):
            ours = windows == window
            first, chunk = self._chunk(int(self._chunks_of(window)))
            arranged = chunk[window - first].ravel()
            inverse = np.empty_like(arranged)
            inverse[arranged] = np.arange(len(arranged))
            moved[ours] = inverse[within[ours]] + window * self.topology.bins_per_window
        return moved

    def _chunks_of(self, windows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns with which others a window is arranged: int64 [n]; -1 for the last one, which is not like others."""
        num_whole = self._num_full_steps // self.topology.steps_per_window
        return np.where(windows < num_whole, windows // self._windows_per_chunk, -1)

    @property
    def _windows_per_chunk(self) -> int:
        return max(1, _CHUNK_BINS // self.topology.bins_per_window)

    def _chunk(self, chunk: int) -> tuple[int, NDArray[np.int64]]:
        """Returns a chunk's first window and its windows' arrangements: int64 [n, A, D, b], offsets within each window.

        The last window may have fewer steps.
        """
        num_whole = self._num_full_steps // self.topology.steps_per_window
        if chunk < 0:
            return num_whole, self._remembered(chunk, lambda: self._arranged_last(num_whole))
        first, last = chunk * self._windows_per_chunk, min((chunk + 1) * self._windows_per_chunk, num_whole)
        return first, self._remembered(chunk, lambda: self._arranged(first, last))

    def _remembered(self, chunk: int, make: Callable[[], NDArray[np.int64]]) -> NDArray[np.int64]:
        with self._lock:  # the streams of other ranks ask for the same windows, and wait for this one
            if chunk not in self._chunks:
                self._chunks[chunk] = make()
                while len(self._chunks) > 1 and sum(each.size for each in self._chunks.values()) > _MOST_BINS:
                    self._chunks.popitem(last=False)
            self._chunks.move_to_end(chunk)
            return self._chunks[chunk]

    def _arranged(self, first: int, last: int) -> NDArray[np.int64]:
        """Arranges the windows [first, last), whose steps are all full: int64 [last - first, A, D, b]."""
        topology = self.topology
        begin = topology.start_position + first * topology.bins_per_window
        end = topology.start_position + last * topology.bins_per_window
        costs = self.source.costs(np.arange(begin, end), topology.cost_linear)
        costs = costs.reshape(last - first, topology.bins_per_window)
        return arrange(costs, topology.balance, topology.steps_per_window, topology.world_size, self._keys(first, last))

    def _arranged_last(self, window: int) -> NDArray[np.int64]:
        """Arranges the last window, which has fewer steps or a filled one."""
        topology = self.topology
        begin = topology.start_position + window * topology.bins_per_window
        end = topology.start_position + self._num_full_steps * topology.bins_per_step
        costs = self.source.costs(np.arange(begin, end), topology.cost_linear)
        if self.num_steps > self._num_full_steps:
            costs = np.concatenate((costs, self._filled.bins.costs(topology.cost_linear)))
        num_steps = self.num_steps - window * topology.steps_per_window
        return arrange(costs[None], topology.balance, num_steps, topology.world_size, self._keys(window, window + 1))

    def _keys(self, first: int, last: int) -> NDArray[np.uint64]:
        """One key for each window, from the position where it begins: uint64 [last - first]."""
        begins = np.arange(first, last, dtype=np.uint64) * np.uint64(self.topology.bins_per_window)
        begins += np.uint64(self.topology.start_position)
        return (begins + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(self._key)
