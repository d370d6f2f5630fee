"""How a command connects to a server, or to a folder in its own process.

Leaves what stderr shows while no server answers to `_status_line`.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from packhorse.cli.shared._status_line import StatusLine
from packhorse.cli.shared.profiles import ACCESS_KEYS, PROFILE
from packhorse.cli.shared.timeouts import remote_timeout_option
from packhorse.client import Access, Client, RetryPolicy, connect
from packhorse.client.errors import ServerUnavailableError

# As in packhorse.dataset; repeated here, so that asking a server imports nothing that opens folders.
_MANIFEST, _MIXTURE_SUFFIX = "manifest.json", ".mixture.toml"


def timeout_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --timeout-seconds."""
    help_text = (
        "How long to keep trying without an answer.  [default: 10 if the server has never answered, 120 if the "
        "connection was lost; a server that nothing names is asked once]"
    )
    return remote_timeout_option(command, help_text=help_text)


def access_of_command() -> Access:
    """Returns the certificates and token of this command's --profile; `connect` adds those of the environment."""
    return Access(**_options_of_access())


def _options_of_access() -> dict[str, Any]:
    """Returns the arguments of `Access` that the command's --profile has."""
    context = click.get_current_context(silent=True)
    profile = {} if context is None else context.meta.get(PROFILE, {})
    return {key: profile[key] for key in ACCESS_KEYS if key in profile}


@contextmanager
def asking(target: str, timeout_seconds: float | None) -> Iterator[Client]:
    """Connects a command to the service. While no server answers, stderr says so.

    On a terminal it does so in one line, which is rewritten and then removed; elsewhere, in a line for each attempt. If
    neither the command nor the environment names a server, there may be none, so the default address is tried once.
    """
    retry = None if timeout_seconds is not None or _is_target_named() else RetryPolicy(connect_seconds=0)
    line = StatusLine()
    logger = logging.getLogger("packhorse")
    logger.addHandler(line)
    try:
        with connect(target, timeout_seconds=timeout_seconds, retry=retry, **_options_of_access()) as client:
            yield client
    finally:
        logger.removeHandler(line)
        line.clear()


@contextmanager
def asking_for(target: str, timeout_seconds: float | None, dataset: str) -> Iterator[tuple[Client, str]]:
    """Connects a command to a dataset: in the service, or in the prepared folder that the argument names.

    Yields:
        A client, and the dataset's name there.

    Raises:
        ClickException: nothing is prepared there, or there is neither a folder nor a server.
    """
    path = Path(dataset).resolve()
    if (path / _MANIFEST).is_file():
        target, dataset = f"embedded:{path.parent}", path.name
    elif path.name.endswith(_MIXTURE_SUFFIX) and path.is_file():
        target, dataset = f"embedded:{path.parent}", path.name.removesuffix(_MIXTURE_SUFFIX)
    elif is_path(dataset):
        why = f"is not a prepared folder: it has no {_MANIFEST}" if path.is_dir() else "is not a folder"
        raise click.ClickException(f"{dataset} {why}; `packhorse prepare` writes one")
    with asking(target, timeout_seconds) as client:
        try:
            client.get_dataset(dataset)
        except ServerUnavailableError as error:
            raise click.ClickException(
                f"there is no prepared folder {dataset} here, and no server to ask for it: {error}"
            ) from None
        yield client, dataset


def is_path(dataset: str) -> bool:
    """Returns whether an argument is a path, which cannot be the name of a dataset at a server."""
    return os.sep in dataset


def _is_target_named() -> bool:
    """Returns whether the command line, the environment or a profile names the server."""
    context = click.get_current_context()
    is_default = context.get_parameter_source("target") is ParameterSource.DEFAULT
    return not is_default or "target" in context.meta.get(PROFILE, {})


def check_one_server(target: str) -> None:
    """Raises a UsageError if the target is an embedded folder or several servers."""
    if target.startswith("embedded:"):
        raise click.UsageError("--target embedded:DIR is not a server; give HOST:PORT")
    if not target.startswith("unix:") and "," in target:
        raise click.UsageError("--target names several servers; ask each of them")
