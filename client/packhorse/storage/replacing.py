"""Files that appear whole or not at all: written under another name, then renamed.

Owns this for one file and for several that belong together; removes unfinished files of killed processes. Leaves which
paths may be written to `outputs`, whole folders to `packhorse.dataset`, and records of unfinished jobs to `records`.
"""

import glob
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple

from packhorse.storage.locks import try_lock
from packhorse.storage.outputs import refuse_existing

_LOG = logging.getLogger(__name__)


class _MovedFile(NamedTuple):
    """An old file that makes room for a new one."""

    aside: Path
    """Where it is until the new file is in place."""
    path: Path
    """Its own path."""


class AtomicFiles:
    """Several files that are published together, as a context manager. After an exception, none of them is written.

    Each file is written under a temporary name in its folder, and is locked meanwhile. On success all are synced and
    renamed in the given order, so the last file proves that the others are there. The temporary files of a killed
    process have no lock any more; the next process that writes to the same path removes them. If a process is killed
    while it renames several files, the old ones may still be aside, as `.NAME.PID.partial.old`: nobody removes these.

    Args:
        paths: paths of the files; the last one should be the one that refers to the others. Their folders are made.
        overwrite: whether to replace existing files.

    Raises:
        FileExistsError: a file is already there and overwrite is False.
        IsADirectoryError: a path is a folder.
        ValueError: a path is a URL.
    """

    def __init__(self, paths: Sequence[Path], *, overwrite: bool = False) -> None:
        self._paths = [Path(path) for path in paths]
        refuse_existing(self._paths, overwrite=overwrite)
        self._temporary = [path.with_name(f".{path.name}.{os.getpid()}.partial") for path in self._paths]
        self.files: list[BinaryIO] = []
        try:
            for temporary in self._temporary:
                temporary.parent.mkdir(parents=True, exist_ok=True)
                self.files.append(temporary.open("wb"))
                with suppress(OSError):  # a file system without locks
                    try_lock(self.files[-1])
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
        """Syncs and renames the files; after a failure the old files are back, and no temporary file is left."""
        are_several = len(self._paths) > 1  # a single file is replaced by one rename, so it is never missing
        moved: list[_MovedFile] = []  # of several: the files that were there before
        appeared: list[Path] = []  # of several: paths that a new file has taken
        try:
            for file in self.files:
                file.flush()
                os.fsync(file.fileno())
            # Old files go first, last name first: a crash in between must not leave a pair that does not match.
            for temporary, path in reversed(list(zip(self._temporary, self._paths, strict=True))):
                if are_several and path.exists():
                    aside = temporary.with_name(f"{temporary.name}.old")
                    moved.append(_MovedFile(aside=aside, path=path))  # noted before, in case the rename is interrupted
                    os.replace(path, aside)
            for temporary, path in zip(self._temporary, self._paths, strict=True):
                os.replace(temporary, path)
                if are_several:
                    appeared.append(path)
            for file in self.files:
                file.close()
        except BaseException:
            for path in reversed(appeared):
                path.unlink()
            for file_before in reversed(moved):
                if file_before.aside.exists():
                    os.replace(file_before.aside, file_before.path)
            self.discard()
            raise
        for file_before in moved:
            file_before.aside.unlink()
        for folder in {path.parent for path in self._paths}:  # a folder holds the names
            sync(folder)

    def discard(self) -> None:
        """Closes and removes the temporary files."""
        for file in self.files:
            file.close()
        for temporary in self._temporary:
            temporary.unlink(missing_ok=True)


def _remove_abandoned(path: Path) -> None:
    """Removes temporary files of a path that killed processes left."""
    for name in glob.glob(f".{glob.escape(path.name)}.*.partial", root_dir=path.parent):
        with suppress(OSError), path.with_name(name).open("rb") as file:
            if try_lock(file):  # nobody writes to it any more
                path.with_name(name).unlink()
                _LOG.warning("removed %s, which a killed process left", path.with_name(name))


def sync(path: Path) -> None:
    """Makes a file or a folder durable: what processes of this machine have written to it survives a crash.

    Example:
        >>> sync(Path("datasets/corpus/manifest.json"))
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_bytes(path: Path, data: bytes) -> None:
    """Writes a file whole and durably: readers see the old content or the new. An old file's permissions stay.

    Example:
        >>> replace_bytes(Path("note.txt"), b"the new text")
        >>> Path("note.txt").read_text()
        'the new text'

    Raises:
        OSError: it cannot be written; the file stays as it was.
    """
    with AtomicFiles([path], overwrite=True) as files:
        if path.exists():
            os.fchmod(files.files[0].fileno(), path.stat().st_mode)
        files.files[0].write(data)
