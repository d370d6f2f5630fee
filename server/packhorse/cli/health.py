"""`packhorse health`: whether a server serves, as its exit status; made for container health checks."""

import click
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from packhorse.cli.options import Seconds, target_option
from packhorse.client import connect


@click.command("health", context_settings={"show_default": True})
@target_option
@click.option("--timeout-seconds", default=5.0, type=Seconds(0, min_open=True), help="How long to wait for an answer.")
@click.pass_context
def command(context: click.Context, /, target: str, timeout_seconds: float) -> None:
    """Ask a server whether it serves. Exits with 0 when it does, with 1 when not."""
    if target.startswith("embedded:"):
        raise click.UsageError("--target embedded:DIR is no server; ask one by HOST:PORT")
    if not target.startswith("unix:") and "," in target:
        raise click.UsageError("--target names several servers; ask each of them")
    target = target.replace("0.0.0.0:", "127.0.0.1:")
    connect(target).close()  # refuses what can never work, and connects to nothing
    with grpc.insecure_channel(target) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=timeout_seconds, wait_for_ready=True
            )
        except grpc.RpcError as error:
            click.echo(f"{target}: {error.code().name}: {error.details()}", err=True)
            context.exit(1)
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    click.echo(f"{target}: {status}")
    context.exit(0 if status == "SERVING" else 1)
