"""Which step each rank has reached, from the streams that are open.

Owns the one way to tell, for the server's metrics and for clients that look at several servers at once.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class Streaming(Protocol):
    """An open stream, such as a StreamActivity."""

    @property
    def dataset(self) -> str:
        """The dataset's name; empty where it streams none."""
        ...

    @property
    def epoch(self) -> int:
        """0-based."""
        ...

    @property
    def seed(self) -> int:
        """Of the run."""
        ...

    @property
    def world_size(self) -> int:
        """Data-parallel degree."""
        ...

    @property
    def rank(self) -> int:
        """Data-parallel rank."""
        ...

    @property
    def next_step(self) -> int:
        """The worker's first step that has not left yet."""
        ...


class EpochKey(NamedTuple):
    """What the streams that go through one epoch together have in common."""

    dataset: str
    epoch: int
    seed: int
    world_size: int


def steps_of_ranks(streams: Iterable[Streaming]) -> dict[EpochKey, dict[int, int]]:
    """Returns the next step of each rank of each epoch: of a rank's workers, the one that is furthest behind counts.

    Example:
        >>> from packhorse.v1 import packing_pb2 as pb
        >>> def stream(rank, next_step):
        ...     return pb.StreamActivity(dataset="corpus", world_size=2, rank=rank, next_step=next_step)
        >>> steps_of_ranks([stream(0, 40), stream(0, 41), stream(1, 7)])
        {EpochKey(dataset='corpus', epoch=0, seed=0, world_size=2): {0: 40, 1: 7}}
    """
    epochs: dict[EpochKey, dict[int, int]] = {}
    for stream in streams:
        if stream.dataset:
            steps = epochs.setdefault(EpochKey(stream.dataset, stream.epoch, stream.seed, stream.world_size), {})
            steps[stream.rank] = min(steps.get(stream.rank, stream.next_step), stream.next_step)
    return epochs
