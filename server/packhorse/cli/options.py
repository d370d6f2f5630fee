"""Options that several commands share: where the service is, and which part of which epoch.

Owns their names and help; each command takes those that it needs.
"""

from collections.abc import Callable
from typing import Any

import click

from packhorse.client import RemainderPolicy


def target_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --target."""
    return click.option(
        "--target",
        envvar="PACKHORSE_TARGET",
        show_envvar=True,
        default="127.0.0.1:50051",
        help="Server (HOST:PORT, several with commas, dns:///HOST:PORT, unix:PATH), or embedded:DIR for none.",
    )(command)


def epoch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --dataset, --epoch and --seed."""
    for option in (
        click.option("--seed", default=0, type=click.IntRange(0), help="Seed of the run."),
        click.option("--epoch", default=0, type=click.IntRange(0), help="Epoch, 0-based."),
        click.option("--dataset", required=True, help="The dataset's name: its folder's name."),
    ):
        command = option(command)
    return command


def topology_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --world-size, --workers-per-rank, --batch-size, --start-position and --remainder."""
    for option in (
        click.option(
            "--remainder",
            default="spread",
            type=click.Choice([policy.value for policy in RemainderPolicy]),
            help="What happens to a last step that is not full.",
        ),
        click.option("--start-position", default=0, type=click.IntRange(0), help="Position where step 0 begins."),
        click.option("--batch-size", default=1, type=click.IntRange(1), help="Bins per rank and step."),
        click.option("--workers-per-rank", default=1, type=click.IntRange(1), help="Dataloader workers of a rank."),
        click.option("--world-size", default=1, type=click.IntRange(1), help="Data-parallel degree."),
    ):
        command = option(command)
    return command
