"""What `inspect` says of waiting: the sentence a user acts on."""

import pytest

from packhorse.analysis import WaitingRow
from packhorse.analysis.commands.waiting_advice import advice
from packhorse.epoch.figures.waiting import Waiting
from packhorse.topology import Balance, Topology


def row(*excess: tuple[float, float]) -> WaitingRow:
    found = {
        balance: Waiting(at_steps=at_steps, at_optimizer_steps=once)
        for balance, (at_steps, once) in zip(Balance, excess, strict=True)
    }
    return WaitingRow(max_seq_len=8, world_size=4, waiting=found)


def test_both_ways_to_wait_are_told_with_the_flag_that_helps() -> None:
    said = advice(row((0.5152, 0.0526), (0.0204, 0.05), (0.4, 0.0002)), Topology(world_size=4, accumulation=16))
    assert said == (
        "Where ranks wait at every step (FSDP), 34% of GPU time is lost to waiting; "
        "--balance micro-step leaves 2.0%. "
        "Where ranks wait once in 16 steps (DDP), 5.0% of GPU time is lost to waiting; "
        "--balance optimizer-step leaves 0.02%."
    )


def test_without_accumulation_it_advises_more() -> None:
    said = advice(row((0.5, 0.5), (0.5, 0.5), (0.5, 0.5)), Topology(world_size=4))
    assert "--balance micro-step leaves 33%. A larger --accumulation reduces it further" in said


def test_ranks_that_hardly_wait_need_nothing() -> None:
    said = advice(row((0.0001, 0.0), (0.0, 0.0), (0.0, 0.0)), Topology(world_size=4, accumulation=2))
    assert said.count("so no balance is needed") == 2


def test_too_few_bins_are_said() -> None:
    short = WaitingRow(max_seq_len=8, world_size=4, waiting=None)
    assert "fewer bins than one optimizer step of this run, which takes 24" in advice(
        short, Topology(world_size=4, accumulation=3, batch_size=2)
    )
    assert short.idle(Balance.NONE, at_steps=True) is None


@pytest.mark.parametrize(("excess", "share"), [(0.0, 0.0), (1.0, 0.5), (3.0, 0.75)])
def test_a_step_that_takes_longer_idles_a_share(excess: float, share: float) -> None:
    rows = row((excess, 0.0), (0.0, 0.0), (0.0, 0.0))
    assert rows.idle(Balance.NONE, at_steps=True) == share
