"""Plans: templates with their multiplicities, the facts that follow from them, and how few bins any plan can have.

Owns `PackingPlan`, the canonical order of templates, the check of counts that every packer starts with, the bounds that
need the counts alone, and the plain check of the certificate in which a packer proves more. That check is one slow,
obvious dynamic program in Python's own integers, and shares nothing with the packer. Leaves choosing templates to the
packers of `registry`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from packhorse.topology import checked_integer


@dataclass(frozen=True, kw_only=True)
class DualCertificate:
    """Integer prices for lengths, and the most that any bin can be worth at these prices.

    All sequences together are worth Σ counts · price, so there are at least ⌈Σ counts · price / bin_worth⌉ bins.

    Source: A. A. Farley, "A note on bounding a class of linear programming problems, including cutting stock
    problems", Operations Research 38 (1990).
    """

    prices: Mapping[int, int]
    """Length in tokens → price, at least 0; a length that is missing has price 0."""
    bin_worth: int
    """The greatest sum of prices of sequences that fit into one bin, or more; above 0."""

    def bound(self, counts: Mapping[int, int]) -> int:
        """Returns the number of bins that a plan for `counts` needs at least, if the certificate holds."""
        return -(-sum(count * self.prices.get(length, 0) for length, count in counts.items()) // self.bin_worth)


Template = tuple[int, ...]
"""A bin's recipe: a descending tuple of lengths (tokens) with sum ≤ max_seq_len."""

MAX_SEQ_LEN = 2**31 - 1
"""Largest capacity, in tokens: lengths are int32 wherever they are stored or sent."""


@dataclass(frozen=True, kw_only=True)
class Packing:
    """The result of a packer."""

    templates: Counter[Template]
    """Template → multiplicity."""
    algorithm: str
    """The packer that made them."""
    lower_bound: int = 0
    """No plan has fewer bins, as far as the packer proved; 0 for no proof."""
    certificate: DualCertificate | None = None
    """Proof of that bound, if it is a dual bound."""
    cut_off: bool = False
    """Whether the time limit ended it early."""
    note: str = ""
    """Why it did less than asked; empty if it did not."""


@dataclass(frozen=True, kw_only=True)
class PackingPlan:
    """Templates with their multiplicities, for one (counts, max_seq_len, options)."""

    templates: Counter[Template] = field(repr=False)
    """Template → how many bins of an epoch use it."""
    max_seq_len: int
    """A bin's capacity in tokens."""
    lower_bound: int
    """No plan for the same counts and options has fewer bins."""
    algorithm: str
    """The packer that made the plan."""
    seconds: float = field(default=0.0, compare=False)
    """How long planning took."""
    certificate: DualCertificate | None = field(default=None, repr=False, compare=False)
    """Proof of `lower_bound`, if it is a dual bound; None if `packhorse.packing.lower_bound` computes it."""
    cut_off: bool = False
    """Whether the time limit ended the packer early, so that the same call may give another plan."""
    note: str = field(default="", compare=False)
    """Why the packer did less than asked; empty if it did not."""

    @property
    def num_bins(self) -> int:
        """Bins in an epoch."""
        return sum(self.templates.values())

    @property
    def proven(self) -> bool:
        """Whether no plan can have fewer bins."""
        return self.num_bins == self.lower_bound

    @property
    def num_sequences(self) -> int:
        """Sequences in an epoch."""
        return sum(len(template) * multiplicity for template, multiplicity in self.templates.items())

    @property
    def total_tokens(self) -> int:
        """Sum of all lengths, in tokens."""
        return sum(sum(template) * multiplicity for template, multiplicity in self.templates.items())

    @property
    def efficiency(self) -> float:
        """Tokens per token of capacity, in [0, 1]; 0 for a plan without bins."""
        num_bins = self.num_bins
        return self.total_tokens / (num_bins * self.max_seq_len) if num_bins else 0.0

    @property
    def gap(self) -> float:
        """Bins beyond the lower bound, as a share of it; 0 is proven optimal."""
        return (self.num_bins - self.lower_bound) / self.lower_bound if self.lower_bound else 0.0


def canonical_templates(templates: Mapping[Template, int]) -> list[tuple[Template, int]]:
    """Returns (template, multiplicity) pairs in canonical order: descending lexicographic.

    Example:
        >>> canonical_templates({(3, 3): 2, (5,): 1, (5, 3): 4})
        [((5, 3), 4), ((5,), 1), ((3, 3), 2)]

    Args:
        templates: template → multiplicity.
    """
    return sorted(templates.items(), reverse=True)


def counts_of_templates(templates: Mapping[Template, int]) -> Counter[int]:
    """Returns the counts that a plan's templates use: length → number of sequences.

    Example:
        >>> counts_of_templates({(5, 3): 2, (3,): 1})
        Counter({3: 3, 5: 2})

    Args:
        templates: template → multiplicity.
    """
    counts: Counter[int] = Counter()
    for template, multiplicity in templates.items():
        for length in template:
            counts[length] += multiplicity
    return counts


def checked_counts(
    counts: Mapping[int, int], max_seq_len: int, max_sequences_per_bin: int | None
) -> tuple[list[tuple[int, int]], int]:
    """Checks a packer's input, in which counts of 0 are ignored.

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
        if length > capacity:
            raise ValueError(
                f"length {length} is over max_seq_len {capacity}: raise max_seq_len, or drop, truncate or split the "
                f"{count} sequences of it first"
            )
        if count:
            pairs.append((length, count))
    pairs.sort(reverse=True)
    return pairs, limit


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
    return max(-(-tokens // capacity), -(-sequences // limit), _martello_toth(pairs, capacity, tokens))


def _martello_toth(pairs: list[tuple[int, int]], capacity: int, tokens: int) -> int:
    """L2: sequences longer than half a bin need a bin each, and short ones only fit into what those leave.

    For every threshold a: lengths above capacity - a share a bin with nothing of a or more, so the rest of it is lost.
    """
    dtype: type = np.int64 if tokens < 2**62 else object  # Python's own integers where int64 could overflow
    lengths = np.array([length for length, _ in pairs], dtype=np.int64)  # [n], descending
    counts: Any = np.array([count for _, count in pairs], dtype=dtype)
    counts_before = np.concatenate(([0], np.cumsum(counts)))  # [n + 1]
    tokens_before = np.concatenate(([0], np.cumsum(counts * lengths)))
    num_long = int(np.searchsorted(-lengths, -(capacity // 2), side="left"))  # lengths > capacity / 2
    thresholds = lengths[num_long:]
    if not len(thresholds):
        return int(counts_before[-1])
    first_mid = np.searchsorted(-lengths, -(capacity - thresholds), side="left")  # lengths <= capacity - a
    first_mid = np.minimum(first_mid, num_long)
    last_short = np.searchsorted(-lengths, -thresholds, side="right")  # lengths >= a
    long_tokens = tokens_before[num_long] - tokens_before[first_mid]
    room = (counts_before[num_long] - counts_before[first_mid]) * capacity - long_tokens
    excess = tokens_before[last_short] - tokens_before[num_long] - room
    return int(counts_before[num_long] + max(0, *(-(-excess // capacity)).tolist()))


def check_certificate(
    certificate: DualCertificate,
    counts: Mapping[int, int],
    max_seq_len: int,
    *,
    max_sequences_per_bin: int | None = None,
) -> int:
    """Checks a certificate, and returns the lower bound on the number of bins that it proves.

    Takes O(distinct lengths · max_seq_len), times the limit if one binds.

    Example:
        >>> proof = DualCertificate(prices={6: 1}, bin_worth=1)  # a bin of 10 holds one sequence of 6 at most
        >>> check_certificate(proof, {6: 3}, max_seq_len=10)
        3

    Args:
        certificate: what to check.
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
    best = [0] * (max_seq_len + 1)  # the greatest worth of c tokens in as many sequences as there were rounds
    for _ in range(min(limit, max_seq_len // pairs[-1][0]) if pairs else 0):
        longer = list(best)
        for length, worth in priced:
            for tokens in range(length, max_seq_len + 1):
                longer[tokens] = max(longer[tokens], best[tokens - length] + worth)
        if longer == best:
            break
        best = longer
    if best[-1] > certificate.bin_worth:
        raise ValueError(f"certificate: a bin can be worth {best[-1]}, more than bin_worth {certificate.bin_worth}")
    return certificate.bound(counts)
