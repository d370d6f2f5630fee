"""Whether files changed: their size and time of change, at almost no cost.

Owns the stamps of a folder, by which a refused folder is looked at again, those of a served dataset's arrays, by which
altered data is noticed, and those of certificates and tokens. Leaves what follows to whoever asks.
"""

import hashlib
import os
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

from packhorse.dataset import PreparedDataset, PreparedDatasetError

Stamps: TypeAlias = tuple[tuple[str | int, ...], ...]
"""(name, inode, size in bytes, time of change in nanoseconds, mode, owner, group) of every file in a folder.

Its time of change does not tell that somebody may read it now."""


def stamps_of(folder: Path) -> Stamps:
    """Returns the stamps of a folder's files, by name; none where it is gone."""
    try:
        paths = sorted(folder.iterdir())
        found = [(path.name, path.stat()) for path in paths if path.exists()]
    except OSError:
        return ()
    return tuple(
        (name, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_mode, stat.st_uid, stat.st_gid)
        for name, stat in found
    )


FileStamp: TypeAlias = tuple[int, int, int]
"""(inode, size in bytes, time of change in nanoseconds) of one file."""


class FileStamps:
    """Some files as they are now, by path.

    Args:
        paths: of the files; they need not exist.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._stamps = self._now()

    def changed(self) -> bool:
        """Whether a file was altered, replaced, made or removed since this was asked last."""
        before, self._stamps = self._stamps, self._now()
        return self._stamps != before

    def _now(self) -> list[FileStamp | None]:
        """The stamp of every file; None where there is none."""
        return [stamp_of(path) for path in self._paths]


class ArrayStamps:
    """A dataset's array files as they were opened, by descriptor: a folder that is replaced changes nothing.

    Args:
        descriptors: file name → descriptor, open for reading; closed with this object.
    """

    def __init__(self, descriptors: dict[str, int]) -> None:
        self._descriptors = descriptors
        self._stamps = self._now()
        weakref.finalize(self, _close, descriptors)

    @classmethod
    def of(cls, dataset: PreparedDataset) -> "ArrayStamps":
        """Opens a dataset's array files once more."""
        paths = [dataset.path / name for name in sorted(dataset.manifest.checksums) if name.endswith(".npy")]
        with ExitStack() as opened:  # those before one that cannot be opened are closed
            descriptors = {}
            for path in paths:
                descriptors[path.name] = os.open(path, os.O_RDONLY)
                opened.callback(os.close, descriptors[path.name])
            opened.pop_all()
        return cls(descriptors)

    def is_unchanged(self) -> bool:
        """Whether no file was written to or cut since it was opened."""
        return self._now() == self._stamps

    def check_again(self, dataset: PreparedDataset) -> None:
        """Compares files that were written to with their checksums; those that still match are good again.

        Raises:
            PreparedDatasetError: a file was cut or altered.
        """
        now = self._now()
        for (name, descriptor), (size, _), (was, _) in zip(self._descriptors.items(), now, self._stamps, strict=True):
            if size != was or _sha256_of(descriptor) != dataset.manifest.checksums[name]:
                raise PreparedDatasetError(f"{dataset.name}/{name} was cut or altered while it was served")
        self._stamps = now

    def _now(self) -> list[tuple[int, int]]:
        """(size in bytes, time of change in nanoseconds) of every file."""
        stats = [os.fstat(descriptor) for descriptor in self._descriptors.values()]
        return [(stat.st_size, stat.st_mtime_ns) for stat in stats]


def stamp_of(path: Path | str) -> FileStamp | None:
    """Returns the stamp of a file; None where there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _sha256_of(descriptor: int) -> str:
    with open(os.dup(descriptor), "rb") as file:
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _close(descriptors: dict[str, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)
