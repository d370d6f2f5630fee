"""What both ends know of bins before any is sent: the form they travel in, and which positions a stream goes through.

Owns numbers that must agree to the bit; leaves the arrays to the server that fills them and the client that reads them.
"""

import numpy as np
from numpy.typing import NDArray

from packhorse.topology import StreamMode, Topology

WIRE_VERSION = 3
"""The newest form of a message of bins. 1, which no request names, sent every sequence's length; 2 sends templates; 3
tells groups, components of mixtures and their rows, and redactions as well."""

PLAIN_WIRE_VERSION = 2
"""The form of bins in which there is none of these: readers of it still get them."""

KEPT_TEMPLATES = 1 << 16
"""Templates with lower numbers hold for the rest of a stream, others for their message: so both ends need remember no
more than these, of a plan of any size."""

ADDED_OFFSET = (1 << 32) - 1
"""Stands among position offsets for a bin that the remainder policy added."""

MASKED_TOKEN = (1 << 32) - 1
"""Stands for no token: the sequence keeps its own, and is masked from the loss."""


def stream_positions(topology: Topology, rank: int, first_step: int, num_bins: int) -> NDArray[np.int64]:
    """Returns the positions that a rank goes through in order, where there is no balance: int64 [num_bins].

    Example:
        >>> topology = Topology(world_size=2, batch_size=2)
        >>> stream_positions(topology, rank=1, first_step=0, num_bins=4).tolist()
        [2, 3, 6, 7]

    Args:
        topology: of the stream; where it has a schedule, `of_epoch`.
        rank: likewise.
        first_step: the worker's step where the bins begin.
        num_bins: how many.
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
