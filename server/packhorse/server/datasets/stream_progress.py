"""How far one open stream has come, so that no takedown or mixture file takes away bins that the stream has sent.

Owns what is known of the stream. Leaves the furthest position over all processes to `run_progress`.
"""

from dataclasses import dataclass


@dataclass(eq=False)
class StreamProgress:
    """The epoch of an open stream, and how far the stream has come in it."""

    name: str
    """Name of its dataset."""
    epoch: int
    """Number of the epoch, from 0."""
    seed: int
    """Seed of its run."""
    num_bins: int
    """Bins of the whole epoch."""
    position: int = 0
    """End, exclusive, of the positions that were sent, counted in the whole epoch, with those that are skipped."""

    @property
    def run_position(self) -> int:
        """The same end, counted from the beginning of the run."""
        return self.epoch * self.num_bins + self.position

    def __str__(self) -> str:
        return f"position {self.position} of epoch {self.epoch} of the run of seed {self.seed}"
