"""Lower bounds on the number of bins of a plan.

Owns the bounds that follow from the counts, and the check of a certificate, with which a packer proves a better bound.
The check is one slow, obvious dynamic program in Python's integers, and shares no code with the packer. Leaves the
certificate itself to `plan`, and finding one to `column_generation`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from packhorse.packing.counts import checked_counts
from packhorse.packing.plan import DualCertificate

_MOST_INT64_TOKENS = 2**62
"""Tokens of all sequences from which on a bound is computed in Python's integers, because int64 could overflow."""


def lower_bound(counts: Mapping[int, int], max_seq_len: int, *, max_sequences_per_bin: int | None = None) -> int:
    """Returns the best of the continuous, the cardinality and the Martello-Toth L2 bound.

    Example:
        >>> lower_bound({6: 5, 2: 4}, max_seq_len=10)  # no two sequences of 6 share a bin
        5

    Args:
        counts: length in tokens → number of sequences.
        max_seq_len: a bin's capacity in tokens.
        max_sequences_per_bin: the most sequences in a bin; None for no limit.

    Returns:
        The number of bins that every plan needs at least; 0 without sequences.

    Raises:
        ValueError: the input is not a histogram of lengths in [1, max_seq_len].

    Source: S. Martello, P. Toth, "Lower bounds and reduction procedures for the bin packing problem", Discrete Applied
    Mathematics 28 (1990).
    """
    pairs, limit = checked_counts(counts, max_seq_len, max_sequences_per_bin)
    return bound_of_pairs(pairs, int(max_seq_len), limit)  # products with a NumPy integer could overflow


def bound_of_pairs(pairs: list[tuple[int, int]], capacity: int, limit: int) -> int:
    """Returns the bound of `lower_bound` for checked (length, count) pairs by descending length."""
    if not pairs:
        return 0
    tokens = sum(length * count for length, count in pairs)
    sequences = sum(count for _, count in pairs)
    continuous, cardinality = -(-tokens // capacity), -(-sequences // limit)
    longest, _ = pairs[0]
    if longest <= capacity // 2:  # then L2 is the continuous bound
        return max(continuous, cardinality)
    return max(continuous, cardinality, _martello_toth(pairs, capacity, tokens))


def _martello_toth(pairs: list[tuple[int, int]], capacity: int, tokens: int) -> int:
    """Returns the bound L2: a long sequence, over half a bin, needs its own bin; short ones fill what these leave.

    L2 is the greatest bound over thresholds a, which are the short lengths. A threshold a ignores all sequences shorter
    than a. The other short ones do not fit beside a sequence over capacity - a, so the room beside it is lost. Those
    that do not fit into the bins of the other long sequences need further bins.
    """
    dtype: type = np.int64 if tokens < _MOST_INT64_TOKENS else object
    lengths = np.array([length for length, _ in pairs], dtype=np.int64)  # [n], descending
    counts: Any = np.array([count for _, count in pairs], dtype=dtype)
    counts_before = np.concatenate(([0], np.cumsum(counts)))  # [n + 1]
    tokens_before = np.concatenate(([0], np.cumsum(counts * lengths)))
    num_long = int(np.searchsorted(-lengths, -(capacity // 2), side="left"))  # lengths > capacity / 2
    thresholds = lengths[num_long:]
    if not len(thresholds):  # all sequences are long, and each needs its own bin
        return int(counts_before[-1])
    # For each threshold: the number of lengths beside which no counted short one fits, and the number of lengths that
    # are counted.
    num_longest = np.searchsorted(-lengths, -(capacity - thresholds), side="left")  # lengths > capacity - a
    num_longest = np.minimum(num_longest, num_long)
    num_counted = np.searchsorted(-lengths, -thresholds, side="right")  # lengths >= a
    # For each threshold: the tokens of the other long sequences, the room in their bins, and the tokens of counted
    # short sequences that exceed this room.
    long_tokens = tokens_before[num_long] - tokens_before[num_longest]
    room = (counts_before[num_long] - counts_before[num_longest]) * capacity - long_tokens
    excess = tokens_before[num_counted] - tokens_before[num_long] - room
    return int(counts_before[num_long] + max(0, *(-(-excess // capacity)).tolist()))


def check_certificate(
    certificate: DualCertificate,
    counts: Mapping[int, int],
    max_seq_len: int,
    *,
    max_sequences_per_bin: int | None = None,
) -> int:
    """Checks a certificate, and returns the lower bound on the number of bins that it proves.

    Takes O(distinct lengths · max_seq_len · the most sequences that fit a bin).

    Example:
        >>> proof = DualCertificate(prices={6: 1}, bin_worth=1)  # a bin of 10 holds one sequence of 6 at most
        >>> check_certificate(proof, {6: 3}, max_seq_len=10)
        3

    Args:
        certificate: prices, and the claim of what a bin is worth at most.
        counts: length in tokens → number of sequences.
        max_seq_len: a bin's capacity in tokens.
        max_sequences_per_bin: the most sequences in a bin; None for no limit.

    Raises:
        ValueError: the counts are not a histogram, a price is negative, or a bin can be worth more than `bin_worth`.
    """
    pairs, limit = checked_counts(counts, max_seq_len, max_sequences_per_bin)
    priced = [(length, certificate.prices.get(length, 0)) for length, _ in pairs]
    if certificate.bin_worth < 1 or any(worth < 0 for _, worth in priced):
        raise ValueError("certificate: prices must be at least 0 and bin_worth at least 1")
    most_in_bin = 0
    if pairs:
        shortest, _ = pairs[-1]
        most_in_bin = min(limit, max_seq_len // shortest)
    # best[c] is the greatest worth of sequences of at most c tokens together; each round allows one sequence more.
    best = [0] * (max_seq_len + 1)
    for _ in range(most_in_bin):
        with_one_more = list(best)
        for length, worth in priced:
            for tokens in range(length, max_seq_len + 1):
                with_one_more[tokens] = max(with_one_more[tokens], best[tokens - length] + worth)
        if with_one_more == best:  # then further sequences add nothing either
            break
        best = with_one_more
    if best[-1] > certificate.bin_worth:
        raise ValueError(f"certificate: a bin can be worth {best[-1]}, more than bin_worth {certificate.bin_worth}")
    return certificate.bound(counts)
