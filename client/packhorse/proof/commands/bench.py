"""`packhorse bench`: reads many streams of a server at once, to size it before a run.

Owns the command's flags, its figures, and the printed lines. Leaves reading the streams to `proof/load`.
"""

import json
import os
import statistics
from typing import Any

import click
import numpy as np

from packhorse.cli.shared.options import target_option
from packhorse.cli.shared.service import access_of_command, asking
from packhorse.cli.shared.timeouts import Seconds
from packhorse.client import Client
from packhorse.proof.commands._streams_shape import streams_shape
from packhorse.proof.load import Load, Measured, run_load
from packhorse.topology import Topology
from packhorse.topology.checks import counted

_PERCENTILES = (50, 90, 99)
"""Percentiles of waits that are reported, in percent."""
_MOST_PROCESSES = 8
"""Processes that share the streams without --processes."""
_BUSY_SHARE = 0.8
"""Share of this machine's cores above which the bench itself may be the limit."""


@click.command("bench", context_settings={"show_default": True})
@click.argument("dataset", required=False)
@target_option
@click.option("--seconds", default=10.0, type=Seconds(0, min_open=True), help="How long to read.")
@click.option("--world-size", default=8, type=click.IntRange(1), help="Ranks of the run.")
@click.option("--workers-per-rank", default=1, type=click.IntRange(1), help="Workers of a rank; each has a stream.")
@click.option("--batch-size", default=8, type=click.IntRange(1), help="Bins per rank and step.")
@click.option(
    "--steps-per-second",
    type=click.FloatRange(0, min_open=True),
    help="Steps per second at which each rank trains.  [default: as fast as possible]",
)
@click.option("--seed", default=0, type=click.IntRange(0), help="Seed of the run.")
@click.option(
    "--processes",
    default=None,
    type=click.IntRange(1),
    help="Processes that share the streams.  [default: one for each core, up to 8]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
@click.pass_context
def command(
    context: click.Context,
    /,
    dataset: str | None,
    target: str,
    seconds: float,
    world_size: int,
    workers_per_rank: int,
    batch_size: int,
    steps_per_second: float | None,
    seed: int,
    processes: int | None,
    as_json: bool,
) -> None:
    """Open every stream of a run at the servers of --target, and measure rates and waits.

    The run reads DATASET, or the first dataset of the server.

    All streams are opened at once, as at the start of a run, each over its own connection. Run it on another machine
    than the server's, so that they do not share a processor. With --steps-per-second the wait for a block should be
    near 0 at every percentile. Without it, streams read as fast as the server, the network or this machine can.

    It exits with 1 if a stream failed, or was never admitted because servers were full (--max-streams of serve).
    """
    if target.startswith("embedded:"):
        raise click.UsageError("--target embedded:DIR is not a server; give HOST:PORT")
    with asking(target, timeout_seconds=None) as client:
        if dataset is None:
            dataset = _first_dataset(client)
        else:
            client.get_dataset(dataset)  # so that an unknown name is refused once, and not by every stream
    load = Load(
        target=target,
        access=access_of_command(),
        dataset=dataset,
        seed=seed,
        topology=Topology(world_size=world_size, workers_per_rank=workers_per_rank, batch_size=batch_size),
        seconds=seconds,
        steps_per_second=steps_per_second,
    )
    num_cores = os.cpu_count() or 1
    streams, processor_seconds = run_load(load, processes or min(_MOST_PROCESSES, num_cores))
    facts = _facts(load, streams, processor_seconds, num_cores)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        for line in _lines(facts):
            click.echo(line)
    context.exit(1 if facts["failed_streams"] else 0)


def _first_dataset(client: Client) -> str:
    """Returns the name of the first dataset of the server; a UsageError if this token may read none."""
    names = [info.name for info in client.list_datasets()]
    if not names:
        raise click.UsageError(
            "this token may not read any of the server's datasets; use another token, or name a dataset as DATASET"
        )
    return names[0]


def _facts(load: Load, streams: list[Measured], processor_seconds: float, num_cores: int) -> dict[str, Any]:
    """Returns all figures of the bench, for JSON and for `_lines`.

    `processor_seconds` is the processor time of all reading processes, and `num_cores` what this machine has.
    """
    good = [stream for stream in streams if not stream.error]
    # Without streams that failed, if others did not: one that was not admitted waits longer than the others read.
    took = max(stream.seconds for stream in good or streams)
    ids_per_second = [stream.num_ids / stream.seconds for stream in good]
    median = statistics.median(ids_per_second) if ids_per_second else 0.0
    return {
        "target": load.target,
        "dataset": load.dataset,
        "world_size": load.topology.world_size,
        "workers_per_rank": load.topology.workers_per_rank,
        "batch_size": load.topology.batch_size,
        "steps_per_second": load.steps_per_second,
        "seconds": took,
        "streams": len(streams),
        "failed_streams": len(streams) - len(good),
        "refused_streams": sum(stream.was_refused for stream in streams),
        "first_error": next((stream.error for stream in streams if stream.error), None),
        "first_block_seconds": _percentiles([wait for stream in streams for wait in stream.first_seconds]),
        "next_block_seconds": _percentiles([wait for stream in streams for wait in stream.next_seconds]),
        "ids_per_second": sum(stream.num_ids for stream in streams) / took,
        "tokens_per_second": sum(stream.num_tokens for stream in streams) / took,
        "bins_per_second": sum(stream.num_bins for stream in streams) / took,
        "slowest_over_median": min(ids_per_second) / median if median else None,
        "bench_cores": processor_seconds / took,
        "machine_cores": num_cores,
    }


def _percentiles(seconds: list[float]) -> dict[str, float] | None:
    """Returns the count, percentiles and maximum of times; None if nothing was measured."""
    if not seconds:
        return None
    values = np.percentile(seconds, _PERCENTILES).tolist()
    percentiles = {f"p{percent}": value for percent, value in zip(_PERCENTILES, values, strict=True)}
    return {"count": len(seconds), **percentiles, "max": max(seconds)}


def _lines(facts: dict[str, Any]) -> list[str]:
    """Returns the figures as lines of text."""
    ranks_and_workers = streams_shape(facts["world_size"], facts["workers_per_rank"])
    shape = f"{ranks_and_workers}, {counted(facts['batch_size'], 'bin')} a step"
    heading = f"{counted(facts['streams'], 'stream')} of {facts['dataset']} ({shape}) for {facts['seconds']:.1f} s"
    rows: list[tuple[str, str]] = []
    for name, key in (("first block", "first_block_seconds"), ("next block", "next_block_seconds")):
        waits = facts[key]  # as `_percentiles` returns them
        if waits:
            figures = (*(f"p{percent}" for percent in _PERCENTILES), "max")
            times = "   ".join(f"{figure} {1000 * waits[figure]:,.1f} ms" for figure in figures)
            rows.append((name, f"{times}   of {waits['count']:,}"))
    rates = (facts[f"{what}_per_second"] for what in ("ids", "tokens", "bins"))
    rows.append(("rate", "{:,.0f} ids/s   {:,.0f} tokens/s   {:,.0f} bins/s".format(*rates)))
    if facts["slowest_over_median"] is not None:
        rows.append(("fairness", f"the slowest stream had {facts['slowest_over_median']:.0%} of the median's ids"))
    own = f"{facts['bench_cores']:.1f} of this machine's {facts['machine_cores']} cores went into reading"
    is_busy = facts["bench_cores"] > _BUSY_SHARE * facts["machine_cores"]
    rows.append(("bench", f"{own}{': it, and not the server, may be the limit' if is_busy else ''}"))
    if facts["refused_streams"]:
        full = "servers were full: raise --max-streams of serve, or add replicas"
        rows.append(("refused", f"{facts['refused_streams']} streams at first: {full}"))
    if facts["failed_streams"]:
        rows.append(("failed", f"{facts['failed_streams']} streams: {facts['first_error']}"))
    return [heading, *(f"{name:<12} {text}" for name, text in rows)]
