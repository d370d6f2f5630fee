"""Which files an input names, and of what kind each is.

Owns paths, folders and patterns; leaves what stands in the files to others.
"""

import glob as globbing
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

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


def expand_inputs(inputs: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Returns the files and folders that paths and glob patterns name, a pattern's in sorted order.

    Raises:
        FileNotFoundError: a path is not there, or nothing matches a pattern.
        ValueError: no input is given.
    """
    if not inputs:
        raise ValueError("no input is given; name a file, a folder or a glob pattern")
    found: list[Path] = []
    for entry in inputs:
        name = os.fspath(entry)
        if os.path.exists(name):
            found.append(Path(name))
            continue
        matches = sorted(globbing.glob(name, recursive=True))
        if not matches:
            raise FileNotFoundError(f"input {name} is neither there nor a pattern that matches anything")
        found.extend(Path(match) for match in matches)
    return found


def kind_of(path: Path) -> Kind:
    """Returns what an input is, by its name."""
    if path.is_dir():
        return "folder"
    if path.suffix.lower() in JSON_LINES_SUFFIXES:
        return "JSON lines"
    return "Parquet" if path.suffix.lower() in PARQUET_SUFFIXES else "text"


def folder_files(folder: Path, pattern: str) -> list[Path]:
    """Returns the files of a folder that match a pattern, sorted, without what a leading dot hides."""
    found = folder.glob(pattern) if "/" in pattern else folder.rglob(pattern)
    keyed = ((path.relative_to(folder).parts, path) for path in found)
    visible = sorted((parts, path) for parts, path in keyed if not any(part.startswith(".") for part in parts))
    return [path for _, path in visible if path.is_file()]
