"""Options that several commands share: --target, --epoch, --seed, DATASET, a topology's flags, and --skip.

Owns their names and help texts. Leaves flags made from the fields of a dataclass to `flags`, --profile to `profiles`,
--timeout-seconds to `timeouts`, --tokens to `tokens`, and connecting to `service`.
"""

from collections.abc import Callable
from typing import Any

import click

from packhorse.cli.shared.flags import flags_of
from packhorse.cli.shared.profiles import of_profile, profile_option
from packhorse.cli.shared.spelling import in_flags
from packhorse.parameters import message_of
from packhorse.topology import Skips, Topology
from packhorse.wire import DEFAULT_ADDRESS


def target_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --target and --profile."""
    return click.option(
        "--target",
        envvar="PACKHORSE_TARGET",
        show_envvar=True,
        default=DEFAULT_ADDRESS,
        callback=of_profile,
        help="Server (HOST:PORT, several with commas, dns:///HOST:PORT, unix:PATH), or embedded:DIR for a folder.",
    )(profile_option(command))


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --epoch and --seed."""
    for option in (  # as decorators, the last of which --help shows first
        click.option("--seed", default=0, type=click.IntRange(0), help="Seed of the run."),
        click.option("--epoch", default=0, type=click.IntRange(0), help="Epoch, 0-based."),
    ):
        command = option(command)
    return command


def dataset_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the argument DATASET: a prepared folder, a mixture's file, or a name at --target."""
    return click.argument("dataset")(command)


def topology_options(command: Callable[..., Any], *, leave_out: tuple[str, ...] = ("mode",)) -> Callable[..., Any]:
    """Adds the flags of a topology and --skip; the command receives them as `topology` and `skip`.

    `leave_out` has fields of `Topology` without a flag: by default the mode, so that the ranks share the epoch.
    """

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
