"""`packhorse prepare`: makes a prepared folder from lengths, tokens or text.

Owns the command's flags and its printed summary. Leaves the work to `packhorse.prepare`, and the tokens of text to
`packhorse.cli.shared.made_tokens`.
"""

import shlex
import time
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import click

from packhorse.cli.shared.flags import flags_of
from packhorse.cli.shared.made_tokens import Place, tokens_of_text
from packhorse.cli.shared.sentences import CUT_OFF, groups_line, keys_text, real_tokens_text, resource_lines
from packhorse.cli.shared.signals import stopped_by_signals
from packhorse.cli.shared.spelling import in_flags
from packhorse.cli.shared.timeouts import store_timeout_option
from packhorse.dataset import (
    TOKENS,
    Inputs,
    Manifest,
    OverLength,
    OverLengthLedger,
    PlanOptions,
    load_seqpack_layout,
    open_prepared,
    stats_of,
)
from packhorse.jobs import Execution
from packhorse.packing import PACKERS, Template
from packhorse.parameters import message_of
from packhorse.prepare import READERS, DryRun, Grouping, InputColumns, Layout, Resource, prepare, prepare_with_tokens
from packhorse.prepare import dry_run as try_out
from packhorse.types import skipped_text

_WHEN_STOPPED = "no incomplete dataset is left; the same command with --resume continues"
"""What a signal that ends the command makes it say."""
_GROUP_FLAGS = {"column": "group_column", "size": "group_size", "numbers": "groups"}
"""Field of `Grouping` → name of its flag."""


class _Command(click.Command):
    """A command that with --tokenizer also takes the options of tokenize, and whose help lists the kinds of input."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Reads the arguments. With --tokenizer, options unknown to prepare stay in `ctx.args`, for tokenize."""
        if any(each.partition("=")[0] == "--tokenizer" for each in args):
            ctx.ignore_unknown_options = ctx.allow_extra_args = True
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Adds to the help what each reader takes as --input."""
        with formatter.section("What --input may be, recognised by its content"):
            formatter.write_dl([(reader.kind, reader.takes) for reader in READERS])
        formatter.write_paragraph()
        formatter.write_text(
            "Several inputs are read in the order given; without --id-column, an id is a row number over all of them. "
            "To train, give the same input as token source."
        )


@click.command("prepare", cls=_Command)
@click.option(
    "--input",
    "sources",
    required=True,
    multiple=True,
    metavar="PATH",
    help="Tokens or lengths: a file, a folder, a quoted pattern or a URL, as in 's3://bucket/x/*.parquet'. Kinds are "
    "listed below. With --tokenizer text, chats or pairs, as for `packhorse tokenize`. May be given several times; "
    "inputs are read in that order.",
)
@click.option(
    "--tokenizer",
    metavar="PATH",
    help="Tokenize --input on the way with this tokenizer.json, or the one in this folder. The tokens and their loss "
    "mask lie in DIR/tokens. All options of `packhorse tokenize` may be given too.",
)
@click.option("--output", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Folder to write.")
@flags_of(PlanOptions, "plan", choices={"algorithm": ["auto", *sorted(PACKERS)]})
@flags_of(
    InputColumns,
    "columns",
    names={"length": "length_column", "id": "id_column"},
    leave_out=("group", "resources", "key"),
)
@flags_of(Grouping, "grouping", names=_GROUP_FLAGS, is_optional=True)
@click.option(
    "--resource",
    "resources",
    multiple=True,
    metavar="NAME=COLUMN[:CAP[:COST]]",
    help="What sequences take of a bin beside tokens, such as tiles=num_tiles:48: the column that says how much "
    "(integers, lists of them, or grids (t, h, w) as image_grid_thw), and the most that a bin holds. Without a cap it "
    "is only counted. COST is what one of it costs where ranks are balanced, in the unit of a run's cost-linear. Give "
    "it several times for several.",
)
@flags_of(Execution, "execution", leave_out=("progress",))
@store_timeout_option
@click.option(
    "--format",
    "layout",
    type=click.Choice(["packhorse", "seqpack"]),
    default="packhorse",
    show_default=True,
    help="Layout of the folder; `packhorse serve` reads packhorse.",
)
@click.option("--dry-run", is_flag=True, help="Read and plan, print the result and its cost, and write nothing.")
@click.option("--overwrite", is_flag=True, help="Replace a prepared dataset at --output, and nothing else.")
@click.option(
    "--append",
    is_flag=True,
    help="Add the input's sequences to the dataset at --output as a new version; the earlier version is kept.",
)
def command(
    sources: tuple[str, ...],
    output: Path,
    plan: PlanOptions,
    columns: InputColumns,
    grouping: Grouping | None,
    resources: tuple[str, ...],
    execution: Execution,
    layout: Layout,
    dry_run: bool,
    overwrite: bool,
    append: bool,
    tokenizer: str | None,
) -> None:
    """Plan a dataset from its lengths and write the folder that `packhorse serve` serves."""
    started = time.perf_counter()
    # `packhorse inspect` runs this command too, and removes what it makes.
    when_stopped = _WHEN_STOPPED if click.get_current_context().info_name == "prepare" else "nothing is left"
    with warnings.catch_warnings(record=True) as caught, stopped_by_signals(when_stopped):
        columns = replace(columns, resources=tuple(Resource.parse(text) for text in resources))
        if tokenizer is not None:
            if dry_run or layout == "seqpack":
                refused = "--dry-run" if dry_run else "--format seqpack"
                raise click.UsageError(f"{refused} goes without --tokenizer: tokenize first, then prepare the tokens.")
            place = Place(output, overwrite, append)
            result: Manifest | DryRun = _prepare_text(sources, tokenizer, plan, columns, grouping, execution, place)
        else:
            result = (try_out if dry_run else prepare)(
                sources,
                output=output,
                plan=plan,
                columns=columns,
                grouping=grouping,
                execution=execution,
                overwrite=overwrite,
                append=append,
                format=layout,
            )
    if isinstance(result, DryRun):
        _print_dry_run(result, plan.over_length)
    else:
        _print_summary(result, output, layout, time.perf_counter() - started)
    for warning in caught:
        click.echo(f"warning: {in_flags(message_of(warning.message), command.params)}", err=True)


def _prepare_text(
    sources: tuple[str, ...],
    tokenizer: str,
    plan: PlanOptions,
    columns: InputColumns,
    grouping: Grouping | None,
    execution: Execution,
    place: Place,
) -> Manifest:
    """Tokenizes text and prepares its tokens. Options that prepare does not know are passed to tokenize."""
    options = ["--tokenizer", tokenizer, *click.get_current_context().args]
    with tokens_of_text(sources, options, plan, columns, grouping, execution, place) as tokens:
        return prepare_with_tokens(
            tokens.input,
            output=place.output,
            plan=plan,
            columns=replace(columns, id=None, on_bad_row="error"),
            grouping=grouping or tokens.grouping,
            execution=execution,
            overwrite=place.overwrite,
            append=place.append,
        )


def _print_dry_run(result: DryRun, over_length: OverLength) -> None:
    """Prints what a prepare would read, plan and cost."""
    click.echo(result.stats)
    _print_read(result.inputs)
    _print_left_out(result.over_length, result.inputs, over_length)
    click.echo(f"planned by   {result.algorithm}")
    if result.plan_cut_off:
        click.echo(f"cut off      {CUT_OFF}")
    click.echo(
        f"would take   about {result.seconds:.1f} s and {result.disk_bytes:,} bytes, and {result.work_bytes:,} more "
        f"meanwhile, of {result.free_bytes:,} free"
    )
    click.echo("dry run      nothing was written, and ids were not compared with each other")


def _print_read(inputs: Inputs) -> None:
    """Prints which rows were read, and from how many files."""
    column = "" if inputs.length_column is None else f", column {inputs.length_column!r}"
    files = f" in {inputs.num_files:,} files" if inputs.num_files != 1 else ""
    click.echo(f"read         {inputs.kind}, {inputs.rows:,} rows{files}{column}")


def _print_left_out(ledger: OverLengthLedger, inputs: Inputs | None, over_length: OverLength) -> None:
    """Prints how many rows were skipped, and what was done with sequences longer than max_seq_len."""
    if inputs is not None and inputs.skipped.rows:
        skipped, first = inputs.skipped, inputs.skipped.first[0]
        text = skipped_text(skipped.rows, skipped.by_reason)
        click.echo(f"skipped      {text}; the first is row {first.row} of {first.file}")
    if ledger.sequences:
        split = f"split into {ledger.pieces:,} pieces"
        treated = {"drop": "dropped", "truncate": "truncated"}.get(over_length, split)
        over_cap = f" ({ledger.over_cap:,} only over a cap)" if ledger.over_cap else ""
        click.echo(
            f"over length: {ledger.sequences:,} sequences {treated}{over_cap}; "
            + (f"{ledger.tokens:,} tokens are lost" if ledger.tokens else "no token is lost")
        )


def _print_summary(manifest: Manifest, output: Path, layout: Layout, seconds: float) -> None:
    """Prints the facts of the folder that was written, and the next command."""
    click.echo(stats_of(manifest, _templates(output, layout)))
    if text := real_tokens_text(manifest):
        click.echo(f"real tokens  {text}")
    if manifest.groups is not None and manifest.is_grouped:
        click.echo(groups_line(manifest.groups, manifest.num_sequences))
    for line in resource_lines(manifest):
        click.echo(line)
    if manifest.keys is not None:
        click.echo(f"keys         {keys_text(manifest.keys)}")
    if manifest.inputs is not None:
        _print_read(manifest.inputs)
    _print_left_out(manifest.over_length, manifest.inputs, manifest.options.over_length)
    click.echo(f"planned by   {manifest.algorithm}")
    if manifest.plan_cut_off:
        click.echo(f"cut off      {CUT_OFF}")
    click.echo(f"prepared in  {seconds:.1f} s")
    click.echo(f"output       {output}")
    if layout == "seqpack":
        click.echo(f'next         seqpack.load_prepared("{output}")')
        return
    click.echo(f"digest       {manifest.digest}")
    if (output / TOKENS).is_dir():
        click.echo(f"tokens       {output / TOKENS}")
    if manifest.version > 1:
        click.echo(f"version      {manifest.version}; packhorse inspect {shlex.quote(str(output))} lists the others")
    if manifest.inputs is not None and manifest.inputs.tokens is not None:
        options = "shared_prefix='tree'" if manifest.shares_prefixes else ""
        if manifest.options.extra_tokens < 0:
            options = "shift_labels=True"
        form = f", batch=BatchFormat({options})" if options else ""
        click.echo(f"train        create_packed_dataloader({str(output)!r}, batch_size=8{form})")
    click.echo(f"next         packhorse serve --data-root {shlex.quote(str(output.resolve().parent))}")


def _templates(output: Path, layout: Layout) -> Counter[Template]:
    """Reads the plan that was just written, in either layout."""
    if layout == "seqpack":
        _manifest, _counts, templates, _pools = load_seqpack_layout(output)
        return templates
    return open_prepared(output, check_pool=False).templates
