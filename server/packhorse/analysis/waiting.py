"""How long ranks wait for each other, for several context lengths and numbers of ranks.

Owns the sweep over world_size. Leaves plans of other context lengths to `context_lengths`, and measuring the waiting to
`packhorse.epoch`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from packhorse.analysis.context_lengths import ContextLength
from packhorse.dataset import PreparedDataset
from packhorse.epoch import (
    MAX_BINS_PER_OPTIMIZER_STEP,
    EpochView,
    GroupedSource,
    PlanIndex,
    Waiting,
    idle_share,
    waiting_of,
    waiting_of_plan,
)
from packhorse.topology import Balance, Topology


@dataclass(frozen=True, kw_only=True)
class WaitingRow:
    """How long ranks wait for each other, for one context length and world size.

    Both are measured: waiting at every step (FSDP), and waiting once in an optimizer step (DDP).
    """

    max_seq_len: int
    """Context length in tokens."""
    world_size: int
    """Number of ranks."""
    waiting: dict[Balance, Waiting] | None
    """Waiting under each balance; None if the epoch has too few bins for one optimizer step."""

    def idle(self, balance: Balance, *, at_steps: bool) -> float | None:
        """Returns the share of GPU time that ranks spend waiting, in [0, 1); None if it was not measured."""
        excess = self.excess(balance, at_steps=at_steps)
        return None if excess is None else idle_share(excess)

    def excess(self, balance: Balance, *, at_steps: bool) -> float | None:
        """Returns the time that waiting adds, as a share of the work (0.5: half as long again), None if unmeasured."""
        if self.waiting is None:
            return None
        measured = self.waiting[balance]
        return measured.at_steps if at_steps else measured.at_optimizer_steps

    def facts(self) -> dict[str, Any]:
        """Returns the row as JSON values: for every balance `excess` ("time_beyond_work_…") and `idle`."""
        return {
            "max_seq_len": self.max_seq_len,
            "world_size": self.world_size,
            "balances": {
                balance.value: {
                    f"{measure}_at_{where}": value(balance, at_steps=where == "steps")
                    for where in ("steps", "optimizer_steps")
                    for measure, value in (("time_beyond_work", self.excess), ("idle_share", self.idle))
                }
                for balance in Balance
            },
        }


def waiting_rows(choices: Iterable[ContextLength], dataset: PreparedDataset, topology: Topology) -> list[WaitingRow]:
    """Measures the waiting of a run for every context length.

    For the dataset's own context length, also measures a quarter of the ranks and four times as many, or as many as
    can be balanced.

    Example:
        >>> from packhorse.analysis import context_lengths
        >>> from packhorse.dataset import open_prepared
        >>> dataset = open_prepared("datasets/corpus")
        >>> rows = waiting_rows(context_lengths(dataset), dataset, Topology(world_size=2))
        >>> [(row.max_seq_len, row.world_size) for row in rows if row.max_seq_len == 8]
        [(8, 1), (8, 2), (8, 8)]

    Args:
        choices: context lengths, each with its plan.
        dataset: the dataset that they belong to.
        topology: the run's shape.

    Raises:
        ValueError: an optimizer step of the run has more bins than can be balanced.
    """
    ranks = topology.world_size
    bins_per_rank = topology.stretches[0].batch_size * topology.accumulation  # of the first optimizer step
    most_ranks = MAX_BINS_PER_OPTIMIZER_STEP // bins_per_rank
    sizes = sorted({max(1, ranks // 4), ranks, max(ranks, min(4 * ranks, most_ranks))})
    return [
        WaitingRow(
            max_seq_len=choice.max_seq_len,
            world_size=size,
            waiting=_measured(dataset, choice.plan, replace(topology, world_size=size)),
        )
        for choice in choices
        for size in (sizes if choice.max_seq_len == dataset.manifest.max_seq_len else [ranks])
    ]


def _measured(dataset: PreparedDataset, plan: PlanIndex, topology: Topology) -> dict[Balance, Waiting] | None:
    """Measures the waiting under a plan; returns None if the epoch has too few bins for an optimizer step.

    Without groups, the plan suffices. With groups, a bin's cost also depends on the members of the groups drawn.
    """
    if dataset.groups is None:
        return waiting_of_plan(plan, topology)
    pool = dataset.pool[: plan.num_sequences]  # by room: a shorter context drops the longest groups
    return waiting_of(GroupedSource(EpochView(plan, pool, seed=0, epoch=0), dataset.groups), topology)
