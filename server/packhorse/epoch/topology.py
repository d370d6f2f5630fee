"""Which positions each rank and worker takes, at which step.

Owns the arithmetic of steps, ranks, workers and slots, and how a last step that is not full is completed under each
remainder policy; leaves what the bins hold to `view` and the dealing of SPREAD to `spread`.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from packhorse.packing import checked_integer

ADDED = -1
"""Position of a bin that the remainder policy added."""


class RemainderPolicy(Enum):
    """What happens to a last step that is not full; every rank always gets the same number of steps."""

    SPREAD = "spread"
    """Its sequences are dealt over all its bins: none is lost, none repeated."""
    DROP = "drop"
    """It is left out."""
    REPEAT = "repeat"
    """It is filled from the epoch's first positions."""
    EMPTY = "empty"
    """It is filled with empty bins."""


class StreamMode(Enum):
    """How streams share an epoch."""

    PARTITION = "partition"
    """The streams of an epoch are disjoint and together complete."""
    INDEPENDENT = "independent"
    """Every (epoch, rank, worker) has a seed of its own and goes through the whole epoch alone."""


@dataclass(frozen=True, kw_only=True)
class Topology:
    """How an epoch's bins are divided over ranks and workers.

    G = world_size · batch_size bins make a step. At step s rank r takes the positions
    start_position + s·G + r·batch_size + [0, batch_size); its worker s mod workers_per_rank serves that step, which is
    the order in which a PyTorch DataLoader asks its workers, so a rank's batches do not depend on their number.

    Raises:
        ValueError: a number is out of range; the message names the field.
    """

    world_size: int = 1
    """Data-parallel degree, at least 1."""
    workers_per_rank: int = 1
    """Dataloader workers within a rank, at least 1."""
    batch_size: int = 1
    """Bins per rank and step, at least 1."""
    start_position: int = 0
    """The position where step 0 begins, at least 0."""
    remainder: RemainderPolicy = RemainderPolicy.SPREAD
    """What happens to a last step that is not full."""

    def __post_init__(self) -> None:
        """Checks every field."""
        for name, least in (("world_size", 1), ("workers_per_rank", 1), ("batch_size", 1), ("start_position", 0)):
            checked_integer(name, getattr(self, name), least)

    @property
    def bins_per_step(self) -> int:
        """G: bins of all ranks in one step."""
        return self.world_size * self.batch_size

    def num_left(self, num_bins: int) -> int:
        """Bins of the epoch from start_position on; a ValueError where the start lies beyond the end."""
        if self.start_position > num_bins:
            raise ValueError(f"start_position must be in [0, {num_bins}], got {self.start_position}")
        return num_bins - self.start_position

    def num_full_steps(self, num_bins: int) -> int:
        """Steps that the epoch's own bins fill."""
        return self.num_left(num_bins) // self.bins_per_step

    def num_tail_bins(self, num_bins: int) -> int:
        """Bins of the last step where they do not fill it; 0 where they do."""
        return self.num_left(num_bins) % self.bins_per_step

    def num_steps(self, num_bins: int) -> int:
        """Steps that every rank takes from start_position to the epoch's end."""
        partial = self.num_tail_bins(num_bins) > 0 and self.remainder is not RemainderPolicy.DROP
        return self.num_full_steps(num_bins) + int(partial)

    def num_bins_dropped(self, num_bins: int) -> int:
        """Bins left out; 0 unless the policy is DROP."""
        return self.num_tail_bins(num_bins) if self.remainder is RemainderPolicy.DROP else 0

    def worker_of(self, step: int) -> int:
        """The worker that serves a step."""
        return step % self.workers_per_rank

    def worker_steps(self, worker: int, num_bins: int, *, first_step: int = 0) -> range:
        """The steps ≥ first_step that a worker serves, ascending."""
        ahead = (worker - first_step) % self.workers_per_rank
        return range(first_step + ahead, self.num_steps(num_bins), self.workers_per_rank)

    def positions(self, steps: range, rank: int) -> NDArray[np.int64]:
        """Positions that a rank takes at full steps.

        Args:
            steps: any steps below `num_full_steps`.
            rank: in [0, world_size).

        Returns:
            int64 [len(steps), batch_size].
        """
        first = self.start_position + rank * self.batch_size
        starts = first + np.arange(steps.start, steps.stop, steps.step, dtype=np.int64) * self.bins_per_step
        return starts[:, None] + np.arange(self.batch_size, dtype=np.int64)

    def position_after(self, step: int, num_bins: int) -> int:
        """The position to resume at once `step` has been consumed by every rank."""
        return min(self.start_position + (step + 1) * self.bins_per_step, num_bins)

    def place(self, offset: int) -> tuple[int, int]:
        """(rank, slot) of the bin at `offset` in [0, G) of its step."""
        return divmod(offset, self.batch_size)
