"""Files that appear whole or not at all: written beside their place, synced, then renamed.

Owns the order of those steps for one or several files that belong together, and removes what a killed process left of
them; leaves the contents to the formats.
"""

import fcntl
import glob
import logging
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/+")
"""What a URL begins with, also one that was made a path, which has one slash."""
_LOG = logging.getLogger(__name__)


class AtomicFiles:
    """Several files that are published together, as a context manager; an exception leaves none of them.

    Each is written under a temporary name in its own folder, and locked as long as it has that name. On success all are
    synced and renamed in the given order, so the last name is the one that says that the others are there. Temporary
    files of a process that was killed are locked by nobody, and removed by the next that writes to the same path.
    """

    def __init__(self, paths: Sequence[Path], *, overwrite: bool = False) -> None:
        """Opens the temporary files; makes their folders.

        Args:
            paths: where the files go, the most telling one last.
            overwrite: whether files already there are replaced.

        Raises:
            FileExistsError: one is already there and overwrite is False.
            IsADirectoryError: one is a folder.
        """
        self._paths = [Path(path) for path in paths]
        refuse_existing(self._paths, overwrite=overwrite)
        self._temporary = [path.with_name(f".{path.name}.{os.getpid()}.partial") for path in self._paths]
        self.files: list[BinaryIO] = []
        try:
            for temporary in self._temporary:
                temporary.parent.mkdir(parents=True, exist_ok=True)
                self.files.append(temporary.open("wb"))
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(self.files[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in self._paths:
                _remove_abandoned(path)
        except OSError:
            self.discard()
            raise

    def __enter__(self) -> "AtomicFiles":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.publish()
        else:
            self.discard()

    def publish(self) -> None:
        """Syncs and renames the files; after a failure here nothing temporary stays, and what was there before does."""
        aside: list[tuple[Path, Path]] = []
        renamed: list[Path] = []
        try:
            for file in self.files:
                file.flush()
                os.fsync(file.fileno())
            # Old files go first, last name first: a crash in between must not leave a pair that does not match.
            for temporary, path in reversed(list(zip(self._temporary, self._paths, strict=True))):
                if path.exists():
                    aside.append((temporary.with_name(f"{temporary.name}.old"), path))
                    os.replace(path, aside[-1][0])
            for temporary, path in zip(self._temporary, self._paths, strict=True):
                os.replace(temporary, path)
                renamed.append(path)
            for file in self.files:
                file.close()
        except BaseException:
            for path in reversed(renamed):
                path.unlink()
            for old, path in reversed(aside):
                if old.exists():
                    os.replace(old, path)
            self.discard()
            raise
        for old, _ in aside:
            old.unlink()
        for folder in {path.parent for path in self._paths}:
            _sync_folder(folder)

    def discard(self) -> None:
        """Closes and removes the temporary files."""
        for file in self.files:
            file.close()
        for temporary in self._temporary:
            temporary.unlink(missing_ok=True)


def _remove_abandoned(path: Path) -> None:
    """Removes what processes that were killed have left of a file."""
    for name in glob.glob(f".{glob.escape(path.name)}.*.partial", root_dir=path.parent):
        with suppress(OSError), path.with_name(name).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where a process writes to it
            path.with_name(name).unlink()
            _LOG.warning("removed %s, which a process that was killed has left", path.with_name(name))


def refuse_url(output: str | os.PathLike[str], name: str = "the output") -> None:
    """Refuses a URL where a path is to be written.

    Example:
        >>> refuse_url("s3://corpus/packed", "--output")
        Traceback (most recent call last):
            ...
        ValueError: --output s3://corpus/packed is a URL; give a path on a disk, and copy what is written there yourself

    Args:
        output: what is to be written.
        name: what the user calls it.

    Raises:
        ValueError: it is a URL.
    """
    shown = os.fspath(output)
    if isinstance(shown, str) and (begin := _URL.match(shown)):
        url = f"{begin[0].rstrip('/')}//{shown[begin.end() :]}"
        raise ValueError(f"{name} {url} is a URL; give a path on a disk, and copy what is written there yourself")


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
            raise IsADirectoryError(f"{path} is a folder, and a file is to be written there; choose another output")
        if path.exists() and not overwrite:
            raise FileExistsError(f"{path} is already there; remove it, choose another output, or set overwrite=True")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
