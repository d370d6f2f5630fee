"""From lengths, or their histogram, to rooms: the tokens that sequences take up in a bin.

Leaves the formula to `topology.RoomRule`, and the check of lengths to `lengths`.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from packhorse.packing.counts import MAX_SEQ_LEN
from packhorse.parameters import parameter
from packhorse.topology import LEAST_EXTRA_TOKENS, RoomRule, checked_integer


def checked_rule(max_seq_len: object, align: object, extra_tokens: object) -> RoomRule:
    """Returns the rule that turns lengths into rooms.

    Example:
        >>> checked_rule(1024, align=8, extra_tokens=1).room(100)
        104

    Args:
        max_seq_len: a bin's capacity in tokens.
        align: a room is a multiple of this many tokens (context and tensor parallelism).
        extra_tokens: tokens added to every sequence before rounding (BOS, EOS); -1 leaves out the last one.

    Raises:
        ValueError: max_seq_len or align is not an integer in [1, MAX_SEQ_LEN], or extra_tokens is not one in
            [-1, MAX_SEQ_LEN].
    """
    return RoomRule(
        checked_integer("max_seq_len", max_seq_len, 1, MAX_SEQ_LEN),
        checked_integer("align", align, 1, MAX_SEQ_LEN),
        checked_integer("extra_tokens", extra_tokens, LEAST_EXTRA_TOKENS, MAX_SEQ_LEN),
    )


def rooms_of_counts(counts: Mapping[int, int], rule: RoomRule) -> Mapping[int, int]:
    """Returns room → number of sequences, from length → number, which were checked by `checked_counts`.

    Raises:
        ValueError: a room is over max_seq_len although its length was accepted; the message names the length.
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
    """Returns the room of each length: int64 [S]. It is the same array if every room equals its length.

    Example:
        >>> rooms_of_lengths(np.array([100, 7]), checked_rule(1024, align=8, extra_tokens=1)).tolist()
        [104, 8]

    Args:
        lengths: int64 [S], in tokens, each in [1, rule.longest_length].
        rule: the rule from lengths to rooms.

    Raises:
        ValueError: a room exceeds max_seq_len; the message names the first.
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
    """Returns the message that a room is over max_seq_len; `name` says which length has it."""
    return (
        f"{name} takes {room} tokens with "
        + parameter("extra_tokens")
        + f" {rule.extra_tokens} and align {rule.align}, over "
        + parameter("max_seq_len")
        + f" {rule.max_seq_len}: raise "
        + parameter("max_seq_len")
        + ", or drop, truncate or split it first"
    )
