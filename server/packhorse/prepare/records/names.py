"""How the manifest's `source` names the inputs that users gave, such as a folder or a pattern.

The names of their files are in `inputs`.
"""

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from packhorse.formats.object_store import is_url, without_secrets

_MOST_NAMES = 8
"""The most inputs that the manifest's `source` names."""


def name_of_inputs(sources: Sequence[str]) -> str:
    """Returns the inputs' names for the manifest: last components of their paths; of a pattern, its folder too."""
    names = []
    for source in sources[:_MOST_NAMES]:
        path = Path(without_secrets(source).partition("://")[2] if is_url(source) else os.path.abspath(source))
        folder_and_pattern = "/".join(path.parts[-2:]).removeprefix("//")  # "//" if the folder is the root
        names.append(folder_and_pattern if glob.has_magic(path.name) else path.name)
    if len(sources) > _MOST_NAMES:
        names.append(f"{len(sources) - _MOST_NAMES:,} more")
    return os.fsencode(", ".join(names)).decode(errors="replace")  # a path may be any bytes, a manifest is text


def joined_names(before: str, more: str) -> str:
    """Returns the names for the manifest if inputs named `more` are appended to a dataset of inputs `before`.

    The first `_MOST_NAMES` are kept; "…" stands for others.
    """
    names = f"{before}, {more}".split(", ")
    return ", ".join(names if len(names) <= _MOST_NAMES else [*names[:_MOST_NAMES], "…"])
