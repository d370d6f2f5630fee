"""Advice for a run whose ranks wait for each other: which balance helps, and how much.

Owns the wording. Leaves every figure to `packhorse.analysis`.
"""

from packhorse.analysis.commands.sentences import percent
from packhorse.analysis.waiting import WaitingRow
from packhorse.topology import Balance, Topology

_WORTH_SAYING = 0.001
"""Share of GPU time lost to waiting below which no balance is recommended."""


def advice(row: WaitingRow, topology: Topology) -> str:
    """Returns what a run of this topology can do about waiting; if nothing was measured, that it has too few bins."""
    accumulation = topology.accumulation
    if row.waiting is None:
        bins = accumulation * topology.bins_per_step
        return f"An epoch has fewer bins than one optimizer step of this run, which takes {bins:,}."
    for_fsdp = _advice_at("at every step (FSDP)", row, Balance.MICRO_STEP, at_steps=True)
    if accumulation == 1:
        return f"{for_fsdp} A larger --accumulation reduces it further, because more bins can be exchanged."
    for_ddp = _advice_at(f"once in {accumulation} steps (DDP)", row, Balance.OPTIMIZER_STEP, at_steps=False)
    return f"{for_fsdp} {for_ddp}"


def _advice_at(wait_times: str, row: WaitingRow, balance: Balance, *, at_steps: bool) -> str:
    """Returns the advice for ranks that wait at one kind of step: steps or optimizer steps.

    `wait_times` names the kind in words. `row.waiting` is not None.
    """
    before, after = row.idle(Balance.NONE, at_steps=at_steps), row.idle(balance, at_steps=at_steps)
    assert before is not None
    assert after is not None
    if before < _WORTH_SAYING:
        return f"Where ranks wait {wait_times}, they lose less than 0.1% of GPU time, so no balance is needed."
    return (
        f"Where ranks wait {wait_times}, {percent(before)} of GPU time is lost to waiting; "
        f"--balance {balance.value} leaves {percent(after)}."
    )
