"""Options that several commands share: --timeout-seconds, --target, --epoch, --seed, DATASET, and a topology's flags.

Owns their names and help texts. Leaves flags made from the fields of a dataclass to `flags`, --profile to `profiles`,
--tokens to `tokens`, and connecting to `service`.
"""

import math
import os
from collections.abc import Callable
from typing import Any

import click

from packhorse.cli.shared.flags import flags_of
from packhorse.cli.shared.profiles import of_profile, profile_option
from packhorse.cli.shared.spelling import in_flags
from packhorse.formats.retry_policy import TIMEOUT_VARIABLE
from packhorse.parameters import message_of
from packhorse.topology import Skips, Topology


class Seconds(click.FloatRange):
    """A time in seconds. NaN is refused: click's check of the range would let it pass."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the number of seconds that was typed."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return seconds


_LONGEST_WAIT_SECONDS = 1e9
"""About thirty years; sockets and gRPC accept no infinite time."""


class Wait(Seconds):
    """A time to wait for an answer; `inf` becomes `_LONGEST_WAIT_SECONDS`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the number of seconds, at most `_LONGEST_WAIT_SECONDS`."""
        return min(super().convert(value, param, ctx), _LONGEST_WAIT_SECONDS)


def remote_timeout_option(command: Callable[..., Any], *, help_text: str = "", **options: Any) -> Callable[..., Any]:
    """Adds --timeout-seconds: how long a command keeps trying to read from servers and object stores.

    While the command runs, the value is also in the environment, so that child processes use it.

    Args:
        command: the command's function.
        help_text: the help; empty for the help about object stores.
        options: further arguments of `click.option`.
    """

    def keep(context: click.Context, option: click.Parameter, value: float | None) -> float | None:
        """Returns the value, from a flag or a profile, and keeps it in the environment until the command ends."""
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
        help=help_text
        or "How long to keep trying without an answer from an object store.  [default: 10 if it has never answered, "
        "120 if the connection was lost]",
        **options,
    )(command)


def store_timeout_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --timeout-seconds to a command that connects only to object stores."""
    return remote_timeout_option(command, expose_value=False)


def _restore(before: str | None) -> None:
    """Gives the timeout's environment variable the value that it had before; None if it was not set."""
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
    """Adds the flags of a topology and --skip; the command receives them as `topology` and `skip`."""

    def parse(context: click.Context, option: click.Parameter, value: tuple[str, ...]) -> Skips:
        """Returns the positions of --skip."""
        try:
            return Skips.parse(value)
        except ValueError as error:
            raise click.UsageError(in_flags(message_of(error), [option])) from None

    skip = click.option(
        "--skip", multiple=True, metavar="FIRST:END", callback=parse, help="Positions to leave out, e.g. 1200:1300."
    )
    return flags_of(Topology, "topology", leave_out=leave_out)(skip(command))
