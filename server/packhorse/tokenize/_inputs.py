"""Which files an input names, and of what kind each is.

Owns paths, folders and patterns; leaves what stands in the files to others.
"""

import glob as globbing
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from packhorse.formats.files import as_path, exists, is_folder, named_files
from packhorse.formats.object_store import is_url, without_secrets

Kind = Literal["text", "folder", "JSON lines", "Parquet"]
"""What an input is, by its name alone."""

JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
PARQUET_SUFFIXES = (".parquet", ".pq")


def listed(inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str | os.PathLike[str]]:
    """Returns one input, or several, as a list.

    Raises:
        ValueError: there is something else than paths.
    """
    found = [inputs] if isinstance(inputs, str | os.PathLike) or not isinstance(inputs, Sequence) else list(inputs)
    if not all(isinstance(entry, str | os.PathLike) for entry in found):
        raise ValueError(f"inputs must be paths or glob patterns, got {inputs!r:.60}")
    return found


def expand_inputs(inputs: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Returns the files and folders that paths, URLs and glob patterns name, a pattern's in sorted order.

    Raises:
        FileNotFoundError: a path is not there, or nothing matches a pattern.
        ValueError: no input is given.
    """
    if not inputs:
        raise ValueError("no input is given; name a file, a folder, a glob pattern or the URL of one")
    found: list[str] = []
    for name in map(as_path, inputs):
        if exists(name):
            found.append(name)
        elif is_url(name):
            found.extend(named_files(name, ""))
        else:
            matches = sorted(globbing.glob(name, recursive=True))
            if not matches:
                raise FileNotFoundError(
                    f"input {without_secrets(name)} is neither there nor a pattern that matches anything"
                )
            found.extend(matches)
    return found


def kind_of(path: str) -> Kind:
    """Returns what an input is, by its name."""
    suffix = os.path.splitext(without_secrets(path))[1].lower()
    if suffix in JSON_LINES_SUFFIXES and not os.path.isdir(path):
        return "JSON lines"
    if suffix in PARQUET_SUFFIXES and not os.path.isdir(path):
        return "Parquet"
    return "folder" if is_folder(path) else "text"


def folder_files(folder: str, pattern: str) -> list[str]:
    """Returns the files of a folder that match a pattern, sorted, without what a leading dot hides."""
    if is_url(folder):
        names = named_files(f"{folder.rstrip('/')}/{pattern if '/' in pattern else f'**/{pattern}'}", "")
    else:
        root = Path(folder)
        found = root.glob(pattern) if "/" in pattern else root.rglob(pattern)
        names = [str(path) for path in found if path.is_file()]
    visible = sorted((_parts(name, folder), name) for name in names)
    return [name for parts, name in visible if not any(part.startswith(".") for part in parts)]


def _parts(path: str, folder: str) -> list[str]:
    """Returns the names that lead from a folder to a file in it."""
    return path[len(folder) :].strip("/").split("/") if is_url(folder) else list(Path(path).relative_to(folder).parts)
