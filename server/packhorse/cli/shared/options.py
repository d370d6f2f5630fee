"""Options that several commands share: a timeout, which part of which epoch, and the shape of a run.

Owns their names and help. Leaves flags made of fields to `flags`, how a server is reached to `profiles`, tokens to
`tokens`, connecting to `service`, and which values go together to the options object.
"""

import math
import os
from collections.abc import Callable
from typing import Any

import click

from packhorse.cli import in_flags
from packhorse.cli.shared.flags import flags_of
from packhorse.cli.shared.profiles import of_profile, profile_option
from packhorse.formats.retry_policy import TIMEOUT_VARIABLE
from packhorse.parameters import message_of
from packhorse.topology import Skips, Topology


class Seconds(click.FloatRange):
    """A time in seconds. NaN, which passes every comparison of a range, is refused."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the number."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return seconds


class Wait(Seconds):
    """A time to wait for an answer: `inf` becomes thirty years, the longest that sockets and gRPC accept."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the number."""
        return min(super().convert(value, param, ctx), 1e9)


def remote_timeout_option(command: Callable[..., Any], *, says: str = "", **options: Any) -> Callable[..., Any]:
    """Adds --timeout-seconds for everything remote, in child processes too, while the command runs."""

    def keep(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
        value = of_profile(context, option, value)
        if value is not None:
            before = os.environ.get(TIMEOUT_VARIABLE)
            os.environ[TIMEOUT_VARIABLE] = repr(value)
            context.call_on_close(lambda: _restore(before))
        return value

    return click.option(
        "--timeout-seconds",
        type=Seconds(0, min_open=True),
        metavar="S",
        envvar=TIMEOUT_VARIABLE,
        show_envvar=True,
        callback=keep,
        help=says
        or "How long to keep trying without an answer from an object store.  [default: 10 if it has never answered, "
        "120 if the connection was lost]",
        **options,
    )(command)


def store_timeout_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --timeout-seconds to a command that connects only to object stores."""
    return remote_timeout_option(command, expose_value=False)


def _restore(before: str | None) -> None:
    os.environ.pop(TIMEOUT_VARIABLE, None)
    if before is not None:
        os.environ[TIMEOUT_VARIABLE] = before


def target_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --target and --profile."""
    return click.option(
        "--target",
        envvar="PACKHORSE_TARGET",
        show_envvar=True,
        default="127.0.0.1:50051",
        callback=of_profile,
        help="Server (HOST:PORT, several with commas, dns:///HOST:PORT, unix:PATH), or embedded:DIR for a folder.",
    )(profile_option(command))


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --epoch and --seed."""
    for option in (
        click.option("--seed", default=0, type=click.IntRange(0), help="Seed of the run."),
        click.option("--epoch", default=0, type=click.IntRange(0), help="Epoch, 0-based."),
    ):
        command = option(command)
    return command


def dataset_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the argument DATASET: a prepared folder, a mixture's file, or a name at --target."""
    return click.argument("dataset")(command)


def topology_options(command: Callable[..., Any], *, leave_out: tuple[str, ...] = ("mode",)) -> Callable[..., Any]:
    """Adds the flags of a topology, which the command receives as `topology`, and --skip as `skip`."""

    def parse(context: click.Context, option: click.Parameter, value: tuple[str, ...]) -> Skips:
        try:
            return Skips.parse(value)
        except ValueError as error:
            raise click.UsageError(in_flags(message_of(error), [option])) from None

    skip = click.option(
        "--skip", multiple=True, metavar="FIRST:END", callback=parse, help="Positions to leave out, e.g. 1200:1300."
    )
    return flags_of(Topology, "topology", leave_out=leave_out)(skip(command))
