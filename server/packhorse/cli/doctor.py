"""`packhorse doctor`: what lies between this machine and a server's first bin, one line a step."""

import click

from packhorse.cli.options import Wait, access_options
from packhorse.cli.service import access_of_command
from packhorse.client.proof import diagnose


@click.command("doctor", context_settings={"show_default": True})
@click.argument("target", default="127.0.0.1:50051")
@access_options
@click.option("--dataset", help="Whose first bin is asked for.  [default: the first that there is]")
@click.option("--timeout-seconds", default=5.0, type=Wait(0, min_open=True), help="How long each step may take.")
@click.pass_context
def command(context: click.Context, /, target: str, dataset: str | None, timeout_seconds: float) -> None:
    """Go every step from here to the first bin of TARGET, and explain the one that fails.

    The steps are DNS, TCP, TLS, auth, versions, health, datasets and first bin, for every host that TARGET names. Exits
    with 1 when one fails; the steps after it are left out. A line that begins with ! is a warning: of plain text on a
    network, say, or of a certificate or token, the client's own too, that expires within two weeks.
    """
    if target.startswith("embedded:"):
        raise click.UsageError("TARGET embedded:DIR is no server; `packhorse inspect` looks into a folder")
    is_good = True
    for finding in diagnose(target, access=access_of_command(), dataset=dataset, timeout_seconds=timeout_seconds):
        click.echo(str(finding))
        is_good = is_good and finding.is_good
    context.exit(0 if is_good else 1)
