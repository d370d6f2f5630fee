"""`packhorse top`: what servers do now, as a live view or as JSON."""

import json
import time
from collections.abc import Callable
from typing import Any

import click
from rich.live import Live

from packhorse.cli.activity_view import facts_between, view_of
from packhorse.cli.console import output_console
from packhorse.cli.options import Wait, target_option
from packhorse.cli.service import access_of_command
from packhorse.client import PackhorseError
from packhorse.client.errors import ServerUnavailableError
from packhorse.client.proof import ServerActivity, ask_activity


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
