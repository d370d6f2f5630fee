"""Tables that several commands print of a dataset or a plan, and the advice that follows from them."""

from collections.abc import Iterable, Sequence

from rich.table import Table

from packhorse.analysis import ROWS_PER_BATCH, Unpacked, WaitingRow
from packhorse.epoch import ShuffleQuality
from packhorse.topology import Balance, Topology

_WORTH_SAYING = 0.001
"""Ranks that wait for a smaller share of their time need no advice."""
_MEANINGS = {
    "padded": "one sequence a row, padded",
    "sorted-batches": f"sorted by length, batches of {ROWS_PER_BATCH} padded to their longest",
    "random-order": "rows filled in random order",
    "concatenated": "concatenated and cut into rows",
}


def unpacked_table(ways: Sequence[Unpacked], packed_tokens: int) -> Table:
    """Returns the table.

    Args:
        ways: what to show.
        packed_tokens: tokens that a GPU computes in an epoch with packing, beside which each way is set.
    """
    table = Table("without packing", "rows", "efficiency", "computed tokens, packed = 1", "sequences cut apart")
    for column in table.columns[1:]:
        column.justify = "right"
    for way in ways:
        table.add_row(
            _MEANINGS[way.way],
            f"{way.rows:,}",
            f"{way.efficiency:.2%}",
            f"{way.computed_tokens / packed_tokens:.3f}",
            f"{way.sequences_cut:,}" + (f" ({way.sequences_cut / way.sequences:.1%})" if way.sequences_cut else ""),
        )
    return table


def quality_table(rows: Sequence[ShuffleQuality]) -> Table:
    """Returns the table.

    Args:
        rows: what to show.
    """
    table = Table(
        "shuffle",
        "chi-square",
        "neighbours, by chance = 1",
        "soonest return, epochs",
        "read from disk, all tokens = 1",
        "globally, as much cache",
        title="locality windows; the cache holds one",
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        is_global = row.num_windows == 1
        table.add_row(
            "global" if is_global else f"windowed({row.num_windows})",
            f"{row.chi_square:,.2f}",
            f"{row.neighbours:.2f}",
            f"{row.return_epochs:.2f}",
            f"{row.read:.2f}",
            f"{row.read_globally:.2f}",
        )
    return table


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
