"""`packhorse doctor`: every step from this machine to a server's first bin, one line each; or the server's health.

Owns the flags and the exit status. Leaves the steps and their explanations to `packhorse.proof.doctor`.
"""

import re

import click

from packhorse.cli.shared.options import target_option
from packhorse.cli.shared.service import access_of_command, check_one_server
from packhorse.cli.shared.timeouts import Wait
from packhorse.client import PackhorseError
from packhorse.proof import ask_health, diagnose

_ANY_ADDRESS = re.compile(r"(?<![\w.-])0\.0\.0\.0:")
"""The host 0.0.0.0 in a target, and not the end of another, such as 10.0.0.0."""


@click.command("doctor", context_settings={"show_default": True})
@click.argument("dataset", required=False)
@target_option
@click.option("--timeout-seconds", default=5.0, type=Wait(0, min_open=True), help="How long each step may take.")
@click.option(
    "--health",
    "service",
    is_flag=False,
    flag_value="packhorse.v1.PackingService",
    metavar="[SERVICE]",
    help="Only ask for health, as probes do: of the service, or with --health= of the process.",
)
@click.pass_context
def command(
    context: click.Context, /, dataset: str | None, target: str, timeout_seconds: float, service: str | None
) -> None:
    """Test each step from here to the first bin of --target, or ask for its health.

    For every host of --target, the steps are DNS, TCP, TLS, auth, versions, health, datasets and first bin (of DATASET,
    or of the server's first dataset). If a step fails, the command explains why, skips later steps, and exits with 1. A
    line that begins with ! is a warning, for example about a connection without TLS, or about a certificate or token
    that expires soon.

    With --health it exits with 0 if the server serves, and with 1 if not. NOT_SERVING means that it is starting or
    draining, makes no blocks, or has no usable dataset; its log says which.
    """
    if target.startswith("embedded:"):
        raise click.UsageError("--target embedded:DIR is not a server; `packhorse inspect` looks into a folder")
    if service is not None:
        context.exit(_print_health(target, timeout_seconds, service))
    is_good = True
    for finding in diagnose(target, access=access_of_command(), dataset=dataset, timeout_seconds=timeout_seconds):
        click.echo(str(finding))
        is_good = is_good and finding.is_good
    context.exit(0 if is_good else 1)


def _print_health(target: str, timeout_seconds: float, service: str) -> int:
    """Prints a server's health, and returns the exit status: 0 if the server serves, else 1."""
    check_one_server(target)
    # A server listens at 0.0.0.0, every address of its machine, and a probe may copy that: it means this machine.
    target = _ANY_ADDRESS.sub("127.0.0.1:", target)
    try:
        status = ask_health(target, access=access_of_command(), timeout_seconds=timeout_seconds, service=service)
    except PackhorseError as error:
        click.echo(str(error), err=True)
        return 1
    click.echo(f"{target}: {status}")
    return 0 if status == "SERVING" else 1
