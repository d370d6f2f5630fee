"""Options that several commands share: where the service is, which part of which epoch, and where long work is done.

Owns their names and help; each command takes those that it needs.
"""

import math
import os
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any

import click
from click.core import ParameterSource

from packhorse.cli.shared.profiles import read_profile
from packhorse.formats.asking import TIMEOUT_VARIABLE
from packhorse.topology import (
    DEFAULT_COST_LINEAR,
    Balance,
    BatchSchedule,
    RemainderPolicy,
    Skips,
    Topology,
)


class Seconds(click.FloatRange):
    """A time in seconds; NaN, which is neither below nor above anything, is none."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the number."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return seconds


class Wait(Seconds):
    """A time to wait for an answer: `inf` is thirty years, since sockets and gRPC take no longer ones."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the number."""
        return min(super().convert(value, param, ctx), 1e9)


class Schedule(click.ParamType):  # type: ignore[type-arg] # click before 8.4 has no parameter here
    """Global batch sizes, each from some point of the run on."""

    name = "schedule"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> BatchSchedule:
        """Returns the schedule."""
        try:
            return BatchSchedule.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def remote_timeout_option(command: Callable[..., Any], *, says: str = "", **options: Any) -> Callable[..., Any]:
    """Adds --timeout-seconds for all that is remote, also in child processes, for as long as the command works."""

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
        or "How long to go on without an answer of an object store.  [default: 10 where it has never "
        "answered, 120 where it was lost]",
        **options,
    )(command)


def store_timeout_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --timeout-seconds to a command that asks nothing but object stores."""
    return remote_timeout_option(command, expose_value=False)


def _restore(before: str | None) -> None:
    os.environ.pop(TIMEOUT_VARIABLE, None)
    if before is not None:
        os.environ[TIMEOUT_VARIABLE] = before


PROFILE = f"{__name__}.profile"
"""Where a command's context keeps the profile that --profile names."""


def profile_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --profile; `service.access_of_command` returns the certificates and tokens that it names."""

    def keep(context: click.Context, option: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.meta[PROFILE] = read_profile(value)

    return click.option(
        "--profile",
        metavar="NAME",
        envvar="PACKHORSE_PROFILE",
        show_envvar=True,
        callback=keep,
        expose_value=False,
        is_eager=True,
        help="How the server is reached: target, ca, cert, key, token_file, insecure and timeout_seconds of [NAME] in "
        "~/.config/packhorse/profiles.toml, or in the file of PACKHORSE_PROFILES. It comes before PACKHORSE_CLIENT_… "
        "variables; flags come before it.",
    )(command)


def of_profile(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """Returns an option's value: the profile's where the command line does not give one."""
    if context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE:
        return value
    return context.meta.get(PROFILE, {}).get(option.name, value)


def target_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --target and --profile."""
    return click.option(
        "--target",
        envvar="PACKHORSE_TARGET",
        show_envvar=True,
        default="127.0.0.1:50051",
        callback=of_profile,
        help="Server (HOST:PORT, several with commas, dns:///HOST:PORT, unix:PATH), or embedded:DIR for none.",
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
    """Adds the argument DATASET: a prepared folder, a mixture's file, or a name of --target's."""
    return click.argument("dataset")(command)


def ray_address_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --ray-address, for commands with an --engine."""
    return click.option(
        "--ray-address",
        metavar="ADDRESS",
        help="The cluster of --engine ray.  [default: the environment variable RAY_ADDRESS, else this machine alone]",
    )(command)


def topology_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a topology, which the command gets as one argument `topology`, and --skip as `skip`."""

    @wraps(command)
    def with_topology(*arguments: Any, skip: tuple[str, ...], **options: Any) -> Any:
        shape = {field.name: options.pop(field.name) for field in fields(Topology) if field.name in options}
        try:
            topology, skips = Topology(**shape), Skips.parse(skip)
        except ValueError as error:
            raise click.UsageError(f"--{error}") from None
        return command(*arguments, topology=topology, skip=skips, **options)

    decorated: Callable[..., Any] = with_topology
    for option in (
        click.option("--skip", multiple=True, metavar="FIRST:END", help="Positions to leave out, e.g. 1200:1300."),
        click.option(
            "--cost-linear",
            default=DEFAULT_COST_LINEAR,
            type=click.IntRange(0),
            help="Cost of a token beside attention: a sequence of L tokens costs this times L, plus L².",
        ),
        click.option("--accumulation", default=1, type=click.IntRange(1), help="Steps of one optimizer step."),
        click.option(
            "--balance",
            default="none",
            type=click.Choice([balance.value for balance in Balance]),
            help="Where ranks wait for each other, and so what is made equal.",
        ),
        click.option(
            "--remainder",
            default="spread",
            type=click.Choice([policy.value for policy in RemainderPolicy]),
            help="What happens to a last step that is not full.",
        ),
        click.option("--start-position", default=0, type=click.IntRange(0), help="Position where step 0 begins."),
        click.option(
            "--batch-schedule",
            type=Schedule(),
            help="Instead of --batch-size: bins of all ranks in an optimizer step, each number from some point of the "
            'run on, in bins or in tokens with K, M, B or T: "0:768 250B:1536".',
        ),
        click.option("--batch-size", default=1, type=click.IntRange(1), help="Bins per rank and step."),
        click.option("--workers-per-rank", default=1, type=click.IntRange(1), help="Dataloader workers of a rank."),
        click.option("--world-size", default=1, type=click.IntRange(1), help="Data-parallel degree."),
    ):
        decorated = option(decorated)
    return decorated
