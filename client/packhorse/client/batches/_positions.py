"""Position ids of packed rows.

Owns which token has which position; leaves the layout of rows to `batch`.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from packhorse.client.batches.layout import PackLayout


def write_position_ids(position_ids: NDArray[np.int64], layout: PackLayout) -> None:
    """Writes 0, 1, 2, … within each extent of a layout of T tokens: int64 [T]."""
    np.subtract(_integers(len(position_ids)), layout.extent_starts.repeat(layout.extent_lengths), out=position_ids)


def continue_positions(
    position_ids: NDArray[np.int64], layout: PackLayout, first_tokens: NDArray[np.int64], num_before: int
) -> None:
    """Moves positions of pieces on by where they begin in their sequences: int64 [n].

    A separator in front of the whole sequence has position 0, so `num_before` more for every piece but the first.
    """
    is_later = first_tokens > 0
    ranges = zip(layout.starts[is_later].tolist(), layout.rooms[is_later].tolist(), strict=True)
    for (start, room), first_token in zip(ranges, first_tokens[is_later].tolist(), strict=True):
        position_ids[start : start + room] += first_token + num_before


def follow_prefixes(position_ids: NDArray[np.int64], layout: PackLayout) -> None:
    """Lets positions of sequences that see a prefix go on where it ends: int64 [T]."""
    for sequence in np.flatnonzero(layout.prefixes >= 0).tolist():
        start = int(layout.starts[sequence])
        position_ids[start : start + int(layout.rooms[sequence])] += layout.lengths[layout.prefixes[sequence]]


def _integers(count: int) -> NDArray[np.int64]:
    """0, 1, 2, …: int64 [count]; the same memory for every batch, and not to be written to."""
    return _integers_below(1 << count.bit_length())[:count]


@lru_cache(maxsize=1)
def _integers_below(end: int) -> NDArray[np.int64]:
    return np.arange(end)
