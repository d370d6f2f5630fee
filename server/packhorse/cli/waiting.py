"""How much GPU time passes in waiting, by context length and number of ranks, and what to do about it.

Owns the sweep, the sentence of advice and the table. Leaves measuring to `epoch.assignment.waiting` and the picture to
`dataset_plot`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table

from packhorse.cli.context_lengths import ContextLength
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

_WORTH_SAYING = 0.001
"""Ranks that wait for a smaller share of their time need no advice."""


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


def advice(row: WaitingRow, topology: Topology) -> str:
    """Returns what to do, in plain sentences.

    Args:
        row: of the run itself.
        topology: its shape.
    """
    if row.waiting is None:
        window = topology.accumulation * topology.bins_per_step
        return f"An epoch has fewer bins than one optimizer step of this run, which takes {window:,}."
    at_steps = _sentence("at every step (FSDP)", row, Balance.MICRO_STEP, at_steps=True)
    accumulation = topology.accumulation
    if accumulation == 1:
        return f"{at_steps} A larger --accumulation leaves less: more bins can be exchanged."
    where = f"once in {accumulation} steps (DDP)"
    return at_steps + " " + _sentence(where, row, Balance.OPTIMIZER_STEP, at_steps=False)


def _sentence(where: str, row: WaitingRow, balance: Balance, *, at_steps: bool) -> str:
    before, after = row.idle(Balance.NONE, at_steps=at_steps), row.idle(balance, at_steps=at_steps)
    assert before is not None
    assert after is not None
    if before < _WORTH_SAYING:
        return f"Where ranks wait {where}, they lose less than 0.1 % of GPU time: there is nothing to do."
    return (
        f"Where ranks wait {where}, {_percent(before)} of GPU time passes in waiting; "
        f"--balance {balance.value} leaves {_percent(after)}."
    )


def waiting_table(rows: Iterable[WaitingRow], topology: Topology) -> Table:
    """Returns the table: for every row the idle share, and beside it how long a step takes, 1 without waiting."""
    table = Table(
        "max_seq_len",
        "ranks",
        "waiting at every step",
        "micro-step",
        f"once in {topology.accumulation}",
        "optimizer-step",
        title=f"GPU time lost to waiting (step time, 1 without), batch size {topology.batch_size}, accumulation "
        f"{topology.accumulation}, cost_linear {topology.cost_linear:,}",
    )
    for column in table.columns:
        column.justify = "right"
    cells = ((Balance.NONE, True), (Balance.MICRO_STEP, True), (Balance.NONE, False), (Balance.OPTIMIZER_STEP, False))
    for row in rows:
        shown = [_cell(row, balance, at_steps=at_steps) for balance, at_steps in cells]
        table.add_row(f"{row.max_seq_len:,}", f"{row.world_size:,}", *shown)
    return table


def _cell(row: WaitingRow, balance: Balance, *, at_steps: bool) -> str:
    idle, excess = row.idle(balance, at_steps=at_steps), row.excess(balance, at_steps=at_steps)
    return "too few bins" if idle is None or excess is None else f"{_percent(idle)} ({1 + excess:.3f}×)"


def _percent(share: float) -> str:
    """0.345 → "34 %"; one digit more below ten, two below one."""
    percent = 100 * share
    if percent < 0.01:
        return "< 0.01 %"
    return f"{percent:.{0 if percent >= 10 else 1 if percent >= 1 else 2}f} %"
