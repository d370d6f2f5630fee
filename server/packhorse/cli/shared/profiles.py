"""Profiles: how a server is reached, said once in a file and chosen by name with `--profile`.

Owns the file of profiles and refusing wrong ones; leaves what certificates and tokens are to the client.
"""

import os
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

FILE_VARIABLE = "PACKHORSE_PROFILES"
_FILE = "~/.config/packhorse/profiles.toml"

ACCESS_KEYS = ("ca", "cert", "key", "token_file", "insecure")
"""Those by which server and client know each other."""
_PATHS = ("ca", "cert", "key", "token_file")
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("target", *_PATHS), (str,)),
    "insecure": (bool,),
    "timeout_seconds": (int, float),
}


def read_profile(name: str) -> dict[str, Any]:
    """Returns a profile's keys and values; paths in it are relative to the file.

    Args:
        name: of the profile, a table of the file.

    Raises:
        click.UsageError: the file, the profile or a key is missing or wrong; it names them.
    """
    path = Path(os.environ.get(FILE_VARIABLE) or _FILE).expanduser()
    try:
        profiles = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise click.UsageError(
            f'there is no {path} for --profile {name}; write one with [{name}] and target = "HOST:PORT", or set '
            f"{FILE_VARIABLE} to another file"
        ) from None
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{path} cannot be read as TOML: {error}") from None
    profile = profiles.get(name)
    if not isinstance(profile, dict):
        known = ", ".join(sorted(key for key, value in profiles.items() if isinstance(value, dict))) or "none"
        raise click.UsageError(f"{path} has no profile {name!r}; it has {known}")
    for key, value in profile.items():
        _check(path, name, key, value)
    beside = {key: str(path.parent / Path(profile[key]).expanduser()) for key in _PATHS if key in profile}
    return {**profile, **beside}


def _check(path: Path, name: str, key: str, value: object) -> None:
    where = f"{path}: [{name}]"
    if key not in _TYPES:
        near = get_close_matches(key, _TYPES, 1)
        meant = f"did you mean {near[0]}?" if near else f"a profile has {', '.join(_TYPES)}"
        raise click.UsageError(f"{where} has the key {key!r}; {meant}")
    if not isinstance(value, _TYPES[key]) or (isinstance(value, bool) and key != "insecure"):
        wanted = {"insecure": "true or false", "timeout_seconds": "a number of seconds"}.get(key, "text")
        raise click.UsageError(f"{where} {key} must be {wanted}, got {value!r}")
