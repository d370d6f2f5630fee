"""What commands say of a dataset or a plan: tables, sentences, and the advice that follows from them.

Owns the columns and the wording. Leaves every figure to `packhorse.analysis`, and layout to `printing`.
"""

from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table

from packhorse.analysis import (
    ROWS_PER_BATCH,
    ContextPlan,
    DatasetReport,
    PackerComparison,
    Unpacked,
    WaitingRow,
    options_of,
    price_of,
    rule_of,
)
from packhorse.cli.shared.printing import skipped_text, table
from packhorse.dataset import GroupRecord, Inputs, KeyRecord, Manifest, Version, versions_of
from packhorse.epoch import ShuffleQuality
from packhorse.topology import Balance, Topology

CUT_OFF = (
    "the time limit ended planning early. Preparing again may give another plan, whose digest refuses cursors of "
    "this one. For the same plan every time, use --algorithm best-fit or a larger --time-limit-seconds."
)
_WORTH_SAYING = 0.001
"""Ranks that wait for a smaller share of their time need no advice."""


def report_lines(report: DatasetReport) -> Iterator[str]:
    """Yields the sentences that `inspect` prints of a prepared folder."""
    manifest, dataset = report.dataset.manifest, report.dataset
    yield f"{dataset.name}  {manifest.digest}"
    yield repr(report.stats)
    if real := real_tokens(manifest):
        yield f"real tokens: {real}"
    lengths = dataset.plan.rooms
    measured = "rooms of groups" if dataset.has_groups else "lengths" if rule_of(dataset).is_plain else "rooms"
    quantiles = ", ".join(f"p{round(100 * q)} {length:,}" for q, length in report.quantiles.items())
    yield (
        f"{measured}: {lengths[0]:,} to {lengths[-1]:,} tokens, mean {report.mean_room:,.1f}, {quantiles}; "
        f"{manifest.distinct_lengths:,} {'classes of sizes' if manifest.resources else 'distinct'}"
    )
    yield (
        f"plan: {manifest.algorithm}, {manifest.distinct_templates:,} templates, at most "
        f"{dataset.max_sequences_per_bin:,} sequences in a bin"
    )
    if (rule := manifest.options.context) is not None:
        yield f"shared bins: {rule}"
    yield (
        f"bin-mates: {report.bin_mates_again:.1%} of the {items_of(report)} that share a bin share one again in the "
        f"next epoch"
    )
    yield from _origin_lines(manifest)
    if manifest.plan_cut_off:
        yield f"cut off: {CUT_OFF}"
    if manifest.version > 1:
        yield from map(version_line, versions_of(dataset.path))
    if (ledger := manifest.over_length).sequences:
        pieces = f", {ledger.pieces:,} pieces" if ledger.pieces else ""
        over_cap = f", {ledger.over_cap:,} of them only over a cap" if ledger.over_cap else ""
        yield (
            f"over-length ({manifest.options.over_length}): {ledger.sequences:,} sequences{over_cap}, "
            f"{ledger.tokens:,} tokens left out{pieces}"
        )


def _origin_lines(manifest: Manifest) -> Iterator[str]:
    """Yields where sequences, ids and keys are from."""
    if manifest.groups is not None and manifest.is_grouped:
        yield groups_line(manifest.groups, manifest.n_sequences)
    yield from resource_lines(manifest)
    origin = "row numbers" if manifest.id_column is None else f"column {manifest.id_column!r}"
    yield f"ids: {manifest.id_dtype}, {origin} of {manifest.source}"
    if manifest.keys is not None:
        yield f"keys: {keys_text(manifest.keys)}"
    if manifest.inputs is not None:
        yield f"read: {_read_text(manifest.inputs)}"
        if skipped := manifest.inputs.skipped.rows:
            by_reason = manifest.inputs.skipped.by_reason
            yield f"skipped: {skipped_text(skipped, by_reason)}; manifest.json or skipped.jsonl names them"


def _read_text(inputs: Inputs) -> str:
    column = "" if inputs.length_column is None else f", column {inputs.length_column!r}"
    size_bytes = sum(file.size_bytes for file in inputs.files)
    if not inputs.num_files:  # a shard, or what was held in memory
        files = ""
    elif inputs.num_files <= len(inputs.files):
        files = f", {inputs.num_files:,} file{'s' * (inputs.num_files != 1)} of {size_bytes:,} bytes"
    else:
        files = f", {inputs.num_files:,} files, the first {len(inputs.files)} of {size_bytes:,} bytes"
    return f"{inputs.kind}{column}, {inputs.rows:,} rows{files}"


def items_of(report: DatasetReport) -> str:
    """Returns what the plan of a dataset is over: sequences, or groups."""
    return "groups" if report.dataset.has_groups else "sequences"


def advice(row: WaitingRow, topology: Topology) -> str:
    """Returns what a run of this topology can do about waiting, in plain sentences."""
    accumulation = topology.accumulation
    if row.waiting is None:
        bins = accumulation * topology.bins_per_step
        return f"An epoch has fewer bins than one optimizer step of this run, which takes {bins:,}."
    at_steps = _advice_where("at every step (FSDP)", row, Balance.MICRO_STEP, at_steps=True)
    if accumulation == 1:
        return f"{at_steps} A larger --accumulation reduces it further, because more bins can be exchanged."
    once = _advice_where(f"once in {accumulation} steps (DDP)", row, Balance.OPTIMIZER_STEP, at_steps=False)
    return f"{at_steps} {once}"


def _advice_where(where: str, row: WaitingRow, balance: Balance, *, at_steps: bool) -> str:
    before, after = row.idle(Balance.NONE, at_steps=at_steps), row.idle(balance, at_steps=at_steps)
    assert before is not None
    assert after is not None
    if before < _WORTH_SAYING:
        return f"Where ranks wait {where}, they lose less than 0.1 % of GPU time, so no balance is needed."
    return (
        f"Where ranks wait {where}, {percent(before)} of GPU time is lost to waiting; "
        f"--balance {balance.value} leaves {percent(after)}."
    )


def groups_line(groups: GroupRecord, num_sequences: int) -> str:
    """Returns how sequences were grouped, in one line.

    Example:
        >>> record = GroupRecord(
        ...     by="every 2 rows", n_groups=5, n_dropped=1, most_sequences=2, max_sequences_per_bin=8, ids_ascend=True
        ... )
        >>> groups_line(record, 10)
        'groups: 5 by every 2 rows, 1 left out, of 10 sequences; at most 2 in a group and 8 in a bin'
    """
    left_out = f", {groups.n_dropped:,} left out" if groups.n_dropped else ""
    return (
        f"groups: {groups.n_groups:,} by {groups.by}{left_out}, of {num_sequences:,} sequences; at most "
        f"{groups.most_sequences:,} in a group and {groups.max_sequences_per_bin:,} in a bin"
    )


def resource_lines(manifest: Manifest) -> Iterator[str]:
    """Yields, for each resource, how much of it there is, and how full bins are of it."""
    for each in manifest.resources:
        item = "group" if manifest.is_grouped else "sequence"
        full = f"; bins are {each.total / (each.cap * manifest.n_bins):.2%} full of {each.cap:,}" if each.cap else ""
        yield f"{each.name}: {each.total:,} of column {each.column!r}, at most {each.most:,} a {item}{full}"


def keys_text(keys: KeyRecord) -> str:
    """Returns how many keys there are, and where they are from."""
    return f"{keys.n_keys:,} of column {keys.column!r}, {keys.n_bytes:,} bytes"


def real_tokens(manifest: Manifest) -> str:
    """Returns a plan's efficiency without the tokens that rooms add; empty where they add none."""
    if manifest.own_tokens == manifest.total_tokens:
        return ""
    return (
        f"{manifest.own_tokens / manifest.total_capacity:.2%} of capacity; the efficiency above also counts "
        f"{manifest.total_tokens - manifest.own_tokens:,} tokens of --extra-tokens and --align"
    )


def version_line(version: Version) -> str:
    """Returns a version of a dataset in one line."""
    manifest = version.manifest
    current = " (current)" if version.is_current else ""
    return (
        f"version {version.number}{current}: {manifest.n_sequences:,} sequences in {manifest.n_bins:,} bins, digest "
        f"{manifest.digest}, in {version.path}"
    )


def percent(share: float) -> str:
    """Returns a share as a sentence has it, with one digit more below ten percent and two below one.

    Example:
        >>> percent(0.345), percent(0.0204), percent(0.00001)
        ('34 %', '2.0 %', '< 0.01 %')
    """
    value = 100 * share
    if value < 0.01:
        return "< 0.01 %"
    return f"{value:.{0 if value >= 10 else 1 if value >= 1 else 2}f} %"


_MEANINGS = {
    "padded": "one sequence a row, padded",
    "sorted-batches": f"sorted by length, batches of {ROWS_PER_BATCH} padded to their longest",
    "random-order": "rows filled in random order",
    "concatenated": "concatenated and cut into rows",
}
_DONE_TO_LONG = {"error": "truncated", "truncate": "truncated", "split": "split", "drop": "dropped"}


def report_tables(report: DatasetReport, num_templates: int) -> Iterator[Table | str]:
    """Yields the tables that `inspect` prints of a prepared folder, and the advice after them."""
    if num_templates:
        yield _templates_table(report, num_templates)
    yield _context_lengths_table(report)
    yield unpacked_table(report.without_packing, report.dataset.manifest.total_capacity)
    if any(each.cap is not None for each in report.dataset.manifest.resources):
        yield "these rows know tokens only: without packing, a row may hold more of a resource than its cap"
    if report.windows:
        yield quality_table(report.windows)
    own = report.own_waiting
    if report.context_plan is not None:
        yield shared_table(report.context_plan)
        yield groups_table(report.context_plan)
    elif report.run is None or own is None:
        yield "waiting: give --world-size and --accumulation to see how much GPU time ranks lose to waiting"
    else:
        yield waiting_table(report.waiting, report.run)
        yield advice(own, report.run)


def _templates_table(report: DatasetReport, num_templates: int) -> Table:
    rows = []
    for template, multiplicity in report.dataset.templates.most_common(num_templates):
        shown = ", ".join(map(str, template[:12])) + (f", … ({len(template)})" if len(template) > 12 else "")
        share = multiplicity / report.stats.n_bins
        rows.append((f"{multiplicity:,}", f"{share:.2%}", f"{sum(template):,}", shown))
    columns = ("bins", "share", "tokens", "template")
    return table(*columns, rows=rows, left=("template",), title="most used templates")


def _context_lengths_table(report: DatasetReport) -> Table:
    done = _DONE_TO_LONG[options_of(report.dataset).over_length]
    columns = ("max_seq_len", "bins", "packed", "padded", f"{items_of(report)} {done}", "tokens lost")
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


def unpacked_table(ways: Sequence[Unpacked], packed_tokens: int) -> Table:
    """Returns the table of ways without packing, compared with the tokens that a GPU computes with packing."""
    rows = (
        (
            _MEANINGS[way.way],
            f"{way.rows:,}",
            f"{way.efficiency:.2%}",
            f"{way.computed_tokens / packed_tokens:.3f}",
            f"{way.sequences_cut:,}" + (f" ({way.sequences_cut / way.sequences:.1%})" if way.sequences_cut else ""),
        )
        for way in ways
    )
    columns = ("without packing", "rows", "efficiency", "computed tokens, packed = 1", "sequences cut apart")
    return table(*columns, rows=rows)


def packers_table(compared: PackerComparison) -> Table:
    """Returns the table of packers; a star marks a plan that the time limit cut off."""
    with_hours = compared.packers[0].gpu_hours is not None
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
    hours = ("GPU-hours on padding in your run",) if with_hours else ()
    title = f"{compared.name}, max_seq_len {compared.options.max_seq_len:,}: at least {compared.lower_bound:,} bins"
    return table(*columns, "bin-mates met again", *hours, rows=rows, title=f"{title} (proven)")


def quality_table(qualities: Sequence[ShuffleQuality]) -> Table:
    """Returns the table of locality windows."""
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
    columns = ("chi-square", "neighbours, by chance = 1", "soonest return, epochs", "read from disk, all tokens = 1")
    title = "locality windows; the cache holds one"
    return table("shuffle", *columns, "globally, as much cache", rows=rows, title=title)


def shared_table(plan: ContextPlan) -> Table:
    """Returns the table of what is computed on how many ranks, and what it costs to communicate."""
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


def groups_table(plan: ContextPlan) -> Table:
    """Returns the table of what ranks lose, by the number of context-parallel groups."""
    rows = (
        (
            f"{groups:,}",
            f"{groups * plan.rule.max_context_parallel:,}",
            *(("too few bins", "") if lost is None or waiting is None else (percent(waiting), percent(lost))),
        )
        for groups, waiting in plan.waiting.items()
        for lost in (plan.lost(groups),)
    )
    title = (
        f"time that ranks lose, waiting at every micro-step, balance micro-step, accumulation {plan.accumulation}, at "
        f"{plan.bandwidth:g} GB/s"
    )
    return table("context-parallel groups", "ranks", "waiting", "lost beyond the work", rows=rows, title=title)


def context_plans_table(plans: Sequence[ContextPlan], name: str) -> Table:
    """Returns the table of several rules for the same counts, the least time first."""
    rows = (
        (
            f"{plan.rule.tokens_per_rank:,}",
            f"{plan.rule.max_context_parallel:,}",
            f"{plan.rule.cost_cap_percent} %",
            f"{plan.num_bins:,}",
            f"{plan.efficiency:.1%}",
            f"{plan.parallel_share:.1%}",
            percent(plan.communication),
            *(("too few bins", "") if lost is None or waiting is None else (percent(waiting), percent(lost))),
        )
        for plan in plans
        for [(groups, waiting)] in (plan.waiting.items(),)
        for lost in (plan.lost(groups),)
    )
    columns = ("tokens a rank", "ranks of a bin", "cost cap", "bins", "efficiency", "tokens on several ranks")
    more = ("communication", "waiting", "lost beyond the work")
    title = f"{name}, max_seq_len {plans[0].rule.max_seq_len:,}, at {plans[0].bandwidth:g} GB/s"
    return table(*columns, *more, rows=rows, title=title)


def waiting_table(rows: Iterable[WaitingRow], topology: Topology) -> Table:
    """Returns the table: for every row the idle share, and beside it how long a step takes, 1 without waiting."""
    waits = ((Balance.NONE, True), (Balance.MICRO_STEP, True), (Balance.NONE, False), (Balance.OPTIMIZER_STEP, False))
    cells = (
        (
            f"{row.max_seq_len:,}",
            f"{row.world_size:,}",
            *(_waiting_cell(row, balance, at_steps=at_steps) for balance, at_steps in waits),
        )
        for row in rows
    )
    columns = ("max_seq_len", "ranks", "waiting at every step", "micro-step", f"once in {topology.accumulation}")
    title = (
        f"GPU time lost to waiting (step time, 1 without), batch size {topology.batch_size}, accumulation "
        f"{topology.accumulation}, cost_linear {topology.cost_linear:,}"
    )
    return table(*columns, "optimizer-step", rows=cells, title=title)


def _waiting_cell(row: WaitingRow, balance: Balance, *, at_steps: bool) -> str:
    idle, excess = row.idle(balance, at_steps=at_steps), row.excess(balance, at_steps=at_steps)
    return "too few bins" if idle is None or excess is None else f"{percent(idle)} ({1 + excess:.3f}×)"
