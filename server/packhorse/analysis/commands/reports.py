"""The tables that `inspect` prints of a prepared folder, in their order.

Owns the columns of those that `plan` does not print. Leaves every figure to `packhorse.analysis`, wording to
`sentences`, the other tables to `unpacked_table` and `plan_tables`, and layout to `packhorse.cli.shared.printing`.
"""

from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table

from packhorse.analysis import ContextPlan, DatasetReport, WaitingRow, options_of, price_of
from packhorse.analysis.commands.plan_tables import lost_cells
from packhorse.analysis.commands.sentences import items_word, percent
from packhorse.analysis.commands.unpacked_table import unpacked_table
from packhorse.analysis.commands.waiting_advice import advice
from packhorse.cli.shared.printing import table
from packhorse.epoch import ShuffleQuality
from packhorse.topology import Balance, Topology

_SHOWN_LENGTHS = 12
"""The most lengths of a template that are shown."""
_DONE_TO_LONG = {"error": "truncated", "truncate": "truncated", "split": "split", "drop": "dropped"}
"""Policy for over-long sequences → what it does to them; `error` is shown as if they were truncated."""


def report_tables(report: DatasetReport, num_templates: int) -> Iterator[Table | str]:
    """Yields the tables that `inspect` prints of a prepared folder, each followed by sentences about it."""
    if num_templates:
        yield _templates_table(report, num_templates)
    yield _context_lengths_table(report)
    yield unpacked_table(report.without_packing, report.dataset.manifest.total_capacity)
    if any(each.cap is not None for each in report.dataset.manifest.resources):
        yield "these rows know tokens only: without packing, a row may hold more of a resource than its cap"
    if report.windows:
        yield _windows_table(report.windows)
    own = report.own_waiting
    if report.context_plan is not None:
        yield _tokens_by_ranks_table(report.context_plan)
        yield _context_groups_table(report.context_plan)
    elif report.run is None or own is None:
        yield "waiting: give --world-size and --accumulation to see how much GPU time ranks lose to waiting"
    else:
        yield _waiting_table(report.waiting, report.run)
        yield advice(own, report.run)


def _templates_table(report: DatasetReport, num_templates: int) -> Table:
    """Returns the table of the most used templates; a template of very many lengths is shortened."""
    rows = []
    for template, multiplicity in report.dataset.templates.most_common(num_templates):
        shown = ", ".join(map(str, template[:_SHOWN_LENGTHS]))
        if len(template) > _SHOWN_LENGTHS:
            shown += f", … ({len(template)})"
        share = multiplicity / report.stats.n_bins
        rows.append((f"{multiplicity:,}", f"{share:.2%}", f"{sum(template):,}", shown))
    columns = ("bins", "share", "tokens", "template")
    return table(*columns, rows=rows, left=("template",), title="most used templates")


def _context_lengths_table(report: DatasetReport) -> Table:
    """Returns the table of the dataset's own max_seq_len and others around it."""
    done = _DONE_TO_LONG[options_of(report.dataset).over_length]
    columns = ("max_seq_len", "bins", "packed", "padded", f"{items_word(report)} {done}", "tokens lost")
    rows = (
        (
            f"{choice.max_seq_len:,}",
            f"{choice.bins:,}",
            f"{choice.efficiency:.2%}",
            f"{choice.padded_efficiency:.2%}",
            f"{choice.sequences_cut:,}",
            f"{choice.tokens_cut:,}",
        )
        for choice in report.context_lengths
    )
    return table(*columns, rows=rows, title="context lengths")


def _windows_table(qualities: Sequence[ShuffleQuality]) -> Table:
    """Returns the table of how well locality windows shuffle, and what they read, for each number of them."""
    rows = (
        (
            "global" if each.num_windows == 1 else f"windowed({each.num_windows})",
            f"{each.chi_square:,.2f}",
            f"{each.neighbours:.2f}",
            f"{each.return_epochs:.2f}",
            f"{each.read:.2f}",
            f"{each.read_globally:.2f}",
        )
        for each in qualities
    )
    columns = (
        "shuffle",
        "chi-square",
        "neighbours, by chance = 1",
        "soonest return, epochs",
        "read from disk, all tokens = 1",
        "globally, as much cache",
    )
    return table(*columns, rows=rows, title="locality windows; the cache holds one")


def _tokens_by_ranks_table(plan: ContextPlan) -> Table:
    """Returns the table of tokens by the number of ranks that compute them, with the communication that this takes."""
    tokens, price = sum(each.tokens for each in plan.shared), price_of(plan.bandwidth)
    rows = (
        (
            f"{each.num_ranks:,}",
            f"{each.tokens / tokens:.1%}",
            f"{each.num_received / each.tokens:,.0f}",
            percent(price * each.num_received / each.cost),
        )
        for each in plan.shared
    )
    title = f"sequences by the number of ranks that share them, at {plan.bandwidth:g} GB/s"
    columns = ("ranks", "tokens", "received for each token", "communication, of the work")
    return table(*columns, rows=rows, title=title)


def _context_groups_table(plan: ContextPlan) -> Table:
    """Returns the table of time lost to waiting and communication, by the number of context-parallel groups."""
    rows = (
        (
            f"{context_groups:,}",
            f"{context_groups * plan.rule.max_context_parallel:,}",
            *lost_cells(plan, context_groups),
        )
        for context_groups in plan.waiting
    )
    title = (
        f"time that ranks lose, waiting at every micro-step, balance micro-step, accumulation {plan.accumulation}, at "
        f"{plan.bandwidth:g} GB/s"
    )
    return table("context-parallel groups", "ranks", "waiting", "lost beyond the work", rows=rows, title=title)


def _waiting_table(rows: Iterable[WaitingRow], topology: Topology) -> Table:
    """Returns the table of the share of GPU time that is lost to waiting, with and without balances."""
    waits = ((Balance.NONE, True), (Balance.MICRO_STEP, True), (Balance.NONE, False), (Balance.OPTIMIZER_STEP, False))
    cells = (
        (
            f"{row.max_seq_len:,}",
            f"{row.world_size:,}",
            *(_waiting_cell(row, balance, at_steps=at_steps) for balance, at_steps in waits),
        )
        for row in rows
    )
    columns = ("max_seq_len", "ranks", "every step", "micro-step", f"every {topology.accumulation}", "optimizer-step")
    title = (
        f"GPU time that ranks lose by waiting for each other\nbatch size {topology.batch_size}, accumulation "
        f"{topology.accumulation}, cost_linear {topology.cost_linear:,}"
    )
    return table(*columns, rows=cells, title=title)


def _waiting_cell(row: WaitingRow, balance: Balance, *, at_steps: bool) -> str:
    """Returns the share of GPU time that a row loses; `at_steps`: ranks wait at every step, not at optimizer steps."""
    idle = row.idle(balance, at_steps=at_steps)
    return "too few" if idle is None else percent(idle)
