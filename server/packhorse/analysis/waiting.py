"""How much GPU time passes in waiting, by context length and number of ranks.

Owns the sweep. Leaves measuring to `epoch.balance`, and the table and the advice to `cli/shared/tables`.
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
    """What waiting costs one shape of a run."""

    max_seq_len: int
    """Context length in tokens."""
    world_size: int
    """Ranks."""
    waiting: dict[Balance, Waiting] | None
    """By balance; None where the epoch has too few bins for one optimizer step."""

    def idle(self, balance: Balance, *, at_steps: bool) -> float | None:
        """Returns the share of GPU time that passes in waiting, in [0, 1); None where nothing was measured."""
        excess = self.excess(balance, at_steps=at_steps)
        return None if excess is None else idle_share(excess)

    def excess(self, balance: Balance, *, at_steps: bool) -> float | None:
        """Returns how much longer a step takes than without waiting: 0.5 is half as long again; None likewise."""
        if self.waiting is None:
            return None
        found = self.waiting[balance]
        return found.at_steps if at_steps else found.at_optimizer_steps

    def facts(self) -> dict[str, Any]:
        """Returns the row for JSON: both measures of both waits, under every balance."""
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
    """Measures a run in every context length, and in its own with a quarter of its ranks and with four times as many.

    Args:
        choices: context lengths, each with its plan.
        dataset: whose they are.
        topology: the run's shape.

    Raises:
        ValueError: an optimizer step of the run has more bins than can be balanced.
    """
    ranks = topology.world_size
    most = MAX_BINS_PER_OPTIMIZER_STEP // (topology.stretches[0].batch_size * topology.accumulation)
    sizes = sorted({max(1, ranks // 4), ranks, max(ranks, min(4 * ranks, most))})
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
    """Measures a plan; of groups, what its bins cost depends on which sequences are in them."""
    if dataset.groups is None:
        return waiting_of_plan(plan, topology)
    pool = dataset.pool[: plan.num_sequences]  # by room: a shorter context drops the longest groups
    return waiting_of(GroupedSource(EpochView(plan, pool, seed=0, epoch=0), dataset.groups), topology)
