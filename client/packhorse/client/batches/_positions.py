"""Position ids of a batch: from 0 in each room, or on from the prefix that it sees, or from the piece before if asked.

Leaves which rooms there are, and which sequence sees which prefix, to `layout`; position ids of images to `_images`.

Legend: n sequences, T tokens of all rows end to end.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from packhorse.client.batches.layout import PackLayout


def write_position_ids(
    position_ids: NDArray[np.int64], layout: PackLayout, *, first_tokens: NDArray[np.int64] | None, num_bos: int
) -> None:
    """Writes 0, 1, 2, … within each extent of a layout (a room, or the rest of a row), and goes on where wanted.

    Args:
        position_ids: receives the positions: int64 [T].
        layout: where the sequences lie; one that sees a prefix goes on where the prefix ends.
        first_tokens: number of each piece's first token in its sequence, from which it goes on: int64 [n]; None if all
            begin at 0.
        num_bos: separators before a sequence, 0 or 1. One takes position 0, so that token 5 of the sequence has
            position 6, also if a later piece begins with it.
    """
    np.subtract(_integers(len(position_ids)), layout.extent_starts.repeat(layout.extent_lengths), out=position_ids)
    if first_tokens is not None:
        is_later = first_tokens > 0
        ranges = zip(layout.starts[is_later].tolist(), layout.rooms[is_later].tolist(), strict=True)
        for (start, room), first_token in zip(ranges, first_tokens[is_later].tolist(), strict=True):
            position_ids[start : start + room] += first_token + num_bos
    for sequence in np.flatnonzero(layout.prefixes >= 0).tolist():
        start = int(layout.starts[sequence])
        position_ids[start : start + int(layout.rooms[sequence])] += layout.lengths[layout.prefixes[sequence]]


def _integers(count: int) -> NDArray[np.int64]:
    """Returns 0, 1, 2, …, int64 [count], a view of memory that batches share; do not write to it."""
    return _integers_below(1 << count.bit_length())[:count]  # a power of two, so that batches of similar sizes share it


@lru_cache(maxsize=1)
def _integers_below(end: int) -> NDArray[np.int64]:
    return np.arange(end)
