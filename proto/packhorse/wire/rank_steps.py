"""The step that each rank of an epoch has reached, computed from the open streams that a server reports."""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple


class EpochKey(NamedTuple):
    """The fields that all streams of one epoch share."""

    dataset: str
    epoch: int
    seed: int
    world_size: int


def steps_of_ranks(
    streams: Iterable[Any], step_of: Callable[[Any], int] = attrgetter("next_step")
) -> dict[EpochKey, dict[int, int]]:
    """Returns the step that each rank of each epoch has reached, which is the smallest step of the rank's workers.

    Args:
        streams: open streams with the fields of `EpochKey` and `rank`, such as messages StreamActivity. A stream
            without a dataset is left out.
        step_of: returns the step that a stream has reached; by default its `next_step`.

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
            step = step_of(stream)
            steps[stream.rank] = min(steps.get(stream.rank, step), step)
    return epochs
