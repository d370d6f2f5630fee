"""A dataset planned for other context lengths: bins, and padding.

Owns the sweep over max_seq_len. Every max_seq_len is planned again, except the dataset's own, which has its prepared
plan. Leaves how long ranks wait for each other to `waiting`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from packhorse.analysis.counts import fit, lengths_before, options_of, rule_of
from packhorse.dataset import PreparedDataset
from packhorse.epoch import PlanIndex
from packhorse.packing import counts_of_templates, pack_histogram

_SHORTER, _LONGER = 16, 4
"""The sweep is over the powers of two from max_seq_len / _SHORTER to max_seq_len · _LONGER."""


@dataclass(frozen=True, kw_only=True)
class ContextLength:
    """A dataset planned for one context length, in figures."""

    max_seq_len: int
    """The context length, in tokens."""
    bins: int
    """Bins in an epoch."""
    efficiency: float
    """Tokens per token of capacity, packed; `extra_tokens` and alignment count as tokens."""
    padded_efficiency: float
    """The same if each row holds one padded sequence."""
    sequences_cut: int
    """Sequences that are too long, and so are truncated, split or dropped by the dataset's over-length policy; in a
    dataset whose plan packs groups, the groups that are too long. What the dataset itself left out counts up to its own
    context length."""
    tokens_cut: int
    """Tokens that are left out of them."""
    plan: PlanIndex
    """The plan for this context length."""

    def facts(self) -> dict[str, Any]:
        """Returns everything but the plan, for JSON."""
        return {name: value for name, value in vars(self).items() if name != "plan"}


def context_lengths(dataset: PreparedDataset) -> list[ContextLength]:
    """Plans a dataset's sequences for the powers of two around its own max_seq_len, which keeps its prepared plan.

    Sequences that are too long are treated by the dataset's over-length policy; if that is "error", they are truncated.
    A group that is too long is dropped as a whole. One that the dataset itself left out is not planned for longer
    context lengths either, because a folder does not store which sequences
    that it left out were one group. The packer is best-fit; if the number of
    sequences in a bin is limited, it is the better of best-fit and balanced.

    Returns:
        One for each context length into which any sequence fits, ascending, the dataset's own among them; only that
        one if the dataset has resources.

    Example:
        >>> from packhorse.dataset import open_prepared
        >>> [(each.max_seq_len, each.bins) for each in context_lengths(open_prepared("datasets/corpus"))]
        [(1, 4), (2, 4), (4, 4), (8, 2), (16, 1), (32, 1)]
    """
    manifest, rule, lengths = dataset.manifest, rule_of(dataset), lengths_before(dataset)
    own_max_seq_len = manifest.max_seq_len
    if manifest.resources:  # `lengths` lacks how much of them each sequence needs, so nothing else can be planned
        return [_figures_at(dataset, lengths, own_max_seq_len)]
    shortest, longest = own_max_seq_len / _SHORTER, own_max_seq_len * _LONGER
    powers = {1 << bits for bits in range(31) if shortest <= 1 << bits <= longest}
    drops = options_of(dataset).over_length == "drop"
    needed = min(lengths) if drops else 1  # the length that must fit a bin, so that something is left to plan
    sizes = [size for size in sorted(powers | {own_max_seq_len}) if replace(rule, max_seq_len=size).longest >= needed]
    return [_figures_at(dataset, lengths, size) for size in sizes]


def _figures_at(dataset: PreparedDataset, lengths: Mapping[int, int], max_seq_len: int) -> ContextLength:
    """Returns the figures for one context length; `lengths` are those before the over-length policy."""
    options = options_of(dataset)
    rule = replace(rule_of(dataset), max_seq_len=max_seq_len)
    kept = fit(lengths, rule.longest, options.over_length)
    if max_seq_len == options.max_seq_len:
        # The prepared plan. With resources its rooms are rounded up, so the manifest has the sum.
        plan, tokens = dataset.plan, dataset.manifest.total_tokens
    else:
        plan = _planned(dataset, kept, max_seq_len)
        tokens = int(plan.rooms.astype("int64") @ plan.counts)
    num_cut = sum(count for length, count in lengths.items() if length > rule.longest)
    tokens_cut = _tokens(lengths) - _tokens(kept)
    if dataset.manifest.groups is not None and max_seq_len <= options.max_seq_len:
        # `lengths` lacks the groups that preparing left out, which are too long for shorter bins as well.
        num_cut += dataset.manifest.groups.num_dropped
        tokens_cut += dataset.manifest.over_length.tokens
    return ContextLength(
        max_seq_len=max_seq_len,
        bins=plan.num_bins,
        efficiency=tokens / (plan.num_bins * max_seq_len),
        padded_efficiency=tokens / (plan.num_sequences * max_seq_len),
        sequences_cut=num_cut,
        tokens_cut=tokens_cut,
        plan=plan,
    )


def _planned(dataset: PreparedDataset, lengths: Mapping[int, int], max_seq_len: int) -> PlanIndex:
    """Plans lengths that all fit; takes the plan with the fewest bins if there are two."""
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
    """Returns the tokens of all sequences together."""
    return sum(length * count for length, count in lengths.items())
