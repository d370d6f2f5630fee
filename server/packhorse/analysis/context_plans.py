"""Figures of context plans: waiting, tokens that several ranks compute together, and their communication.

A context plan is a plan whose bins are each shared by a context-parallel group of ranks. Owns the model of time: the
cost of computing, as `ContextRule` states it, plus a price for each token whose keys and values a rank receives.
Communication is not overlapped with computing. Leaves laying out bins to `packhorse.topology`, and their balance to
`epoch.figures.waiting`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.analysis.counts import fit
from packhorse.analysis.histogram_input import HistogramInput
from packhorse.dataset import PlanOptions
from packhorse.epoch import EpochView, PlanIndex, arrange
from packhorse.packing import counts_of_templates, pack_context
from packhorse.parameters import parameter
from packhorse.topology import DEFAULT_COST_CAP_PERCENT, Balance, ContextRule

_SAMPLED_BINS = 4096
"""The most bins that are laid out and measured, unless a single optimizer step has more."""

BANDWIDTH = 200.0
"""Default of the GB/s that a rank receives; it is between a 400 Gb/s network card (50 GB/s) and NVLink (450 GB/s)."""

_PRICE_AT_1_GB = 200_000
"""Cost of receiving one token at 1 GB/s, in the units of a sequence's cost.

With hidden size h, a unit of cost is 2 · h operations a layer (the model in which cost_linear is 12 · h). A token's
keys and values are h bytes a layer: 2 tensors · 2 bytes · h / 4, with keys and values for a quarter of the hidden size.
While h bytes arrive at 1 GB/s, a GPU at 400 TFLOP/s computes 400e12 · h / 1e9 operations, which are 200,000 units."""


@dataclass(frozen=True, kw_only=True)
class SharedWork:
    """The work of sequences that are each computed on the same number of ranks."""

    num_ranks: int
    """Number of ranks, k."""
    tokens: int = 0
    """Tokens of the sequences' rooms."""
    cost: int = 0
    """Cost of the sequences, summed over all k ranks."""

    @property
    def num_received(self) -> int:
        """Tokens received, summed over all k ranks: each rank computes 1/k of the tokens and receives the rest."""
        return self.tokens * (self.num_ranks - 1)

    def __add__(self, other: "SharedWork") -> "SharedWork":
        """Adds the work of other sequences on the same number of ranks."""
        return replace(self, tokens=self.tokens + other.tokens, cost=self.cost + other.cost)


@dataclass(frozen=True, kw_only=True)
class ContextPlan:
    """Figures of a plan whose bins are shared by ranks under one rule."""

    rule: ContextRule
    num_bins: int
    """Bins in an epoch."""
    efficiency: float
    """Tokens of rooms per token of capacity."""
    bandwidth: float
    """GB per second at which a rank receives from others; 0 if receiving takes no time."""
    accumulation: int
    """Micro-steps of an optimizer step."""
    shared: list[SharedWork]
    """Work of the bins that were measured, one entry for each number of ranks, ascending."""
    waiting: dict[int, float | None]
    """Number of context-parallel groups → time that ranks wait at micro-steps, as a share of the time of computing and
    communication; None if the epoch has too few bins for an optimizer step."""

    @property
    def parallel_share(self) -> float:
        """Share of tokens that are computed on more than one rank."""
        return sum(each.tokens for each in self.shared if each.num_ranks > 1) / sum(each.tokens for each in self.shared)

    @property
    def communication(self) -> float:
        """Time of communication as a share of the time of computing."""
        received = sum(each.num_received for each in self.shared)
        return price_of(self.bandwidth) * received / sum(each.cost for each in self.shared)

    def lost(self, context_groups: int) -> float | None:
        """Returns the time of communication and waiting, as a share of the time of computing."""
        waiting = self.waiting[context_groups]
        return None if waiting is None else (1 + waiting) * (1 + self.communication) - 1

    def facts(self) -> dict[str, object]:
        """Returns everything as JSON values."""
        return {
            **asdict(self.rule),
            "num_bins": self.num_bins,
            "efficiency": self.efficiency,
            "parallel_share": self.parallel_share,
            "bandwidth": self.bandwidth,
            "communication": self.communication,
            "accumulation": self.accumulation,
            "shared": [asdict(each) | {"num_received": each.num_received} for each in self.shared],
            "context_groups": [
                {"number": number, "waiting": waiting, "time_lost": self.lost(number)}
                for number, waiting in self.waiting.items()
            ],
        }


def price_of(bandwidth: float) -> float:
    """Returns the price of receiving one token's keys and values, in the units of a sequence's cost.

    Example:
        >>> price_of(200)
        1000.0

    Args:
        bandwidth: GB per second at which a rank receives from others; 0 if receiving takes no time.
    """
    return _PRICE_AT_1_GB / bandwidth if bandwidth else 0.0


def context_plan(
    plan: PlanIndex, rule: ContextRule, *, context_groups: Iterable[int], accumulation: int = 1, bandwidth: float = 0.0
) -> ContextPlan:
    """Measures a plan on the first optimizer steps of an epoch, under balance "micro-step".

    Example:
        >>> plan, rule = PlanIndex.build({(8,): 2, (4, 4): 2}, {4: 4, 8: 2}, 8), ContextRule(4, 2, cost_linear=8)
        >>> measured = context_plan(plan, rule, context_groups=[1, 2], accumulation=2)
        >>> [(each.num_ranks, each.tokens) for each in measured.shared], measured.waiting
        ([(1, 16), (2, 16)], {1: 0.0, 2: 0.0})

    Args:
        plan: the plan of a dataset with this rule.
        rule: how ranks share a bin.
        context_groups: numbers of context-parallel groups, each of `max_context_parallel` ranks, to measure for.
        accumulation: micro-steps of an optimizer step.
        bandwidth: as in `price_of`.
    """
    step_bins = {number: number * accumulation for number in context_groups}  # bins of an optimizer step
    num_sampled = min(plan.num_bins, max(_SAMPLED_BINS, *step_bins.values()))
    no_ids = np.broadcast_to(np.uint32(0), plan.num_sequences)
    bins = EpochView(plan, no_ids, seed=0, epoch=0).bins(np.arange(num_sampled))
    templates = [tuple(rooms.tolist()) for rooms in np.split(bins.lengths, bins.bin_ends[:-1])]
    parts = {template: _parts(template, rule) for template in set(templates)}
    shared: dict[int, SharedWork] = {}
    for template in templates:
        for part in parts[template]:
            shared[part.num_ranks] = shared.get(part.num_ranks, SharedWork(num_ranks=part.num_ranks)) + part
    price = price_of(bandwidth)
    times = {template: _bin_times(parts[template], rule, price) for template in parts}
    times_of_bins = np.array([times[template] for template in templates])
    return ContextPlan(
        rule=rule,
        num_bins=plan.num_bins,
        efficiency=float(plan.lengths.astype(np.int64) @ plan.counts) / (plan.num_bins * rule.max_seq_len),
        bandwidth=bandwidth,
        accumulation=accumulation,
        shared=[shared[ranks] for ranks in sorted(shared)],
        waiting={
            number: _waiting(times_of_bins[: num_sampled // per_step * per_step], number, accumulation)
            for number, per_step in step_bins.items()
        },
    )


def compare_context_plans(
    source: HistogramInput,
    options: PlanOptions,
    *,
    tokens_per_rank: Iterable[int] = (),
    cost_cap_percent: Iterable[int] = (110, DEFAULT_COST_CAP_PERCENT),
    world_size: int = 64,
    bins_per_optimizer_step: int = 32,
    bandwidth: float = BANDWIDTH,
) -> list[ContextPlan]:
    """Plans the same counts with several rules, for the same number of ranks and of bins in an optimizer step.

    Example:
        >>> from collections import Counter
        >>> source = HistogramInput(name="counts", counts=Counter({3: 200, 8: 40}), options=None)
        >>> options = PlanOptions(max_seq_len=16)
        >>> plans = compare_context_plans(source, options, cost_cap_percent=[300], world_size=4)
        >>> [(plan.rule.tokens_per_rank, plan.rule.max_context_parallel) for plan in plans]
        [(8, 2), (4, 4)]

    Args:
        source: the counts to plan.
        options: from `options_for`; its own tokens_per_rank and cost_cap_percent are ignored.
        tokens_per_rank: values to compare; by default max_seq_len / 2, / 4, …, each for which `world_size` is a
            multiple of the ranks that share a bin.
        cost_cap_percent: values to compare.
        world_size: number of ranks, a multiple of the ranks that share a bin.
        bins_per_optimizer_step: bins that all ranks together take in an optimizer step.
        bandwidth: as in `price_of`.

    Raises:
        ValueError: a value makes no rule, or world_size is not a multiple of the ranks that share a bin under it.
    """
    room_rule, max_seq_len = options.rooms, options.max_seq_len
    counts = source.counts
    if source.options is not None:  # a prepared folder's lengths before its over-length policy; a histogram is as given
        counts = fit(counts, room_rule.longest, options.over_length)
    rooms: Counter[int] = Counter()
    for length, count in counts.items():
        rooms[room_rule.room(length)] += count
    compared = list(tokens_per_rank)
    if not compared:
        powers = (1 << bits for bits in range(1, 31))
        compared = [max_seq_len // ranks for ranks in powers if max_seq_len % ranks == 0 and world_size % ranks == 0]
    if not compared:
        raise ValueError(
            parameter("max_seq_len")
            + f" {max_seq_len} and "
            + parameter("world_size")
            + f" {world_size} are not both even, so no two ranks can share a bin; choose others"
        )
    plans = []
    for tokens, cap in product(compared, cost_cap_percent):
        rule = replace(options, tokens_per_rank=tokens, cost_cap_percent=cap).context
        assert rule is not None
        context_groups, rest = divmod(world_size, rule.max_context_parallel)
        if rest:
            raise ValueError(
                parameter("world_size")
                + f" {world_size} is not a multiple of the {rule.max_context_parallel} ranks of a bin"
            )
        templates = pack_context(rooms, rule).templates
        plan = PlanIndex.build(templates, counts_of_templates(templates), rule.max_seq_len)
        accumulation = max(1, bins_per_optimizer_step // context_groups)
        plans.append(
            context_plan(plan, rule, context_groups=[context_groups], accumulation=accumulation, bandwidth=bandwidth)
        )
    return plans


def _parts(template: Sequence[int], rule: ContextRule) -> list[SharedWork]:
    """Returns the work of each part of a bin; `template` has the rooms of the bin's sequences."""
    parts = ((part.num_ranks, [template[index] for index in part.indices]) for part in rule.lay_out(template))
    return [SharedWork(num_ranks=ranks, tokens=sum(rooms), cost=sum(map(rule.cost, rooms))) for ranks, rooms in parts]


class _BinTimes(NamedTuple):
    """How long the ranks that share a bin take, in units of cost."""

    cost: float
    """Cost of the bin, without communication."""
    mean_rank: float
    """Time of the mean rank."""
    slowest_rank: float
    """Time of the slowest rank."""


def _bin_times(parts: Sequence[SharedWork], rule: ContextRule, price: float) -> _BinTimes:
    """Returns how long the ranks of a bin take; `price` is that of `price_of`."""
    times = [each.cost + price * each.num_received for each in parts]  # summed over the ranks of each part
    slowest = max(time / each.num_ranks for time, each in zip(times, parts, strict=True))
    return _BinTimes(float(sum(each.cost for each in parts)), sum(times) / rule.max_context_parallel, slowest)


def _waiting(times_of_bins: NDArray[np.float64], context_groups: int, accumulation: int) -> float | None:
    """Returns the time that ranks wait at micro-steps, as a share of their own time; None if there are no bins.

    `times_of_bins` has the `_BinTimes` of each bin: float64 [n, 3]. n is a multiple of the bins in an optimizer step.
    """
    if not len(times_of_bins):
        return None
    costs, means, slowest = (column.reshape(-1, accumulation * context_groups) for column in times_of_bins.T)
    keys = np.arange(len(costs), dtype=np.uint64)
    order = arrange(costs.astype(np.int64), Balance.MICRO_STEP, accumulation, context_groups, keys)
    # `arrange` gives indices of bins [n, A, D, 1] for n optimizer steps of A micro-steps on D context-parallel groups.
    of_micro_steps = np.take_along_axis(slowest, order.reshape(costs.shape), axis=1).reshape(-1, context_groups)
    return float(of_micro_steps.max(axis=1).sum() * context_groups / means.sum() - 1)
