"""The option --profile: a file has named tables of how a server is reached, so that commands need no flags for it."""

import os
import tomllib
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from packhorse.storage import read_text

_PROFILES_VARIABLE = "PACKHORSE_PROFILES"
_DEFAULT_FILE = "~/.config/packhorse/profiles.toml"
_PATHS = ("ca", "cert", "key", "token_file")
"""Keys of a profile whose values are paths."""
ACCESS_KEYS = (*_PATHS, "insecure")
"""Keys of a profile that are fields of the client's `Access`."""
_PROFILE_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("target", *_PATHS), (str,)),
    "insecure": (bool,),
    "timeout_seconds": (int, float),
}
"""Key of a profile → the types that its value may have."""
PROFILE = f"{__name__}.profile"
"""The key under which `context.meta` has the profile's keys and values."""


def profile_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --profile. A profile gives --target and --timeout-seconds, and `service.access_of_command` its access."""

    def keep(context: click.Context, option: click.Parameter, value: str | None) -> None:
        """Reads the profile that --profile names into `context.meta`."""
        if value is not None:
            context.meta[PROFILE] = read_profile(value)

    return click.option(
        "--profile",
        metavar="NAME",
        envvar="PACKHORSE_PROFILE",
        show_envvar=True,
        callback=keep,
        expose_value=False,
        is_eager=True,  # so that `of_profile` finds the profile, wherever --profile stands
        help="How to reach the server: target, ca, cert, key, token_file, insecure and timeout_seconds of [NAME] in "
        "~/.config/packhorse/profiles.toml, or in the file of PACKHORSE_PROFILES. A profile overrides "
        "PACKHORSE_CLIENT_… variables; flags override a profile.",
    )(command)


def read_profile(name: str) -> dict[str, Any]:
    """Returns the keys and values of a profile, a table of the file; paths in it are relative to the file.

    Raises:
        click.UsageError: the file, the profile or a key is missing or wrong; the message names it.
    """
    path = Path(os.environ.get(_PROFILES_VARIABLE) or _DEFAULT_FILE).expanduser()
    try:
        profiles = tomllib.loads(read_text(path))
    except FileNotFoundError:
        raise click.UsageError(
            f'there is no {path} for --profile {name}; write one with [{name}] and target = "HOST:PORT", or set '
            f"{_PROFILES_VARIABLE} to another file"
        ) from None
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{path} cannot be read as TOML: {error}") from None
    profile = profiles.get(name)
    if not isinstance(profile, dict):
        known = ", ".join(sorted(key for key, value in profiles.items() if isinstance(value, dict))) or "none"
        raise click.UsageError(f"{path} has no profile {name!r}; it has {known}")
    for key, value in profile.items():
        _check_profile_key(path, name, key, value)
    paths = {key: str(path.parent / Path(profile[key]).expanduser()) for key in _PATHS if key in profile}
    return {**profile, **paths}


def _check_profile_key(path: Path, name: str, key: str, value: object) -> None:
    """Raises a UsageError if a profile cannot have the key, or not with this value."""
    where = f"{path}: [{name}]"
    if key not in _PROFILE_TYPES:
        near = get_close_matches(key, _PROFILE_TYPES, 1)
        meant = f"did you mean {near[0]}?" if near else f"a profile has {', '.join(_PROFILE_TYPES)}"
        raise click.UsageError(f"{where} has the key {key!r}; {meant}")
    is_bool = isinstance(value, bool)  # a bool is an int too, but no number of seconds
    if not isinstance(value, _PROFILE_TYPES[key]) or (is_bool and key != "insecure"):
        wanted = {"insecure": "true or false", "timeout_seconds": "a number of seconds"}.get(key, "text")
        raise click.UsageError(f"{where} {key} must be {wanted}, got {value!r}")


def of_profile(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """Returns an option's value: from the command line, else from the profile, else `value`, as click found it."""
    if context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE:
        return value
    return context.meta.get(PROFILE, {}).get(option.name, value)
