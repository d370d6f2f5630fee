"""Rooms that are larger than what they hold: how many tokens of its own each sequence puts into its room.

Owns the check that a source's lengths come to the planned rooms; leaves the formula to `packhorse.topology.RoomRule`,
tokens to `sources` and the layout of rows to `batch`.
"""

import numpy as np
from numpy.typing import NDArray

from packhorse.client.sources import TokenSourceError
from packhorse.client.sources.base import refuse_length
from packhorse.topology import RoomRule


def own_lengths(
    rule: RoomRule,
    ids: NDArray[np.int64],
    planned: NDArray[np.int64],
    held: NDArray[np.int64],
    first_tokens: NDArray[np.int64] | None,
    *,
    longest: int | NDArray[np.int64] | None,
) -> NDArray[np.int64]:
    """Returns how many tokens of its own each sequence, or piece, puts into its room: int64 [S], at least 1.

    With `longest` a sequence, or what is left of it from its piece's first token on, either is at least that long and
    fills a whole room, or comes to the planned room exactly. A source whose whole piece is followed by more than
    was planned cannot be told from the right one here; the piece that follows tells.

    Args:
        rule: how a room follows from a length.
        ids: int64 [S].
        planned: each room in tokens: int64 [S].
        held: length of each whole sequence in the source, in tokens: int64 [S].
        first_tokens: first token of each piece: int64 [S]; None for all 0.
        longest: what a longer sequence was cut to, truncated at its end or split: one for all, or int64 [S]. None where
            none was cut.

    Raises:
        TokenSourceError: a sequence's length in the source does not come to the planned room.
    """
    left = held if first_tokens is None else held - first_tokens
    own = left if longest is None else np.minimum(left, longest)
    comes_to = rule.room(own)
    is_wrong = (own < 1) | (comes_to != planned)
    if is_wrong.any():
        i = int(is_wrong.argmax())
        first = 0 if first_tokens is None else int(first_tokens[i])
        if rule.is_plain:
            refuse_length(int(ids[i]), int(planned[i]), int(held[i]), start=first, is_whole=False)
        piece = f" from token {first} on" if first else ""
        raise TokenSourceError(
            f"sequence {ids[i]}: the plan has a room of {planned[i]} tokens for it{piece}, but the {held[i]} tokens "
            f"that the source holds come to {comes_to[i]} with align {rule.align} and extra_tokens "
            f"{rule.extra_tokens}; use the token file that the dataset was prepared from"
        )
    return own
