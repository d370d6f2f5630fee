"""What one rank's worker gets at each step: full steps from the epoch, the last one as the remainder policy says.

Owns `EpochStream`; leaves how many steps travel together to the server.
"""

from dataclasses import dataclass, replace

import numpy as np

from packhorse.epoch.spread import DealtStep, deal
from packhorse.epoch.topology import ADDED, RemainderPolicy, Topology
from packhorse.epoch.view import Bins, EpochView


@dataclass(frozen=True, kw_only=True)
class StepPlace:
    """Where a bin goes."""

    step: int
    """Step, counted from start_position."""
    rank: int
    """Data-parallel rank."""
    worker: int
    """Dataloader worker within the rank."""
    slot: int
    """Which of the rank's batch_size bins of that step."""
    index_in_bin: int
    """The sequence's index within the bin as it is streamed."""


class EpochStream:
    """An epoch cut for a topology.

    Args:
        view: the epoch.
        topology: how it is divided.

    Raises:
        ValueError: start_position lies beyond the epoch's end.
    """

    def __init__(self, view: EpochView, topology: Topology) -> None:
        self.view = view
        self.topology = topology
        self.num_steps = topology.num_steps(view.num_bins)
        self._num_full_steps = topology.num_full_steps(view.num_bins)

    def read(self, steps: range, rank: int) -> Bins:
        """Returns a rank's bins of some steps, batch_size for each, in order.

        Args:
            steps: ascending, within [0, num_steps).
            rank: in [0, world_size).
        """
        full = range(steps.start, min(steps.stop, self._num_full_steps), steps.step)
        if len(full) == len(steps):
            return self.view.bins(self.topology.positions(steps, rank).ravel())
        partial = self._partial_step(rank)
        return _joined(self.view.bins(self.topology.positions(full, rank).ravel()), partial) if full else partial

    def place(self, position: int, index_in_bin: int) -> StepPlace | None:
        """Returns where a sequence of the bin at `position` is streamed; None before start_position or when dropped."""
        offset = position - self.topology.start_position
        if offset < 0:
            return None
        step, offset = divmod(offset, self.topology.bins_per_step)
        if step >= self.num_steps:
            return None
        if step == self._num_full_steps and self.topology.remainder is RemainderPolicy.SPREAD:
            dealt = self._dealt()
            first = int(dealt.tail_ends[offset - 1]) if offset else 0
            offset, index_in_bin = dealt.find(first + index_in_bin)
        rank, slot = self.topology.place(offset)
        return StepPlace(
            step=step, rank=rank, worker=self.topology.worker_of(step), slot=slot, index_in_bin=index_in_bin
        )

    def _dealt(self) -> DealtStep:
        """The last, partial step, dealt once for all ranks and workers."""
        topology = self.topology
        key = (topology.num_tail_bins(self.view.num_bins), topology.world_size, topology.batch_size)
        return self.view.shared(key, lambda: deal(self._tail(), topology))

    def _tail(self) -> Bins:
        """The epoch's last bins, which do not fill a step."""
        first = self.view.num_bins - self.topology.num_tail_bins(self.view.num_bins)
        return self.view.bins(np.arange(first, self.view.num_bins))

    def _partial_step(self, rank: int) -> Bins:
        topology = self.topology
        offsets = np.arange(rank * topology.batch_size, (rank + 1) * topology.batch_size)
        if topology.remainder is RemainderPolicy.SPREAD:
            return self._dealt().select(int(offsets[0]), int(offsets[-1]) + 1)
        num_tail = topology.num_tail_bins(self.view.num_bins)
        own = offsets[offsets < num_tail] + (self.view.num_bins - num_tail)
        added = offsets[offsets >= num_tail] - num_tail
        if topology.remainder is RemainderPolicy.REPEAT:
            bins = self.view.bins(np.concatenate((own, added % self.view.num_bins)))
        else:
            bins = self.view.bins(own)
            ends = np.full(len(added), len(bins.ids), dtype=np.int64)
            bins = replace(bins, bin_ends=np.concatenate((bins.bin_ends, ends)))
        return replace(bins, positions=np.concatenate((own, np.full(len(added), ADDED))))


def _joined(first: Bins, second: Bins) -> Bins:
    starts = None
    if first.starts is not None and second.starts is not None:
        starts = np.concatenate((first.starts, second.starts))
    return Bins(
        ids=np.concatenate((first.ids, second.ids)),
        lengths=np.concatenate((first.lengths, second.lengths)),
        bin_ends=np.concatenate((first.bin_ends, second.bin_ends + len(first.ids))),
        positions=np.concatenate((first.positions, second.positions)),
        starts=starts,
    )
