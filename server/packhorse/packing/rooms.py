"""Rooms of histograms and of lists: packers are given rooms, and never see lengths.

Owns the checks of options and of what does not fit; leaves the formula to `packhorse.topology.RoomRule`.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from packhorse.packing.plan import MAX_SEQ_LEN
from packhorse.topology import RoomRule, checked_integer


def checked_rule(max_seq_len: object, align: object, extra_tokens: object) -> RoomRule:
    """Returns how rooms follow from lengths.

    Example:
        >>> checked_rule(1024, align=8, extra_tokens=1).room(100)
        104

    Args:
        max_seq_len: a bin's capacity in tokens.
        align: a room is a multiple of this many tokens (context and tensor parallelism).
        extra_tokens: tokens added to every sequence before rounding (BOS, EOS).

    Raises:
        ValueError: max_seq_len or align is no integer in [1, MAX_SEQ_LEN], or extra_tokens none in [0, MAX_SEQ_LEN].
    """
    return RoomRule(
        checked_integer("max_seq_len", max_seq_len, 1, MAX_SEQ_LEN),
        checked_integer("align", align, 1, MAX_SEQ_LEN),
        checked_integer("extra_tokens", extra_tokens, 0, MAX_SEQ_LEN),
    )


def rooms_of_counts(counts: Mapping[int, int], rule: RoomRule) -> Mapping[int, int]:
    """Returns room → number of sequences; lengths with the same room are taken together.

    Args:
        counts: length in tokens → number of sequences; checked.
        rule: how rooms follow from lengths.

    Raises:
        ValueError: a room is over max_seq_len.
    """
    if rule.is_plain:
        return counts
    merged: Counter[int] = Counter()
    for key, count in counts.items():
        length = int(key)  # sums with a small NumPy integer could overflow
        room = rule.room(length)
        if room > rule.max_seq_len:
            raise ValueError(_over_length(f"length {length}", room, rule))
        merged[room] += count
    return merged


def rooms_of_lengths(lengths: NDArray[np.int64], rule: RoomRule) -> NDArray[np.int64]:
    """Returns the room of each length, int64 [S]; the same array where every room is its length.

    Example:
        >>> rooms_of_lengths(np.array([100, 7]), checked_rule(1024, align=8, extra_tokens=1)).tolist()
        [104, 8]

    Args:
        lengths: int64 [S], in tokens, each in [1, max_seq_len].
        rule: how rooms follow from lengths.

    Raises:
        ValueError: a room is over max_seq_len; names the first.
    """
    if rule.is_plain:
        return lengths
    rooms: NDArray[np.int64] = rule.room(lengths)
    over = rooms > rule.max_seq_len
    if over.any():
        index = int(np.argmax(over))
        raise ValueError(_over_length(f"lengths[{index}] = {int(lengths[index])}", int(rooms[index]), rule))
    return rooms


def _over_length(name: str, room: int, rule: RoomRule) -> str:
    return (
        f"{name} takes {room} tokens with extra_tokens {rule.extra_tokens} and align {rule.align}, over max_seq_len "
        f"{rule.max_seq_len}: raise max_seq_len, or drop, truncate or split it first"
    )
