"""The positions of the bins of a stream, which client and server both compute, so that they need not be sent.

Leaves the division of an epoch among ranks, and into stretches (steps of one size that follow each other), to
`packhorse.topology`.
"""

import numpy as np
from numpy.typing import NDArray

from packhorse.topology import StreamMode, Topology


def stream_positions(topology: Topology, rank: int, first_step: int, num_bins: int) -> NDArray[np.int64]:
    """Returns the positions of a worker's next bins, in order: int64 [num_bins].

    If the bins have others, because a balance exchanged them or the last step is not full, the server sends them.

    Example:
        >>> topology = Topology(world_size=2, batch_size=2)
        >>> stream_positions(topology, rank=1, first_step=0, num_bins=4).tolist()
        [2, 3, 6, 7]

    Args:
        topology: topology of the stream; with a batch schedule, what `of_epoch` returned.
        rank: rank of the stream.
        first_step: step of the worker at which the bins begin.
        num_bins: number of positions to return.
    """
    parts = []
    step, missing = first_step, num_bins
    stretches = topology.stretches[topology.stretch_number(first_step) :]
    for stretch, following in zip(stretches, (*stretches[1:], None), strict=True):
        # Steps of this worker within the stretch: as many as the missing bins need, and none of the next stretch. There
        # may be none at all, if the stretch is shorter than the worker's stride.
        num_steps = -(-missing // stretch.batch_size)
        if following is not None:
            num_steps = min(num_steps, max(0, -(-(following.first_step - step) // topology.step_stride)))
        before_rank = rank * stretch.batch_size if topology.mode is StreamMode.PARTITION else 0
        first = topology.start_position + stretch.offset_of(step) + before_rank
        positions = np.arange(first, first + stretch.batch_size, dtype=np.int64)  # of the first of these steps
        if num_steps != 1:
            stride = topology.step_stride * stretch.bins_per_step
            positions = (np.arange(num_steps, dtype=np.int64)[:, None] * stride + positions).ravel()
        parts.append(positions)
        step += num_steps * topology.step_stride
        missing -= num_steps * stretch.batch_size
        if missing <= 0:
            break
    return (parts[0] if len(parts) == 1 else np.concatenate(parts))[:num_bins]
