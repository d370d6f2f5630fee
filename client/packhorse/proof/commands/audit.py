"""`packhorse audit`: checks that an epoch has every sequence, and every token, exactly once under a topology.

Owns the flags and the printed lines. Leaves the audits to `packhorse.proof`.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from packhorse.cli.shared.options import dataset_argument, run_options, target_option, topology_options
from packhorse.cli.shared.service import asking_for, timeout_option
from packhorse.cli.shared.spelling import in_flags
from packhorse.cli.shared.tokens import by_component, open_tokens
from packhorse.client import Client, DatasetInfo
from packhorse.jobs import show_progress
from packhorse.proof import AuditReport, ComponentReport, EpochOfStreams
from packhorse.proof.commands._streams_shape import streams_shape
from packhorse.topology import Skips, Topology
from packhorse.topology.checks import counted
from packhorse.types import skipped_text

if TYPE_CHECKING:
    from packhorse.proof import TokenAudit, TokenReport


_FLAGS = {
    "start_position": "--start-position",
    'remainder="drop"': "--remainder drop",
    "skip": "--skip",
    "until": "--until",
}
"""Option in an AuditReport's `left_out` → its flag; a takedown file has none."""
_TIMES = {1: "once", 2: "twice"}
"""How many times → in words; higher numbers are written as they are."""

_SERVER = "server"
"""The value of --tokens for tokens that the server sends."""


@click.command("audit", context_settings={"show_default": True})
@dataset_argument
@target_option
@timeout_option
@run_options
@topology_options
@click.option(
    "--until",
    metavar="POSITION",
    type=click.IntRange(1),
    help="Position of the run's cursor, if it stopped within the epoch; later bins are reported separately. "
    "[default: the epoch's end]",
)
@click.option(
    "--tokens",
    help="Token file or folder of the trainers: compare every token of the batches with it. For a mixture one for each "
    "component: NAME=PATH,NAME=PATH. `server` for the tokens that the server sends; --against then says what is right.",
)
@click.option("--id-column", help="The column of --tokens that holds ids.  [default: the dataset's]")
@click.option("--against", help="Compare with these files instead, e.g. what the dataset was prepared from.")
@click.option(
    "--loss-mask", help="Loss mask of the trainers, or none.  [default: the mask that lies beside --tokens, if any]"
)
@click.option("--bos-token-id", type=click.IntRange(0), help="Token that the trainers put before every sequence.")
@click.option("--eos-token-id", type=click.IntRange(0), help="Token that the trainers put after every sequence.")
@click.pass_context
def command(
    context: click.Context,
    /,
    target: str,
    timeout_seconds: float | None,
    dataset: str,
    epoch: int,
    seed: int,
    topology: Topology,
    skip: Skips,
    until: int | None,
    tokens: str | None,
    **token_options: Any,
) -> None:
    """Read every stream of an epoch and check that each sequence comes exactly once.

    DATASET is a prepared folder, or the name of a dataset of --target.

    Bins that are in no stream are read by position and reported separately: those left out by `--remainder drop`,
    --skip or NAME.takedown.toml, those before --start-position, and those from --until on. It exits with 0 if every
    other sequence came once. Otherwise it exits with 1 and names the ids. It also exits with 1 if the streams have no
    bin. Redactions of NAME.takedown.toml are shown too.

    For each component of a mixture it reports which of the component's epochs came, how many bins and tokens, how often
    each sequence came, how many sequences a takedown redacts, and how many bins were left out.

    With --tokens, it makes batches as trainers do, and compares every token, target and padding with the source. Every
    token must come once, except those that `prepare` cut or dropped. If one differs, it exits with 1 and names the
    sequence.
    """
    _check_together(tokens, token_options)
    with asking_for(target, timeout_seconds, dataset) as (client, name), show_progress() as progress:
        info = client.get_dataset(name)
        streams = EpochOfStreams(
            client=client, dataset=info, epoch=epoch, seed=seed, topology=topology, skip=skip, until=until
        )
        token_audit = None if tokens is None else _token_audit(client, streams, tokens, **token_options)
        token_report = None
        with progress.task("auditing", info.num_bins, "bins") as advance:
            if token_audit is None:
                report = streams.audit(on_bins=advance)
            else:
                token_report = token_audit.audit(on_bins=advance)
                report = token_report.streams
        if not report.streamed_bins and not report.problems:
            raise click.ClickException(f"nothing was audited: {_why_nothing(streams)}")
    _print_counts(report, streams)
    if token_report is not None:
        _print_tokens(token_report, info)
    problems = report.problems if token_report is None else token_report.problems  # which has those of the streams too
    for problem in problems:
        click.echo(f"WRONG: {in_flags(problem, context.command.params)}", err=True)
    click.echo(_verdict(report))
    if token_report is not None:
        click.echo(f"every token as in its source: {'no' if token_report.problems else 'yes'}")
    context.exit(1 if problems else 0)


def _check_together(tokens: str | None, options: dict[str, Any]) -> None:
    """Refuses options that need --tokens without it, and --tokens server without --against."""
    if tokens is None and (unused := [name for name, value in options.items() if value is not None]):
        raise click.UsageError(f"--{unused[0].replace('_', '-')} belongs to --tokens; give --tokens as well")
    if tokens == _SERVER and options["against"] is None:
        raise click.UsageError("--tokens server needs --against: the files that the server's tokens are compared with")


def _token_audit(
    client: Client,
    streams: EpochOfStreams,
    tokens: str,
    *,
    id_column: str | None,
    against: str | None,
    loss_mask: str | None,
    bos_token_id: int | None,
    eos_token_id: int | None,
) -> "TokenAudit":
    """Returns the audit of tokens that the flags describe."""
    from packhorse.client import BatchFormat, PackedDataset, Separators, as_token_source
    from packhorse.proof import TokenAudit
    from packhorse.tokens.loss_mask import loss_mask_of

    is_sent = tokens == _SERVER
    reference = as_token_source(by_component(against or tokens))
    separators = Separators(bos_token_id=bos_token_id, eos_token_id=eos_token_id)
    dataset = PackedDataset(
        lambda: client,
        streams.dataset.name,
        None if is_sent else open_tokens(tokens, id_column),
        batch_size=streams.topology.batch_size,
        rank=(0, 1),
        batch=BatchFormat(
            loss_mask=_loss_mask(loss_mask),
            separators=separators,
            shift_labels=separators.leaves_out_last(streams.dataset.extra_tokens),
        ),
    )
    # `reference` is opened apart, and looks ids up in the dataset's own id column, even if --id-column names another.
    reference_mask = loss_mask_of(reference, _loss_mask(loss_mask)) if is_sent else None
    streams = replace(streams, with_tokens=is_sent)
    return TokenAudit(streams=streams, dataset=dataset, against=reference, loss_against=reference_mask)


def _loss_mask(given: str | None) -> Any:
    """Returns the loss mask of --loss-mask: "auto" without the flag, None for "none", else paths."""
    if given is None:
        return "auto"
    return None if given == "none" else by_component(given)


def _print_counts(report: AuditReport, streams: EpochOfStreams) -> None:
    """Prints what came in the streams of an epoch, and what was left out of them."""
    info, topology = streams.dataset, streams.topology
    click.echo(
        f"{info.name} {info.digest}\nepoch {streams.epoch}, seed {streams.seed}: {report.sequences:,} sequences, "
        f"{report.tokens:,} tokens in {report.bins:,} bins; "
        f"{streams_shape(topology.world_size, topology.workers_per_rank)}, "
        f"{counted(report.num_steps, 'step')} each{_beyond_the_plan(report, info.num_bins, topology)}"
    )
    for option, left_out in report.left_out.items():
        why = "not reached by" if option == "until" else "left out on purpose by"
        click.echo(f"{why} {_FLAGS.get(option, option)}: {left_out.sequences:,} sequences in {left_out.bins:,} bins")
    for count, what in (
        (report.empty_bins, "empty bins"),
        (report.repeated, "sequences repeated to fill the last step"),
        (report.masked, "sequences masked from the loss by a takedown"),
        (report.replaced, "sequences replaced by a takedown"),
    ):
        if count:
            click.echo(f"{count:,} {what}")
    if info.takedown is not None:
        for redaction in info.takedown.redactions:
            click.echo(f"redaction {redaction.digest}: {redaction}")
    for component in report.components:
        click.echo(_component_line(component))


def _print_tokens(report: "TokenReport", info: DatasetInfo) -> None:
    """Prints the counts of a token audit."""
    click.echo(f"{report.tokens:,} tokens of the source in batches, {report.targets:,} targets")
    if report.cut_tokens:
        click.echo(f"cut off by --over-length {info.over_length}: {report.cut_tokens:,} tokens")
    if report.dropped_sequences:
        click.echo(
            f"dropped by --over-length: {report.dropped_sequences:,} sequences, {report.dropped_tokens:,} tokens"
        )
    if report.skipped_rows:
        click.echo(f"skipped of {info.source}: {skipped_text(report.skipped_rows, info.skipped_by_reason)}")


def _component_line(report: ComponentReport) -> str:
    """Returns a line about one component of a mixture."""
    times = ", ".join(
        f"{num_sequences:,} {_TIMES.get(num_times, f'{num_times} times')}"
        for num_times, num_sequences in sorted(report.times.items())
    )
    by_takedown = ((report.masked, "masked from the loss"), (report.replaced, "replaced"))
    redacted = ", ".join(f"{count:,} {what}" for count, what in by_takedown if count)
    left_out = f"{report.bins_left_out:,} bins, {report.sequences_left_out:,} sequences left out"
    return (
        f"{report.component.name}: its epochs {report.epochs} in {report.bins:,} bins, {report.tokens:,} tokens; of "
        f"{report.component.num_sequences:,} sequences came {times or 'none'}{redacted and f'; {redacted}'}"
        f"{f'; {left_out}' if report.bins_left_out else ''}"
    )


def _verdict(report: AuditReport) -> str:
    """Returns the last line: whether every sequence came as often as it must."""
    if report.components:
        return f"every sequence as often as the mixture says: {'no' if report.problems else 'yes'}"
    if report.problems:
        return "exactly once: no"
    if not report.left_out:
        return "exactly once: yes"
    rest = report.sequences - sum(left_out.sequences for left_out in report.left_out.values())
    return f"the other {rest:,} sequences came exactly once"


def _beyond_the_plan(report: AuditReport, planned: int, topology: Topology) -> str:
    """Returns a line, after a line break, about why an epoch has another number of bins than its plan; else "".

    If bins were left out, the lines about these say why.
    """
    if report.bins == planned or report.left_out:
        return ""
    return f"\nthe plan has {planned:,} bins; --remainder {topology.remainder} fills the last step"


def _why_nothing(streams: EpochOfStreams) -> str:
    """Returns why the streams of an epoch have no step, and what to do about it."""
    dataset, topology, skip = streams.dataset, streams.topology, streams.skip
    if not dataset.num_bins:
        return f"{dataset.name} has no bins; prepare it again from an input that has sequences"
    if skip.within(dataset.num_bins).num_skipped == dataset.num_bins:
        return f"--skip {skip} leaves out all {dataset.num_bins} bins"
    with streams.client.stream_bins(dataset.name, epoch=streams.epoch, seed=streams.seed, skip=skip) as whole:
        num_bins = whole.header.num_bins
    if not num_bins:
        return f"{dataset.name}.takedown.toml leaves out all bins of epoch {streams.epoch}; shorten a [[skip]] in it"
    bins_left = num_bins - topology.start_position
    if bins_left <= 0:
        return f"--start-position {topology.start_position} is the epoch's end; give one below {num_bins}"
    return (
        f"--remainder {topology.remainder} leaves out a last step that is not full: {bins_left} bins are left, a step "
        f"takes {topology.bins_per_step} (--world-size times --batch-size): lower these, or choose another --remainder"
    )
