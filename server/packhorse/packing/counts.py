"""The check of a length histogram that every packer starts with, and the largest capacity.

Leaves the check of a list of lengths to `lengths`, and plans to `plan`.
"""

from collections.abc import Mapping

from packhorse.parameters import parameter
from packhorse.topology import checked_integer

MAX_SEQ_LEN = 2**31 - 1
"""Largest capacity, in tokens: lengths are int32 wherever they are stored or sent."""


def checked_counts(
    counts: Mapping[int, int], max_seq_len: int, max_sequences_per_bin: int | None, *, longest: int | None = None
) -> tuple[list[tuple[int, int]], int]:
    """Checks a packer's input, and brings it into the form that packers take. Counts of 0 are ignored.

    Args:
        counts: length in tokens → number of sequences.
        max_seq_len: a bin's capacity in tokens.
        max_sequences_per_bin: the most sequences in a bin; None for no limit.
        longest: the greatest length, above max_seq_len if rooms are shorter than lengths; None for max_seq_len.

    Returns:
        (length, count) pairs by descending length, and the most sequences in a bin (max_seq_len for no limit, since
        every sequence has a token).

    Raises:
        ValueError: max_seq_len outside [1, MAX_SEQ_LEN], max_sequences_per_bin below 1, a length outside [1, longest],
            a negative count, or anything that is not an integer.
    """
    capacity = checked_integer("max_seq_len", max_seq_len, 1, MAX_SEQ_LEN)
    limit = capacity
    if max_sequences_per_bin is not None:
        limit = min(capacity, checked_integer("max_sequences_per_bin", max_sequences_per_bin, 1))
    if not isinstance(counts, Mapping):
        raise ValueError(f"counts must be a dict from length to number of sequences, got {type(counts).__name__}")
    pairs: list[tuple[int, int]] = []
    for key, value in counts.items():
        # Formatting the names for messages takes longer than the check, so only values that may be wrong get there.
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
