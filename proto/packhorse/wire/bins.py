"""What both ends know of bins before any is sent: the form they travel in, and which positions a stream goes through.

Owns numbers that must agree to the bit; leaves the arrays to the server that fills them and the client that reads them.
"""

import numpy as np
from numpy.typing import NDArray

from packhorse.topology import StreamMode, Topology

WIRE_VERSION = 2
"""The form of a message of bins. 1, which no request names, sent every sequence's length."""

KEPT_TEMPLATES = 1 << 16
"""Templates with lower numbers hold for the rest of a stream, others for their message: so both ends need remember no
more than these, of a plan of any size."""

ADDED_OFFSET = (1 << 32) - 1
"""Stands among position offsets for a bin that the remainder policy added."""


def stream_positions(topology: Topology, rank: int, first_step: int, num_bins: int) -> NDArray[np.int64]:
    """Returns the positions that a rank goes through in order, where there is no balance: int64 [num_bins].

    Example:
        >>> topology = Topology(world_size=2, batch_size=2)
        >>> stream_positions(topology, rank=1, first_step=0, num_bins=4).tolist()
        [2, 3, 6, 7]

    Args:
        topology: of the stream.
        rank: likewise.
        first_step: the worker's step where the bins begin.
        num_bins: how many.
    """
    steps = np.arange(-(-num_bins // topology.batch_size), dtype=np.int64)[:, None]
    within = rank * topology.batch_size if topology.mode is StreamMode.PARTITION else 0
    begin = topology.start_position + first_step * topology.bins_per_step + within
    first_of_steps = begin + steps * (topology.step_stride * topology.bins_per_step)
    return (first_of_steps + np.arange(topology.batch_size)).ravel()[:num_bins]
