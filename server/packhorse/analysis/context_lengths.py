"""What other context lengths would make of a dataset's sequences, to choose one by.

Owns the sweep over max_seq_len; each point is a plan, and the dataset's own is the one that it was prepared with.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from packhorse.analysis.over_length import fit, lengths_before, options_of, rule_of
from packhorse.dataset import PreparedDataset
from packhorse.epoch import PlanIndex
from packhorse.packing import counts_of_templates, pack_histogram

_SHORTER, _LONGER = 16, 4
"""Context lengths are powers of two from a 16th of the dataset's own to four times that."""


@dataclass(frozen=True, kw_only=True)
class ContextLength:
    """One context length."""

    max_seq_len: int
    """In tokens."""
    bins: int
    """Bins in an epoch."""
    efficiency: float
    """Tokens per token of capacity, packed; `extra_tokens` and alignment count as tokens."""
    padded_efficiency: float
    """The same with one sequence a row, padded."""
    sequences_cut: int
    """Sequences that are too long, and so truncated, split or dropped as the dataset's option says."""
    tokens_cut: int
    """Tokens that this takes away."""
    plan: PlanIndex
    """The epoch."""

    def facts(self) -> dict[str, Any]:
        """Returns everything but the plan, for JSON."""
        return {name: value for name, value in vars(self).items() if name != "plan"}


def context_lengths(dataset: PreparedDataset) -> list[ContextLength]:
    """Plans a dataset's sequences for the powers of two around its own max_seq_len, and shows its own plan.

    Sequences that are too long are truncated, split or dropped as in the dataset; one that was prepared with the
    option "error" has none, and they are truncated in shorter contexts. Groups are dropped as a whole. With a limit of
    sequences in a bin the better of two packers plans, else best-fit.

    Returns:
        One for each context length, ascending.
    """
    own, rule, lengths = dataset.manifest.max_seq_len, rule_of(dataset), lengths_before(dataset)
    powers = {1 << bits for bits in range(31) if own / _SHORTER <= 1 << bits <= own * _LONGER}
    drops = options_of(dataset).over_length == "drop"
    needed = min(lengths) if drops else 1
    fitting = [size for size in sorted(powers | {own}) if replace(rule, max_seq_len=size).longest >= needed]
    return [_at(dataset, lengths, size) for size in fitting]


def _at(dataset: PreparedDataset, lengths: Mapping[int, int], max_seq_len: int) -> ContextLength:
    options = options_of(dataset)
    rule = replace(rule_of(dataset), max_seq_len=max_seq_len)
    kept = fit(lengths, rule.longest, options.over_length)
    plan = dataset.plan if max_seq_len == options.max_seq_len else _planned(dataset, kept, max_seq_len)
    rooms = int(plan.lengths.astype("int64") @ plan.counts)
    return ContextLength(
        max_seq_len=max_seq_len,
        bins=plan.num_bins,
        efficiency=rooms / (plan.num_bins * max_seq_len),
        padded_efficiency=rooms / (plan.num_sequences * max_seq_len),
        sequences_cut=sum(count for length, count in lengths.items() if length > rule.longest),
        tokens_cut=_tokens(lengths) - _tokens(kept),
        plan=plan,
    )


def _planned(dataset: PreparedDataset, lengths: Mapping[int, int], max_seq_len: int) -> PlanIndex:
    options = options_of(dataset)
    limit = options.max_sequences_per_bin
    plans = [
        pack_histogram(
            lengths,
            max_seq_len,
            algorithm=algorithm,
            max_sequences_per_bin=limit,
            align=options.align,
            extra_tokens=options.extra_tokens,
        )
        for algorithm in (("best-fit",) if limit is None else ("best-fit", "balanced"))
    ]
    templates = min(plans, key=lambda plan: plan.num_bins).templates
    return PlanIndex.build(templates, counts_of_templates(templates), max_seq_len)


def _tokens(lengths: Mapping[int, int]) -> int:
    return sum(length * count for length, count in lengths.items())
