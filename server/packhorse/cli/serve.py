"""`packhorse serve`: a server of every prepared dataset below a folder."""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

import click

from packhorse.server.app import serve
from packhorse.server.config import ServeConfig


@click.command("serve", context_settings={"show_default": True})
@click.option(
    "--data-root",
    envvar="PACKHORSE_DATA_ROOT",
    show_envvar=True,
    required=True,
    type=click.Path(path_type=Path),
    help="Folder of prepared datasets; each is served by its folder's name.",
)
@click.option(
    "--listen",
    envvar="PACKHORSE_LISTEN",
    show_envvar=True,
    default="127.0.0.1:50051",
    help="HOST:PORT (port 0 for a free one) or unix:PATH.",
)
@click.option(
    "--metrics-listen",
    envvar="PACKHORSE_METRICS_LISTEN",
    show_envvar=True,
    default=None,
    help="HOST:PORT of Prometheus' /metrics; none when left out.",
)
@click.option(
    "--grace-seconds",
    envvar="PACKHORSE_GRACE_SECONDS",
    show_envvar=True,
    default=30.0,
    help="How long open streams may take to end after SIGTERM.",
)
@click.option(
    "--max-streams",
    envvar="PACKHORSE_MAX_STREAMS",
    show_envvar=True,
    default=4096,
    help="Streams open at once; further ones are refused with a retry delay.",
)
@click.option(
    "--tls-cert",
    envvar="PACKHORSE_TLS_CERT",
    show_envvar=True,
    type=click.Path(path_type=Path),
    help="The server's certificate (PEM), for both ports. Read again when it changes.",
)
@click.option(
    "--tls-key",
    envvar="PACKHORSE_TLS_KEY",
    show_envvar=True,
    type=click.Path(path_type=Path),
    help="The certificate's private key (PEM, no passphrase).",
)
@click.option(
    "--tls-client-ca",
    envvar="PACKHORSE_TLS_CLIENT_CA",
    show_envvar=True,
    type=click.Path(path_type=Path),
    help="Only clients with a certificate of these CAs (PEM) may connect.",
)
@click.option(
    "--token-file",
    envvar="PACKHORSE_TOKEN_FILE",
    show_envvar=True,
    type=click.Path(path_type=Path),
    help="Every call needs a token of this file, which `packhorse token new` writes. Read again when it changes.",
)
@click.option(
    "--insecure",
    is_flag=True,
    envvar="PACKHORSE_INSECURE",
    show_envvar=True,
    help="Listen in plain text where other machines can connect: whoever reaches the port can read everything.",
)
@click.option(
    "--reflection/--no-reflection",
    default=True,
    envvar="PACKHORSE_REFLECTION",
    show_envvar=True,
    help="Whether gRPC's server reflection describes the service.",
)
def command(**options: Any) -> None:
    """Serve prepared datasets over gRPC until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = ServeConfig(**options)
    asyncio.run(serve(config, ready=_announce))
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)  # without waiting for threads that are inside kernels


def _announce(address: str, metrics_url: str | None, datasets: list[str]) -> None:
    click.echo(f"packhorse: serving {', '.join(datasets)}")
    if metrics_url is not None:
        click.echo(f"packhorse: metrics at {metrics_url}")
    click.echo(f"packhorse: listening on {address}")
