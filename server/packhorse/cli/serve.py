"""`packhorse serve`: a server of every prepared dataset below a folder.

Owns the flags and the lines on stdout. Leaves the checks of options to `packhorse.server.app.config`, and serving to
`packhorse.server.app.running` or, with --processes, `packhorse.server.app.processes`.
"""

import asyncio
import dataclasses
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from packhorse.server.app.config import ServeConfig
from packhorse.server.base.logs import LEVELS, fields, set_up_logging
from packhorse.server.base.output import never_wait_for_stderr
from packhorse.storage import never_wait_for_files, within

_LOG = logging.getLogger(__name__)

_STDOUT_SECONDS = 1.0
"""How long a server that starts or ends waits if nobody reads its stdout."""

_DEFAULTS = {field.name: field.default for field in dataclasses.fields(ServeConfig)}
"""Field of `ServeConfig` → its default; MISSING for a field that the user must give."""


def _option(flag: str, **options: Any) -> Callable[..., Any]:
    """Returns a decorator that adds an option to `serve`, with the default of ServeConfig's field.

    A container can set the option by an environment variable, such as PACKHORSE_DATA_ROOT.
    """
    name = flag.partition("/")[0].removeprefix("--").replace("-", "_")
    if _DEFAULTS[name] not in (dataclasses.MISSING, None):
        options["default"] = _DEFAULTS[name]
    return click.option(flag, envvar=f"PACKHORSE_{name.upper()}", show_envvar=True, **options)


_PATH = click.Path(path_type=Path)


@click.command("serve", context_settings={"show_default": True})
@_option(
    "--data-root",
    required=True,
    type=_PATH,
    help="Folder of prepared datasets; each is served under its folder's name.",
)
@_option("--listen", help="HOST:PORT (port 0 for a free one) or unix:PATH.")
@_option("--metrics-listen", help="HOST:PORT of /metrics for Prometheus; without it there are no metrics.")
@_option(
    "--status-page/--no-status-page",
    help="Whether --metrics-listen also has /status, a page for people: of all processes together.",
)
@_option("--grace-seconds", help="How long open streams may take to end after SIGTERM.")
@_option("--max-streams", help="Streams open at once; further ones are refused with a retry delay.")
@_option(
    "--processes",
    help="Processes that share the port, if one core cannot feed all streams. --max-streams applies to all of them "
    "together. Linux only.",
)
@_option("--tls-cert", type=_PATH, help="The server's certificate (PEM), for both ports. Read again when it changes.")
@_option("--tls-key", type=_PATH, help="The certificate's private key (PEM, no passphrase).")
@_option("--tls-client-ca", type=_PATH, help="Only clients with a certificate from these CAs (PEM) may connect.")
@_option(
    "--tokens",
    multiple=True,
    is_flag=False,
    flag_value="auto",
    metavar="[NAME=PATH]",
    help="Send tokens too, for loaders that name none. By itself: those that each dataset was prepared from, so "
    "whoever writes --data-root chooses what is read. NAME=PATH: a dataset's, by path or URL. FILE.toml: a table "
    "[tokens] of them.",
)
@_option(
    "--token-file",
    type=_PATH,
    help="Every call needs a token from this file, which `packhorse token new` writes. Read again when it changes.",
)
@_option(
    "--insecure",
    is_flag=True,
    help="Listen without TLS where other machines can connect: anyone who reaches the port can read everything.",
)
@_option("--reflection/--no-reflection", help="Whether gRPC's server reflection describes the service.")
@_option(
    "--workarounds/--no-workarounds",
    help="Whether the server works around known faults: of gRPC (a malformed request closes the port; a cancelled "
    "call leaks memory) and of the system (a mapped file that is cut ends the process).",
)
@_option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="Format of the log on stderr. With json, the lines on stdout go to the log too.",
)
@_option(
    "--log-level",
    type=click.Choice(LEVELS),
    help="The least severe messages that are logged. At debug every call has a line.",
)
@_option(
    "--otlp-endpoint",
    metavar="URL",
    help="Send traces to this collector (OTLP over HTTP), e.g. http://collector:4318; needs packhorse[otel].",
)
def command(**options: Any) -> None:
    """Serve prepared datasets over gRPC until SIGTERM."""
    config = ServeConfig(**options)
    set_up_logging(config.log_format, config.log_level)
    never_wait_for_stderr()
    never_wait_for_files()
    ready = _announce if config.log_format == "text" else _log_announcement
    status = 0
    if config.processes == 1:
        from packhorse.server.app.running import serve

        asyncio.run(serve(config, ready=ready))
    else:
        from packhorse.server.app.processes import serve_in_processes

        status = asyncio.run(serve_in_processes(config, ready=ready))
    logging.shutdown()
    with suppress(OSError):
        within("stdout", sys.stdout.flush, _STDOUT_SECONDS)
    os._exit(status)  # without waiting for threads that are inside kernels


def _announce(address: str, metrics_url: str | None, datasets: list[str]) -> None:
    """Prints addresses and datasets on stdout; if it cannot be written (a full disk, a closed pipe), logs them."""
    metrics = [] if metrics_url is None else [f"metrics at {metrics_url}"]
    names = ", ".join(name if name.isprintable() else repr(name) for name in datasets)
    lines = (f"serving {names}", *metrics, f"listening on {address}")
    try:
        within("stdout", lambda: click.echo("\n".join(f"packhorse: {line}" for line in lines)), _STDOUT_SECONDS)
    except OSError as error:
        why = "nobody reads it" if isinstance(error, TimeoutError) else error.strerror
        _LOG.warning("stdout cannot be written: %s", why)
        _log_announcement(address, metrics_url, datasets)


def _log_announcement(address: str, metrics_url: str | None, datasets: list[str]) -> None:
    """Logs addresses and datasets, for readers of the log alone."""
    _LOG.info("listening", extra=fields(address=address, metrics=metrics_url, datasets=", ".join(datasets)))
