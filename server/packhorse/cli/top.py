"""`packhorse top`: what servers do now, as a live view or as JSON."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from packhorse.cli.shared.console import output_console
from packhorse.cli.shared.options import Wait, target_option
from packhorse.cli.shared.service import access_of_command
from packhorse.client import PackhorseError
from packhorse.client.errors import ServerUnavailableError
from packhorse.client.proof import ServerActivity, StreamActivity, ask_activity
from packhorse.wire import EpochKey, steps_of_ranks

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def facts_between(before: Sequence[ServerActivity], after: Sequence[ServerActivity], seconds: float) -> dict[str, Any]:
    """Returns what servers do now, with rates since the look before.

    A process or stream that was not there then has its rate since it began.

    Args:
        before: an earlier answer, or none.
        after: the answer of now.
        seconds: between the two.

    Returns:
        Lists of dicts, under servers, datasets, digests, runs and streams; streams that are furthest behind come first.
    """
    earlier = {server.process: server for server in before}
    steps = steps_of_ranks(stream for server in after for stream in server.streams)
    streams = [
        _stream_facts(stream, server, earlier.get(server.process), seconds, steps)
        for server in after
        for stream in server.streams
    ]
    streams.sort(key=lambda facts: (-facts["behind_steps"], -facts["waiting_seconds"]))
    return {
        "seconds": seconds,
        "servers": [
            {
                "address": server.address,
                "process": f"{server.process:016x}",
                "version": server.server_version,
                "uptime_seconds": server.uptime_seconds,
                "streams": len(server.streams),
                "max_streams": server.max_streams,
                "waiting_in_lanes": server.waiting_in_lanes,
                **_process_facts(server, earlier.get(server.process), seconds),
            }
            for server in after
        ],
        "datasets": _dataset_facts(earlier, after, seconds),
        "digests": _digest_facts(after),
        "runs": [_run_facts(run, ranks, streams) for run, ranks in steps.items()],
        "streams": streams,
    }


def view_of(facts: dict[str, Any], limit: int, trouble: str = "") -> RenderableType:
    """Returns the tables of `facts_between`'s facts.

    Args:
        facts: what is shown.
        limit: streams shown.
        trouble: what is wrong with the facts, such as servers that do not answer; empty where nothing is.
    """
    parts: list[RenderableType] = [_servers_table(facts["servers"]), _datasets_table(facts["datasets"])]
    if any(server["most_open_files"] for server in facts["servers"]):
        parts.insert(1, _processes_table(facts["servers"]))
    if facts["digests"]:
        parts.append(_digests_table(facts["digests"]))
    if facts["runs"]:
        parts.append(_runs_table(facts["runs"]))
    if facts["streams"] and limit:
        parts.append(_streams_table(facts["streams"], limit))
    if trouble:
        parts.insert(0, Text(trouble, style="bold red"))
    return Group(*parts)


def _stream_facts(
    stream: StreamActivity,
    server: ServerActivity,
    earlier: ServerActivity | None,
    seconds: float,
    steps: dict[EpochKey, dict[int, int]],
) -> dict[str, Any]:
    then = {each.id: each for each in earlier.streams}.get(stream.id) if earlier else None
    period = seconds if then else stream.open_seconds
    ranks = steps.get(EpochKey(stream.dataset, stream.epoch, stream.seed, stream.world_size), {})
    blocked = (
        stream.blocked_seconds + stream.waiting_seconds - (then.blocked_seconds + then.waiting_seconds if then else 0)
    )
    facts = asdict(stream)
    facts |= {
        "server": server.address,
        "behind_steps": max(ranks.values()) - stream.next_step if ranks else 0,
        "steps_per_second": _rate(stream.next_step - (then.next_step if then else stream.first_step), period),
        "bytes_per_second": _rate(stream.sent_bytes - (then.sent_bytes if then else 0), period),
        "blocked_share": min(1.0, max(0.0, _rate(blocked, period))),
    }
    return facts


def _run_facts(run: EpochKey, ranks: dict[int, int], streams: list[dict[str, Any]]) -> dict[str, Any]:
    ours = [stream for stream in streams if all(stream[name] == value for name, value in run._asdict().items())]
    slowest = min(ranks, key=lambda rank: ranks[rank])
    return {
        **run._asdict(),
        "open_ranks": len(ranks),
        "open_streams": len(ours),
        "num_steps": max(stream["num_steps"] for stream in ours),
        "furthest_step": max(ranks.values()),
        "slowest_step": ranks[slowest],
        "slowest_rank": slowest,
        "lag_steps": max(ranks.values()) - ranks[slowest],
        "bytes_per_second": sum(stream["bytes_per_second"] for stream in ours),
        "blocked_share": sum(stream["blocked_share"] for stream in ours) / len(ours),
    }


def _dataset_facts(
    earlier: dict[int, ServerActivity], after: Sequence[ServerActivity], seconds: float
) -> list[dict[str, Any]]:
    rates: dict[str, list[float]] = {}
    for server in after:
        then = earlier.get(server.process)
        for name, counts in server.sent.items():
            past = then.sent.get(name, (0, 0, 0)) if then else (0, 0, 0)
            period = seconds if then else server.uptime_seconds
            new = [_rate(count - old, period) for count, old in zip(counts, past, strict=True)]
            rates[name] = [sum(pair) for pair in zip(rates.get(name, [0.0] * 3), new, strict=True)]
    return [
        {"dataset": name, "bins_per_second": bins, "sequences_per_second": sequences, "tokens_per_second": tokens}
        for name, (bins, sequences, tokens) in sorted(rates.items())
    ]


def _process_facts(server: ServerActivity, earlier: ServerActivity | None, seconds: float) -> dict[str, Any]:
    """Returns what a process takes, with rates since the look before or since it began."""
    period = seconds if earlier else server.uptime_seconds
    processor = server.processor_seconds - (earlier.processor_seconds if earlier else 0.0)
    beside = server.bytes_without_request - (earlier.bytes_without_request if earlier else 0)
    return {
        "processors": _rate(processor, period),
        "processor_seconds": server.processor_seconds,
        "memory_bytes": server.memory_bytes,
        "memory_limit_bytes": server.memory_limit_bytes,
        "open_files": server.open_files,
        "most_open_files": server.most_open_files,
        "connections": server.num_connections,
        "connections_without_request": server.num_connections_without_request,
        "bytes_without_request_per_second": _rate(beside, period),
    }


def _digest_facts(after: Sequence[ServerActivity]) -> list[dict[str, Any]]:
    """Returns how many streams and runs go on with each digest: what must stay as long as they do."""
    streams: dict[tuple[str, str], list[StreamActivity]] = {}
    for stream in (stream for server in after for stream in server.streams if stream.digest):
        streams.setdefault((stream.dataset, stream.digest), []).append(stream)
    return [
        {"dataset": dataset, "digest": digest, "streams": len(ours), "runs": len({(s.epoch, s.seed) for s in ours})}
        for (dataset, digest), ours in sorted(streams.items())
    ]


def _servers_table(servers: list[dict[str, Any]]) -> Table:
    table = _table("server", "version", "up", "streams", "waiting in lanes")
    for server in servers:
        waiting = ", ".join(f"{name} {number}" for name, number in server["waiting_in_lanes"].items() if number)
        streams = f"{server['streams']} of {server['max_streams']}"
        table.add_row(
            server["address"], server["version"], _time(server["uptime_seconds"]), streams, waiting or "nothing"
        )
    return table


def _processes_table(servers: list[dict[str, Any]]) -> Table:
    table = _table("server", "cores", "memory", "files", "connected", "silent", "stray B/s")
    for server in servers:
        table.add_row(
            server["address"],
            f"{server['processors']:.1f}",
            f"{_number(server['memory_bytes'])} of {_number(server['memory_limit_bytes'])}",
            f"{_number(server['open_files'])} of {_number(server['most_open_files'])}",
            f"{server['connections']:,}",
            f"{server['connections_without_request']:,}",
            _number(server["bytes_without_request_per_second"]),
        )
    return table


def _digests_table(digests: list[dict[str, Any]]) -> Table:
    table = _table("dataset", "streams", "runs")
    table.add_column("digest that they go on with", overflow="fold")
    for each in digests:
        table.add_row(each["dataset"], str(each["streams"]), str(each["runs"]), each["digest"])
    return table


def _datasets_table(datasets: list[dict[str, Any]]) -> Table:
    table = _table("dataset", "bins/s", "sequences/s", "tokens/s")
    for each in datasets:
        rates = (each[f"{what}_per_second"] for what in ("bins", "sequences", "tokens"))
        table.add_row(each["dataset"], *(_number(rate) for rate in rates))
    return table


def _runs_table(runs: list[dict[str, Any]]) -> Table:
    table = _table("run", "epoch", "seed", "ranks", "streams", "step", "slowest rank", "behind", "bytes/s", "waits")
    for run in runs:
        table.add_row(
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
    return table


def _streams_table(streams: list[dict[str, Any]], limit: int) -> Table:
    table = _table(
        "stream", "of", "rank", "worker", "step", "behind", "steps/s", "bytes/s", "waits", "now", "open", "from"
    )
    for stream in streams[:limit]:
        is_packing = not stream["dataset"]
        step = "" if is_packing else f"{stream['next_step']:,} of {stream['num_steps']:,}"
        table.add_row(
            stream["id"],
            stream["dataset"] or stream["method"],
            "" if is_packing else str(stream["rank"]),
            "" if is_packing else str(stream["worker"]),
            step,
            "" if is_packing else f"{stream['behind_steps']:,}",
            "" if is_packing else _number(stream["steps_per_second"]),
            _number(stream["bytes_per_second"]),
            f"{stream['blocked_share']:.0%}",
            _time(stream["waiting_seconds"]),
            _time(stream["open_seconds"]),
            stream["peer"],
        )
    left = len(streams) - limit
    table.caption = f"and {left} more; --limit shows them" if left > 0 else None
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number == 0 or name in ("of", "from", "version") else "right")
    return table


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


def _number(value: float) -> str:
    """A number in four characters or so: 3.1, 812, 46k, 3.2G."""
    for size, unit in _UNITS:
        if value >= size:
            return f"{value / size:.1f}{unit}" if value < 10 * size else f"{value / size:.0f}{unit}"
    return f"{value:.1f}" if 0 < value < 10 else f"{value:.0f}"


def _time(seconds: float) -> str:
    """A time in its largest unit: 0.2 s, 42 s, 2.5 min."""
    if seconds < 0.05:
        return "0"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


@click.command("top", context_settings={"show_default": True})
@target_option
@click.option("--interval", default=2.0, type=Wait(0.1), help="Seconds between two looks; rates are over them.")
@click.option(
    "--limit", default=15, type=click.IntRange(0), help="Show at most this many streams, furthest behind first."
)
@click.option("--once", is_flag=True, help="Look twice, an interval apart, print, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with --once: every stream, whatever --limit says.")
@click.option("--timeout-seconds", default=5.0, type=Wait(0, min_open=True), help="How long an answer may take.")
def command(target: str, interval: float, limit: int, once: bool, as_json: bool, timeout_seconds: float) -> None:
    """Watch the servers of --target: runs and how far their ranks are, streams, rates and queues, until Ctrl-C.

    A rank's step is what has left the server: its trainer holds steps that it has not trained on yet. Waits are times
    in which a block was ready and the trainer did not read, as it should be; a stream that never waits is one that the
    server cannot feed fast enough. Memory is the server's own, without mapped files. A silent connection has sent no
    request, and stray bytes belong to none. A digest must stay on disk as long as streams go on with it.
    """
    if target.startswith("embedded:"):
        raise click.UsageError("--target embedded:DIR is no server; `packhorse inspect` looks into a folder")
    if as_json and not once:
        raise click.UsageError("--json needs --once: a live view is for people")
    access = access_of_command()

    def ask() -> tuple[list[ServerActivity], str]:
        """Returns what those say that answer, and what is wrong with the others."""
        found: list[ServerActivity] = []
        failures: list[ServerUnavailableError] = []
        for each in target.split(","):
            try:
                found += ask_activity(each, access=access, timeout_seconds=timeout_seconds)
            except ServerUnavailableError as failure:
                failures.append(failure)
        if not found:
            raise ServerUnavailableError(f"{failures[0]}; `packhorse doctor --target {target}` goes every step to it")
        return found, "; ".join(f"no answer of {failure}" for failure in failures)

    if once:
        before, _ = ask()
        time.sleep(interval)
        after, trouble = ask()
        facts = facts_between(before, after, interval)
        if as_json:
            click.echo(json.dumps(facts, indent=2))
        else:
            output_console().print(view_of(facts, limit, trouble))
        if trouble:
            raise click.ClickException(trouble)
        return
    _watch(ask, interval, limit)


def _watch(ask: Callable[[], tuple[list[ServerActivity], str]], interval: float, limit: int) -> None:
    """Shows the view until Ctrl-C; servers that are away for a while are shown as they were, with what is wrong."""
    (before, trouble), then = ask(), time.monotonic()
    facts: dict[str, Any] = facts_between([], before, 0.0)
    with Live(view_of(facts, limit, trouble), console=output_console(), screen=True, auto_refresh=False) as live:
        while True:
            try:
                time.sleep(interval)
                (after, trouble), now = ask(), time.monotonic()
                facts = facts_between(before, after, now - then)
                before, then = after, now
            except PackhorseError as error:
                trouble = f"no answer, so this is old: {error}"
            except KeyboardInterrupt:
                return
            live.update(view_of(facts, limit, trouble), refresh=True)
