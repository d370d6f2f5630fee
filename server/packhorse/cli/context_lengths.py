"""What other context lengths would make of the same counts, to choose one by.

Owns the sweep over max_seq_len; each point is a plan by best-fit.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from packhorse.packing import pack_histogram


@dataclass(frozen=True, kw_only=True)
class ContextLength:
    """One context length."""

    max_seq_len: int
    """In tokens."""
    bins: int
    """Bins in an epoch, longer sequences truncated."""
    efficiency: float
    """Tokens per token of capacity, packed."""
    padded_efficiency: float
    """The same with one sequence a row, padded."""
    sequences_cut: int
    """Sequences longer than max_seq_len."""
    tokens_cut: int
    """Tokens that truncating them takes away."""


def context_lengths(counts: Mapping[int, int], own: int) -> list[ContextLength]:
    """Plans the counts for powers of two around their lengths, and for a dataset's own max_seq_len.

    Args:
        counts: length in tokens → number of sequences.
        own: the dataset's max_seq_len.
    """
    longest = max(counts)
    powers = {1 << bits for bits in range(6, 31) if longest / 16 < 1 << bits <= longest * 16}
    return [_at(counts, max_seq_len) for max_seq_len in sorted(powers | {own})]


def _at(counts: Mapping[int, int], max_seq_len: int) -> ContextLength:
    cut: Counter[int] = Counter()
    for length, count in counts.items():
        cut[min(length, max_seq_len)] += count
    plan = pack_histogram(cut, max_seq_len, algorithm="best-fit")
    tokens = sum(length * count for length, count in counts.items())
    kept = plan.total_tokens
    return ContextLength(
        max_seq_len=max_seq_len,
        bins=plan.num_bins,
        efficiency=plan.efficiency,
        padded_efficiency=kept / (plan.num_sequences * max_seq_len),
        sequences_cut=sum(count for length, count in counts.items() if length > max_seq_len),
        tokens_cut=tokens - kept,
    )
