"""`packhorse top`: the activity of servers, as a live view or as JSON.

Owns the tables and the live view. Leaves rates to `analysis.activity`, and asking servers to `packhorse.proof`.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from packhorse.analysis import activity_between
from packhorse.cli.shared.options import target_option
from packhorse.cli.shared.printing import output_console, table
from packhorse.cli.shared.service import access_of_command
from packhorse.cli.shared.timeouts import Wait
from packhorse.client import Access, PackhorseError
from packhorse.client.errors import ServerUnavailableError
from packhorse.proof import ServerActivity, ask_activity

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
"""Sizes of the units of large numbers, and their letters."""
_TIME_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))
"""Seconds of each unit, and its name."""


def view_of(facts: dict[str, Any], limit: int, trouble: str = "") -> RenderableType:
    """Returns the tables of facts from `activity_between`, with at most `limit` streams.

    `trouble` is a warning that is shown above them; empty for none.
    """
    parts: list[RenderableType] = [Text(trouble, style="bold red")] if trouble else []
    parts.append(_servers_table(facts["servers"]))
    if any(server["most_open_files"] for server in facts["servers"]):  # 0 from older servers, which tell none of it
        parts.append(_processes_table(facts["servers"]))
    parts.append(_datasets_table(facts["datasets"]))
    if facts["digests"]:
        parts.append(_digests_table(facts["digests"]))
    if facts["runs"]:
        parts.append(_runs_table(facts["runs"]))
    if facts["streams"] and limit:
        parts.append(_streams_table(facts["streams"], limit))
    return Group(*parts)


def _servers_table(servers: list[dict[str, Any]]) -> Table:
    """Returns the table of servers, with their streams and waiting work."""
    rows = []
    for server in servers:
        waiting = ", ".join(f"{name} {number}" for name, number in server["waiting_in_lanes"].items() if number)
        streams = f"{server['streams']} of {server['max_streams']}"
        up = _time(server["uptime_seconds"])
        rows.append((server["address"], server["version"], up, streams, waiting or "nothing"))
    return _table("server", "version", "up", "streams", "waiting in lanes", rows=rows)


def _processes_table(servers: list[dict[str, Any]]) -> Table:
    """Returns the table of each server process's use of the machine."""
    rows = (
        (
            server["address"],
            f"{server['processors']:.1f}",
            f"{_number(server['memory_bytes'])} of {_number(server['memory_limit_bytes'])}",
            f"{_number(server['open_files'])} of {_number(server['most_open_files'])}",
            f"{server['connections']:,}",
            f"{server['connections_without_request']:,}",
            _number(server["bytes_without_request_per_second"]),
        )
        for server in servers
    )
    return _table("server", "cores", "memory", "files", "connected", "silent", "stray B/s", rows=rows)


def _digests_table(digests: list[dict[str, Any]]) -> Table:
    """Returns the table of digests that streams use."""
    rows = ((used["dataset"], str(used["streams"]), str(used["runs"]), used["digest"]) for used in digests)
    return _table("dataset", "streams", "runs", "digest that they use", rows=rows)


def _datasets_table(datasets: list[dict[str, Any]]) -> Table:
    """Returns the table of rates by dataset."""
    names = ("bins", "sequences", "tokens")
    rows = ((rates["dataset"], *(_number(rates[f"{name}_per_second"]) for name in names)) for rates in datasets)
    return _table("dataset", *(f"{name}/s" for name in names), rows=rows)


def _runs_table(runs: list[dict[str, Any]]) -> Table:
    """Returns the table of runs: how far they are, and their slowest rank."""
    rows = (
        (
            run["dataset"],
            str(run["epoch"]),
            str(run["seed"]),
            f"{run['open_ranks']} of {run['world_size']}",
            str(run["open_streams"]),
            f"{run['furthest_step']:,} of {run['num_steps']:,}",
            str(run["slowest_rank"]),
            f"{run['lag_steps']:,}",
            _number(run["bytes_per_second"]),
            f"{run['blocked_share']:.0%}",
        )
        for run in runs
    )
    columns = ("run", "epoch", "seed", "ranks", "streams", "step", "slowest rank", "behind", "bytes/s", "waits")
    return _table(*columns, rows=rows)


def _streams_table(streams: list[dict[str, Any]], limit: int) -> Table:
    """Returns the table of the first `limit` streams, which are the furthest behind."""
    rows = []
    for stream in streams[:limit]:
        where = (
            str(stream["rank"]),
            str(stream["worker"]),
            f"{stream['next_step']:,} of {stream['num_steps']:,}",
            f"{stream['behind_steps']:,}",
            _number(stream["steps_per_second"]),
        )
        row = (
            stream["id"],
            stream["dataset"] or stream["method"],
            *(where if stream["dataset"] else ("",) * len(where)),  # a stream that packs online has no dataset
            _number(stream["bytes_per_second"]),
            f"{stream['blocked_share']:.0%}",
            _time(stream["waiting_seconds"]),
            _time(stream["open_seconds"]),
            stream["peer"],
        )
        rows.append(row)
    columns = ("stream", "of", "rank", "worker", "step", "behind", "steps/s", "bytes/s", "waits", "now", "open", "from")
    made = _table(*columns, rows=rows)
    left = len(streams) - limit
    made.caption = f"and {left} more; --limit shows them" if left > 0 else None
    return made


def _table(*columns: str, rows: Iterable[Sequence[str]]) -> Table:
    """Returns a table without lines, whose columns of text begin on the left."""
    return table(*columns, rows=rows, left=("of", "from", "version", "digest that they use"), is_plain=True)


def _number(value: float) -> str:
    """Returns a number in about four characters: 3.1, 812, 46k, 3.2G."""
    for size, unit in _UNITS:
        if value >= size:
            return f"{value / size:.1f}{unit}" if value < 10 * size else f"{value / size:.0f}{unit}"
    return f"{value:.1f}" if 0 < value < 10 else f"{value:.0f}"


def _time(seconds: float) -> str:
    """Returns a time in the largest unit of which it has two, or in seconds: 0.2 s, 42 s, 2.5 min."""
    if seconds < 0.05:  # would be written as 0.0 s
        return "0"
    for size, unit in _TIME_UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


@dataclass(frozen=True, slots=True)
class _Answers:
    """The answers of one round of questions to all servers."""

    servers: list[ServerActivity]
    """The activity of each server that answered."""
    trouble: str
    """Why the others did not, in one sentence; empty if all answered."""
    ended: float
    """When the last of them answered, in seconds of `time.monotonic`."""


@click.command("top", context_settings={"show_default": True})
@target_option
@click.option(
    "--interval", default=2.0, type=Wait(0.1), help="Seconds between two measurements; rates are averages over them."
)
@click.option(
    "--limit", default=15, type=click.IntRange(0), help="Show at most this many streams, furthest behind first."
)
@click.option("--once", is_flag=True, help="Measure twice, an interval apart, print, and exit.")
@click.option("--json", "as_json", is_flag=True, help="With --once, print JSON of every stream, regardless of --limit.")
@click.option("--timeout-seconds", default=5.0, type=Wait(0, min_open=True), help="How long to wait for an answer.")
def command(target: str, interval: float, limit: int, once: bool, as_json: bool, timeout_seconds: float) -> None:
    """Watch the servers of --target until Ctrl-C: runs, how far their ranks are, streams, rates and queues.

    A rank's step is the last that the server sent; its trainer may hold steps that it has not trained on yet. A stream
    waits while a block is ready and the trainer does not read it, as it should be: a stream that never waits is slower
    than its trainer. Memory is the server's own, without mapped files. A silent connection has sent no request,
    and stray bytes belong to no request. A digest must stay on disk as long as streams use it.
    """
    if target.startswith("embedded:"):
        raise click.UsageError("--target embedded:DIR is not a server; `packhorse inspect` looks into a folder")
    if as_json and not once:
        raise click.UsageError("--json needs --once: a live view is for people")
    ask = partial(_ask, target, access_of_command(), timeout_seconds)
    if not once:
        _watch(ask, interval, limit)
        return
    before = ask()
    time.sleep(interval)
    after = ask()
    facts = activity_between(before.servers, after.servers, after.ended - before.ended)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        output_console().print(view_of(facts, limit, after.trouble))
    if after.trouble:
        raise click.ClickException(after.trouble)


def _ask(target: str, access: Access, timeout_seconds: float) -> _Answers:
    """Asks every server of a target; raises a ServerUnavailableError if none answers."""
    answers: list[ServerActivity] = []
    failures: list[ServerUnavailableError] = []
    for server in target.split(","):
        try:
            answers += ask_activity(server, access=access, timeout_seconds=timeout_seconds)
        except ServerUnavailableError as failure:
            failures.append(failure)
    if not answers:
        raise ServerUnavailableError(f"{failures[0]}; `packhorse doctor --target {target}` tries every step to it")
    trouble = "; ".join(f"no answer from {failure}" for failure in failures)
    return _Answers(answers, trouble, ended=time.monotonic())


def _watch(ask: Callable[[], _Answers], interval: float, limit: int) -> None:
    """Shows a live view until Ctrl-C. While servers do not answer, the last view stays, below a warning."""
    before = ask()
    trouble = before.trouble
    facts = activity_between([], before.servers, seconds=0.0)  # without an earlier look: means since each began
    with Live(view_of(facts, limit, trouble), console=output_console(), screen=True, auto_refresh=False) as live:
        while True:
            try:
                time.sleep(interval)
                after = ask()
                facts = activity_between(before.servers, after.servers, after.ended - before.ended)
                before, trouble = after, after.trouble
            except PackhorseError as error:
                trouble = f"no answer, so this view is old: {error}"
            except KeyboardInterrupt:
                return
            live.update(view_of(facts, limit, trouble), refresh=True)
