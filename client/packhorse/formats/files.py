"""Which files a path names, in the order that numbers their rows, and whether a file is still the same.

Owns the order, on which ids rest where rows are numbered over several files: who prepares and who trains must agree.
"""

import glob
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What shows that a file is still the one that was looked at first."""

    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Self:
        """Takes the stamp of a file as it is now."""
        status = os.stat(path)
        return cls(status.st_size, status.st_mtime_ns)

    def holds(self, path: str | os.PathLike[str]) -> bool:
        """Whether the path has that file, unchanged."""
        return os.path.exists(path) and FileStamp.of(path) == self

    def check(self, path: str | os.PathLike[str]) -> None:
        """Refuses another file at the same path.

        Raises:
            FileNotFoundError: it is gone.
            ValueError: it has been replaced or written to.
        """
        if FileStamp.of(path) != self:
            raise ValueError(f"{path} has been replaced since it was first opened; open it anew")


def find_files(source: str | os.PathLike[str], suffix: str) -> list[Path]:
    """Finds the files that one path names.

    Args:
        source: a file, a folder of files with the suffix (at any depth), or a glob pattern.
        suffix: of the files to take from a folder, with its dot.

    Returns:
        At least one path; several are sorted as strings.

    Raises:
        FileNotFoundError: nothing is there, or a link in the folder leads nowhere.
    """
    path = Path(source)
    name = os.fspath(source)
    if path.is_dir():
        entries = list(path.rglob(f"*{suffix}"))
        for entry in entries:
            if entry.is_symlink() and not entry.exists():
                raise FileNotFoundError(f"{entry} is a link to a file that is not there; repair or remove it")
        names = sorted(str(entry) for entry in entries if entry.is_file())
        if not names:
            raise FileNotFoundError(f"the folder {name} holds no *{suffix} file, at no depth")
    elif path.exists():
        names = [name]
    elif glob.has_magic(name):
        names = sorted(found for found in glob.glob(name, recursive=True) if os.path.isfile(found))
        if not names:
            raise FileNotFoundError(f"no file matches {name}")
    else:
        raise FileNotFoundError(f"{name} does not exist")
    return [Path(found) for found in names]
