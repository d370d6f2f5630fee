"""The check of counts that every packer starts with, and the largest capacity.

Owns what counts must be. Lengths one by one are in `lengths`, and plans are in `plan`.
"""

from collections.abc import Mapping

from packhorse.parameters import parameter
from packhorse.topology import checked_integer

MAX_SEQ_LEN = 2**31 - 1
"""Largest capacity, in tokens: lengths are int32 wherever they are stored or sent."""


def checked_counts(
    counts: Mapping[int, int], max_seq_len: int, max_sequences_per_bin: int | None, *, longest: int | None = None
) -> tuple[list[tuple[int, int]], int]:
    """Checks a packer's input, in which counts of 0 are ignored.

    Args:
        counts: from lengths to how many sequences have each.
        max_seq_len: a bin's capacity in tokens.
        max_sequences_per_bin: the most sequences in a bin; None for no limit.
        longest: the greatest length; None for max_seq_len.

    Returns:
        (length, count) pairs by descending length, and the most sequences in a bin (max_seq_len for no limit, since
        every sequence has a token).

    Raises:
        ValueError: max_seq_len over MAX_SEQ_LEN, a length outside [1, max_seq_len], a negative count, or anything
            that is not an integer.
    """
    capacity = checked_integer("max_seq_len", max_seq_len, 1, MAX_SEQ_LEN)
    limit = capacity
    if max_sequences_per_bin is not None:
        limit = min(capacity, checked_integer("max_sequences_per_bin", max_sequences_per_bin, 1))
    if not isinstance(counts, Mapping):
        raise ValueError(f"counts must be a dict from length to number of sequences, got {type(counts).__name__}")
    pairs: list[tuple[int, int]] = []
    for key, value in counts.items():
        # Making the names takes longer than the check, so they are made only for values that may be wrong.
        length = key if type(key) is int and key > 0 else checked_integer("every length in counts", key, 1)
        plain = type(value) is int and value >= 0
        count = value if plain else checked_integer(f"the count of length {length}", value, 0)
        if length > (longest or capacity):
            raise ValueError(
                f"length {length} is over "
                + parameter("max_seq_len")
                + f" {capacity}: raise "
                + parameter("max_seq_len")
                + f", or drop, truncate or split the {count} sequences of it first"
            )
        if count:
            pairs.append((length, count))
    pairs.sort(reverse=True)
    return pairs, limit
