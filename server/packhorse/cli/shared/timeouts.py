"""The option --timeout-seconds, and times in seconds as the values of options.

Leaves trying again until the time is over to whoever reads from a server or a store.
"""

import math
import os
from collections.abc import Callable
from typing import Any

import click

from packhorse.cli.shared.profiles import of_profile
from packhorse.formats.retry_policy import TIMEOUT_VARIABLE


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
    """Adds --timeout-seconds to a command that connects only to object stores; readers find it in the environment."""
    return remote_timeout_option(command, expose_value=False)


def _restore(before: str | None) -> None:
    """Gives the timeout's environment variable the value that it had before; None if it was not set."""
    os.environ.pop(TIMEOUT_VARIABLE, None)
    if before is not None:
        os.environ[TIMEOUT_VARIABLE] = before
