"""Packers compared on the same counts, with each other and with training without packing.

Owns the comparison that `packhorse plan compare` prints. Leaves planning to `packhorse.packing`, and the ways without
packing to `unpacked`.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from packhorse.analysis.counts import fit
from packhorse.analysis.histogram_input import HistogramInput
from packhorse.analysis.unpacked import Unpacked, ways_without_packing
from packhorse.dataset import PlanOptions
from packhorse.epoch import PlanIndex, bin_mates_again
from packhorse.jobs import Progress
from packhorse.packing import (
    DEFAULT_TIME_LIMIT_SECONDS,
    PACKERS,
    PackingPlan,
    PackingStats,
    counts_of_templates,
    pack_histogram,
)


@dataclass(frozen=True, kw_only=True)
class PackerResult:
    """The plan of one packer, in figures."""

    algorithm: str
    """The packer that was asked for."""
    made_by: str
    """The packer that made the plan; it differs from `algorithm` if that is "auto"."""
    bins: int
    """Bins in an epoch."""
    efficiency: float
    """Tokens per token of capacity."""
    gap: float
    """Bins beyond `lower_bound`, as a share of it."""
    lower_bound: int
    """The best lower bound on bins that any of the compared packers proved."""
    seconds: float
    """Time that planning took."""
    cut_off: bool
    """Whether the time limit ended planning early."""
    templates: int
    """Distinct templates."""
    padding_tokens: int
    """Tokens of capacity that stay empty in an epoch."""
    padding_ratio: float
    """Padding as a share of capacity, and so of GPU time, in [0, 1]."""
    bin_mates_again: float
    """Expected share of a sequence's bin-mates that share a bin with it again in the next epoch, in [0, 1]."""
    gpu_hours: float | None = None
    """GPU-hours that the user's training spends on padding; None if its speed is not given."""


@dataclass(frozen=True, kw_only=True)
class PackerComparison:
    """Packers, and ways without packing, on the same sequences."""

    name: str
    """Name of the dataset or histogram."""
    options: PlanOptions
    """The options with which every packer planned."""
    packers: list[PackerResult]
    """Results, the fewest bins first."""
    without_packing: list[Unpacked]
    """The usual ways to train without packing."""

    @property
    def lower_bound(self) -> int:
        """The best proven bound: no packing has fewer bins."""
        return self.packers[0].lower_bound

    def facts(self) -> dict[str, Any]:
        """Returns the comparison as JSON values."""
        return {
            "packers": [asdict(each) for each in self.packers],
            "without_packing": [asdict(way) for way in self.without_packing],
        }


def compare_packers(
    source: HistogramInput,
    options: PlanOptions,
    *,
    algorithms: Sequence[str] = (),
    time_limit_seconds: float = DEFAULT_TIME_LIMIT_SECONDS,
    tokens_per_gpu_second: float | None = None,
    epochs: int = 1,
    progress: Progress | None = None,
) -> PackerComparison:
    """Plans the same counts with several packers.

    Example:
        >>> from collections import Counter
        >>> from packhorse.analysis import options_for
        >>> source = HistogramInput(name="counts", counts=Counter({3: 2, 5: 2}), options=None)
        >>> made = compare_packers(source, options_for(source, max_seq_len=8), algorithms=["best-fit"])
        >>> made.packers[0].bins, made.lower_bound
        (2, 2)

    Args:
        source: the counts to plan. For a prepared folder, the over-length policy of `options` is applied to them again.
        options: from `options_for`.
        algorithms: names of packers; every packer if none is given.
        time_limit_seconds: for each packer that improves its plan step by step.
        tokens_per_gpu_second: speed of the user's training, padding included, for GPU-hours.
        epochs: number of epochs of the user's training.
        progress: shows how many packers are done; None for nothing.
    """
    rule, max_sequences = options.rooms, options.max_sequences_per_bin
    counts = source.counts if source.options is None else fit(source.counts, rule.longest, options.over_length)
    names = algorithms or ("auto", *sorted(PACKERS))
    plans: list[tuple[str, PackingPlan, float]] = []
    for name in names if progress is None else progress.track(names, "planning", len(names), "packers"):
        started = time.perf_counter()
        plan = pack_histogram(
            counts,
            options.max_seq_len,
            algorithm=name,
            max_sequences_per_bin=max_sequences,
            align=options.align,
            extra_tokens=options.extra_tokens,
            time_limit_seconds=time_limit_seconds,
        )
        plans.append((name, plan, time.perf_counter() - started))
    bound = max(plan.lower_bound for _, plan, _ in plans)
    # Tokens of one epoch for each GPU-hour of the whole training.
    tokens_per_gpu_hour = None if tokens_per_gpu_second is None else tokens_per_gpu_second * 3600 / epochs
    results = [_result(name, plan, seconds, bound, tokens_per_gpu_hour) for name, plan, seconds in plans]
    return PackerComparison(
        name=source.name,
        options=options,
        packers=sorted(results, key=lambda result: result.bins),
        without_packing=ways_without_packing(source.counts, rule, options.over_length, max_sequences),
    )


def _result(
    name: str, plan: PackingPlan, seconds: float, bound: int, tokens_per_gpu_hour: float | None
) -> PackerResult:
    """Returns the figures of a plan; `bound` is the best lower bound that any packer proved."""
    stats = PackingStats.from_templates(plan.templates, plan.max_seq_len, proven_bound=plan.lower_bound)
    return PackerResult(
        algorithm=name,
        made_by=plan.algorithm,
        bins=plan.num_bins,
        efficiency=plan.efficiency,
        gap=(plan.num_bins - bound) / bound,
        lower_bound=bound,
        seconds=seconds,
        cut_off=plan.cut_off,
        templates=len(plan.templates),
        padding_tokens=stats.padding_tokens,
        padding_ratio=stats.padding_ratio,
        bin_mates_again=bin_mates_again(
            PlanIndex.build(plan.templates, counts_of_templates(plan.templates), plan.max_seq_len)
        ),
        gpu_hours=None if tokens_per_gpu_hour is None else stats.padding_tokens / tokens_per_gpu_hour,
    )
