"""The tables that `plan` prints: of packers, and of context plans, which say how ranks share bins.

Owns their columns. Leaves every figure to `packhorse.analysis`, the table of ways without packing to `unpacked_table`,
and the tables that only `inspect` prints to `reports`.
"""

from collections.abc import Sequence

from rich.table import Table

from packhorse.analysis import ContextPlan, PackerComparison
from packhorse.analysis.commands.sentences import percent
from packhorse.cli.shared.printing import table


def packers_table(compared: PackerComparison) -> Table:
    """Returns the table of packers; a star marks a plan that the time limit cut off."""
    rows = (
        (
            result.algorithm
            + (f" ({result.made_by})" if result.made_by != result.algorithm else "")
            + (" *" if result.cut_off else ""),
            f"{result.bins:,}",
            f"{result.efficiency:.3%}",
            f"{result.gap:.4%}",
            f"{result.seconds:.3f}",
            f"{result.padding_tokens:,}",
            f"{result.padding_ratio:.3%}",
            f"{result.bin_mates_again:.1%}",
            *(() if result.gpu_hours is None else (f"{result.gpu_hours:,.1f}",)),
        )
        for result in compared.packers
    )
    columns = ("packer", "bins", "efficiency", "gap", "seconds", "padding tokens", "GPU time on padding")
    hours = () if compared.packers[0].gpu_hours is None else ("GPU-hours on padding in your run",)
    title = f"{compared.name}, max_seq_len {compared.options.max_seq_len:,}: at least {compared.lower_bound:,} bins"
    return table(*columns, "bin-mates met again", *hours, rows=rows, title=f"{title} (proven)")


def context_plans_table(plans: Sequence[ContextPlan], name: str) -> Table:
    """Returns the table of context plans for the same counts, each measured for one number of context-parallel groups.

    It has one row for each rule, in the order given.
    """
    rows = (
        (
            f"{plan.rule.tokens_per_rank:,}",
            f"{plan.rule.max_context_parallel:,}",
            f"{plan.rule.cost_cap_percent} %",
            f"{plan.num_bins:,}",
            f"{plan.efficiency:.1%}",
            f"{plan.parallel_share:.1%}",
            percent(plan.communication),
            *(cell for context_groups in plan.waiting for cell in lost_cells(plan, context_groups)),
        )
        for plan in plans
    )
    columns = ("tokens a rank", "ranks of a bin", "cost cap", "bins", "efficiency", "tokens on several ranks")
    more = ("communication", "waiting", "lost beyond the work")
    title = f"{name}, max_seq_len {plans[0].rule.max_seq_len:,}, at {plans[0].bandwidth:g} GB/s"
    return table(*columns, *more, rows=rows, title=title)


def lost_cells(plan: ContextPlan, context_groups: int) -> tuple[str, str]:
    """Returns two cells: the share of time lost to waiting, and the share lost to waiting and communication together.

    The first is of the time of computing and communication, the second of the time of computing alone. If an epoch has
    too few bins for an optimizer step, the cells say so instead.
    """
    waiting, lost = plan.waiting[context_groups], plan.lost(context_groups)
    return ("too few bins", "") if waiting is None or lost is None else (percent(waiting), percent(lost))
