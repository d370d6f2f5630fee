"""Where output may be written: to a path that is no URL and no folder; over a file only if the user asks for it.

Leaves writing files to `replacing`.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from packhorse.parameters import parameter

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/+")
"""Beginning of a URL. `pathlib` turns its two slashes into one, so one is enough. `C:/` is no URL: one letter."""


def refuse_url(output: str | os.PathLike[str], name: str = "the output") -> None:
    """Refuses to write to a URL.

    Example:
        >>> refuse_url("s3://corpus/packed", "output")
        Traceback (most recent call last):
            ...
        ValueError: output s3://corpus/packed is a URL; give a path on a disk, and copy the files from there yourself

    Args:
        output: where to write.
        name: the parameter's name, for the message.

    Raises:
        ValueError: the output is a URL.
    """
    shown = os.fspath(output)
    if isinstance(shown, str) and (begin := _URL.match(shown)):
        url = f"{begin[0].rstrip('/')}//{shown[begin.end() :]}"
        raise ValueError(
            parameter(name) + f" {url} is a URL; give a path on a disk, and copy the files from there yourself"
        )


def refuse_existing(paths: Sequence[Path], *, overwrite: bool) -> None:
    """Refuses to write over files.

    Raises:
        FileExistsError: one of the paths is there and overwrite is False.
        IsADirectoryError: one of the paths is a folder.
        ValueError: one of the paths is a URL.
    """
    for path in paths:
        refuse_url(path)
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder, not a file; choose another output")
        if path.exists() and not overwrite:
            raise FileExistsError(
                f"{path} is already there; remove it, choose another output, or set " + parameter("overwrite", True)
            )
