"""`packhorse audit`: proof that an epoch gives every sequence exactly once, under a given topology."""

import click

from packhorse.cli.options import epoch_options, target_option, topology_options
from packhorse.cli.service import asking, timeout_option
from packhorse.client import AuditReport, DatasetInfo, EpochOfStreams
from packhorse.jobs import show_progress
from packhorse.topology import Skips, Topology


@click.command("audit", context_settings={"show_default": True})
@target_option
@timeout_option
@epoch_options
@topology_options
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
) -> None:
    """Read every stream of an epoch and check that each sequence comes exactly once.

    Bins that no stream carries (left out by `--remainder drop` or --skip, or before --start-position) are read by
    position and reported. Exits with 0 when every sequence came once, but for those; with 1 when not, naming the ids,
    and when no stream carries a bin.
    """
    with asking(target, timeout_seconds) as client, show_progress() as progress:
        info = client.get_dataset(dataset)
        streams = EpochOfStreams(client=client, dataset=info, epoch=epoch, seed=seed, topology=topology, skip=skip)
        with progress.task("auditing", info.num_bins, "bins") as advance:
            report = streams.audit(on_bins=advance)
    if not report.streamed_bins and not report.problems:
        raise click.ClickException(f"nothing was audited: {_why_nothing(info, topology, skip)}")
    click.echo(
        f"{dataset} {info.digest}\nepoch {epoch}, seed {seed}: {report.sequences:,} sequences, {report.tokens:,} "
        f"tokens in {report.bins:,} bins; {topology.world_size} ranks × {topology.workers_per_rank} workers, "
        f"{report.num_steps:,} steps each"
    )
    for option, left_out in report.left_out.items():
        click.echo(f"left out on purpose by {option}: {left_out.sequences:,} sequences in {left_out.bins:,} bins")
    for count, what in (
        (report.empty_bins, "empty bins"),
        (report.repeated, "sequences repeated to fill the last step"),
    ):
        if count:
            click.echo(f"{count:,} {what}")
    for problem in report.problems:
        click.echo(f"WRONG: {problem}", err=True)
    click.echo(_verdict(report))
    context.exit(1 if report.problems else 0)


def _verdict(report: AuditReport) -> str:
    if report.problems:
        return "exactly once: no"
    if not report.left_out:
        return "exactly once: yes"
    rest = report.sequences - sum(left_out.sequences for left_out in report.left_out.values())
    return f"the other {rest:,} sequences came exactly once"


def _why_nothing(dataset: DatasetInfo, topology: Topology, skip: Skips) -> str:
    """Says why an epoch has no step, and what to do."""
    num_bins = dataset.num_bins - skip.within(dataset.num_bins).num_skipped
    bins_left = num_bins - topology.start_position
    if not dataset.num_bins:
        return f"{dataset.name} has no bins; prepare it again from an input with sequences"
    if not num_bins:
        return f"--skip {skip} leaves out all {dataset.num_bins} bins"
    if bins_left <= 0:
        return f"--start-position {topology.start_position} is the epoch's end; give one below {num_bins}"
    return (
        f"--remainder {topology.remainder} leaves out a last step that is not full: {bins_left} bins are left, a step "
        f"takes {topology.bins_per_step} (--world-size times --batch-size): lower these, or choose another --remainder"
    )
