"""`packhorse audit`: proof that an epoch gives every sequence exactly once, under a given topology."""

from typing import Any

import click

from packhorse.cli.exactly_once import EpochOfStreams
from packhorse.cli.options import epoch_options, target_option, topology_options
from packhorse.cli.progress import progress_bar
from packhorse.client import connect


@click.command("audit", context_settings={"show_default": True})
@target_option
@epoch_options
@topology_options
@click.pass_context
def command(context: click.Context, /, target: str, dataset: str, epoch: int, seed: int, **topology: Any) -> None:
    """Read every stream of an epoch and check that each sequence comes exactly once.

    Bins that no stream carries (left out by `--remainder drop`, or before --start-position) are read by position and
    reported. Exits with 0 when every sequence came once, with 1 when not, naming the ids.
    """
    with connect(target) as client, progress_bar() as progress:
        info = client.get_dataset(dataset)
        task = progress.add_task("auditing", total=info.num_bins)
        streams = EpochOfStreams(client=client, dataset=info, epoch=epoch, seed=seed, topology=topology)
        report = streams.audit(on_bins=lambda bins: progress.update(task, advance=bins))
    click.echo(
        f"{dataset} {info.digest}\nepoch {epoch}, seed {seed}: {report.sequences:,} sequences, {report.tokens:,} "
        f"tokens in {report.bins:,} bins; {topology['world_size']} ranks × {topology['workers_per_rank']} workers, "
        f"{report.num_steps:,} steps each"
    )
    for count, what in (
        (report.left_out, "sequences that no stream carries (dropped, or before the start)"),
        (report.empty_bins, "empty bins"),
        (report.repeated, "sequences repeated to fill the last step"),
    ):
        if count:
            click.echo(f"{count:,} {what}")
    for problem in report.problems:
        click.echo(f"WRONG: {problem}", err=True)
    click.echo(f"exactly once: {'no' if report.problems else 'yes'}")
    context.exit(1 if report.problems else 0)
