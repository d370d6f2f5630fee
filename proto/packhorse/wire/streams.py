"""The form in which bins travel, the positions that a stream visits, and the step that each rank has reached.

Owns numbers on which both ends must agree exactly. Leaves the arrays to the server that fills them and the client that
reads them.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.topology import StreamMode, Topology

WIRE_VERSION = 3
"""The newest form of a message of bins. Version 1, which no request names, sent every sequence's length; 2 sends
templates; 3 also sends groups, components of mixtures and their rows, and redactions."""

PLAIN_WIRE_VERSION = 2
"""The form of bins that have no groups, components, rows or redactions; older clients can still decode it."""

KEPT_TEMPLATES = 1 << 16
"""Templates with lower numbers hold for the rest of a stream, others for their message only. This bounds what both ends
remember, whatever the size of the plan."""

ADDED_OFFSET = (1 << 32) - 1
"""The position offset of a bin that the remainder policy added."""

MASKED_TOKEN = (1 << 32) - 1
"""Means "no token": the sequence keeps its own tokens, and is masked from the loss."""


SKIPPING, REDACTING = "+skip=", "+redact="
"""What follows a dataset's own digest in a stream's: before the ranges that are skipped, and before redactions."""


def own_digest(digest: str) -> str:
    """Returns a dataset's own part of a digest, without what is skipped and redacted.

    Example:
        >>> own_digest("11-22-33-44+skip=5:6+redact=aa")
        '11-22-33-44'
    """
    return digest.partition(REDACTING)[0].partition(SKIPPING)[0]


def stream_positions(topology: Topology, rank: int, first_step: int, num_bins: int) -> NDArray[np.int64]:
    """Returns the positions that a rank visits in order, without a balance: int64 [num_bins].

    Example:
        >>> topology = Topology(world_size=2, batch_size=2)
        >>> stream_positions(topology, rank=1, first_step=0, num_bins=4).tolist()
        [2, 3, 6, 7]

    Args:
        topology: of the stream; with a batch schedule, what `of_epoch` returned.
        rank: of the stream.
        first_step: the worker's step where the bins begin.
        num_bins: how many positions to return.
    """
    parts = []
    step, missing = first_step, num_bins
    stretches = topology.stretches[topology.stretch_number(first_step) :]
    for stretch, following in zip(stretches, (*stretches[1:], None), strict=True):
        num_steps = -(-missing // stretch.batch_size)
        if following is not None:
            num_steps = min(num_steps, max(0, -(-(following.first_step - step) // topology.step_stride)))
        within = rank * stretch.batch_size if topology.mode is StreamMode.PARTITION else 0
        first = topology.start_position + stretch.offset_of(step) + within
        slots = np.arange(first, first + stretch.batch_size, dtype=np.int64)
        if num_steps != 1:
            stride = topology.step_stride * stretch.bins_per_step
            slots = (np.arange(num_steps, dtype=np.int64)[:, None] * stride + slots).ravel()
        parts.append(slots)
        step += num_steps * topology.step_stride
        missing -= num_steps * stretch.batch_size
        if missing <= 0:
            break
    return (parts[0] if len(parts) == 1 else np.concatenate(parts))[:num_bins]


class EpochKey(NamedTuple):
    """The fields that all streams of one epoch share."""

    dataset: str
    epoch: int
    seed: int
    world_size: int


def steps_of_ranks(
    streams: Iterable[Any], step_of: Callable[[Any], int] = attrgetter("next_step")
) -> dict[EpochKey, dict[int, int]]:
    """Returns the next step of each rank of each epoch: the smallest `next_step` of the rank's workers.

    Args:
        streams: open streams, each with the fields of `EpochKey` and a `rank`, as a StreamActivity has them. One
            without a dataset is left out.
        step_of: returns the step of a stream to take instead of its `next_step`.

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
