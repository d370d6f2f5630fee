"""`packhorse token`: makes access tokens for a server."""

import errno
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from packhorse.server.access.bearer_tokens import (
    METHODS,
    ONLY_BY_NAME,
    Grant,
    TokenFile,
    hash_of,
    new_token,
    parse_time,
)

_DAYS = re.compile(r"(\d{1,5})d")
"""--expires in days from now: up to 273 years, so that the time is before the year 9999, where datetimes end."""


@click.group("token")
def command() -> None:
    """Make tokens for `packhorse serve --token-file`."""


@command.command("new", context_settings={"show_default": True})
@click.argument("name")
@click.option(
    "--token-file",
    envvar="PACKHORSE_TOKEN_FILE",
    show_envvar=True,
    required=True,
    type=click.Path(path_type=Path),
    help="The server's token file, created if missing. It receives the token's hash, not the token.",
)
@click.option(
    "--datasets", default="*", help="Patterns of the datasets that it grants, with commas, e.g. 'corpus*,books'."
)
@click.option(
    "--methods",
    default="*",
    help=f"Patterns of the methods that it grants, with commas, of {', '.join(METHODS)}. No pattern includes "
    f"{', '.join(ONLY_BY_NAME)}, which make changes or show text, and must be named.",
)
@click.option(
    "--expires",
    metavar="TIME",
    default="90d",
    help="When it expires: days from now (90d), a time in UTC (2031-01-01), or never.",
)
def new(name: str, token_file: Path, datasets: str, methods: str, expires: str) -> None:
    """Make a token for NAME, and print it once.

    The token goes to stdout: redirect it into a file that only its holder can read. Running servers notice the new
    line. To revoke a token, delete its line; to revoke all, delete the file.
    """
    names = [grant.name for grant in TokenFile(token_file).grants()] if token_file.exists() else []
    if name in names:
        raise ValueError(f"{token_file} already has a token named {name}; delete its line, or choose another name")
    token = new_token()
    grant = Grant(
        name=name,
        hash=hash_of(token),
        datasets=tuple(datasets.split(",")),
        methods=tuple(methods.split(",")),
        expires=_end(expires),
    )
    if grant.has_expired:
        raise ValueError(f"--expires {expires} is in the past")
    _append(token_file, f"{grant}\n")
    click.echo(f"added to {token_file}: {name} for datasets {datasets}, methods {methods}, until {expires}", err=True)
    click.echo(token)


def _end(expires: str) -> datetime | None:
    """Returns the time that --expires gives: days from now (90d), a time, or None for never."""
    if expires == "never":
        return None
    if days := _DAYS.fullmatch(expires):
        return datetime.now(UTC).replace(microsecond=0) + timedelta(days=int(days[1]))
    return parse_time(expires)


def _append(path: Path, line: str) -> None:
    """Adds a line to a file in a single write, so that a server that reads meanwhile sees all of the line or nothing.

    Raises:
        OSError: the disk is full; the file is as it was.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with open(descriptor, "rb+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        begins_line = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
        data = line.encode() if begins_line else f"\n{line}".encode()
        if file.write(data) < len(data):
            file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(descriptor)
