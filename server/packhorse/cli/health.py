"""`packhorse health`: whether a server serves, as its exit status; made for container health checks."""

import click

from packhorse.cli.options import Wait, target_option
from packhorse.cli.service import access_of_command, check_one_server
from packhorse.client import PackhorseError
from packhorse.client.proof import ask_health


@click.command("health", context_settings={"show_default": True})
@target_option
@click.option("--timeout-seconds", default=5.0, type=Wait(0, min_open=True), help="How long to wait for an answer.")
@click.option(
    "--service",
    default="packhorse.v1.PackingService",
    help="Whose health: of the service, whether it makes blocks and has datasets; empty for the process.",
)
@click.pass_context
def command(context: click.Context, /, target: str, timeout_seconds: float, service: str) -> None:
    """Ask a server whether it serves. Exits with 0 when it does, with 1 when not.

    NOT_SERVING: it starts or drains, makes no blocks, or has no dataset that it can serve; its log says which.
    """
    check_one_server(target)
    target = target.replace("0.0.0.0:", "127.0.0.1:")
    try:
        status = ask_health(target, access=access_of_command(), timeout_seconds=timeout_seconds, service=service)
    except PackhorseError as error:
        click.echo(str(error), err=True)
        context.exit(1)
    click.echo(f"{target}: {status}")
    context.exit(0 if status == "SERVING" else 1)
