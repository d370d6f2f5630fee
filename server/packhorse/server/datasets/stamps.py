"""Stamps of files, which show that a dataset's folder or its open arrays have changed.

Leaves what follows from a change to `catalog`.
"""

import hashlib
import os
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, TypeAlias

from packhorse.dataset import PreparedDataset, PreparedDatasetError

Stamps: TypeAlias = tuple[tuple[str | int, ...], ...]
"""(name, inode, size in bytes, time of change in nanoseconds, mode, owner, group) of every file in a folder.

Mode, owner and group are there because a file's time of change does not change with its permissions."""


def stamps_of(folder: Path) -> Stamps:
    """Returns the stamps of a folder's files, by name; empty if it is gone or cannot be read."""
    try:
        stats = [(path.name, path.stat()) for path in sorted(folder.iterdir()) if path.exists()]
    except OSError:
        return ()
    return tuple(
        (name, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_mode, stat.st_uid, stat.st_gid)
        for name, stat in stats
    )


class _ArrayStamp(NamedTuple):
    """What shows that an open file was written to or cut."""

    size_bytes: int
    changed_ns: int
    """Time of change, in nanoseconds since 1970."""


class ArrayStamps:
    """The stamps of a dataset's open array files, asked by descriptor: replacing the folder does not change them.

    Args:
        descriptors: file name → descriptor, open for reading; closed with this object.
    """

    def __init__(self, descriptors: dict[str, int]) -> None:
        self._descriptors = descriptors
        self._stamps = self._stamps_now()
        weakref.finalize(self, _close, descriptors)

    @classmethod
    def of(cls, dataset: PreparedDataset) -> "ArrayStamps":
        """Opens a dataset's array files once more: a mapped array gives no descriptor."""
        paths = [dataset.path / name for name in sorted(dataset.manifest.checksums) if name.endswith(".npy")]
        with ExitStack() as opened:  # if one cannot be opened, closes those opened before it
            descriptors = {}
            for path in paths:
                descriptors[path.name] = os.open(path, os.O_RDONLY)
                opened.callback(os.close, descriptors[path.name])
            opened.pop_all()
        return cls(descriptors)

    def is_unchanged(self) -> bool:
        """Whether no file was written to or cut since it was opened."""
        return self._stamps_now() == self._stamps

    def check_again(self, dataset: PreparedDataset) -> None:
        """Compares all files with their checksums; if they match, their stamps of now count as unchanged.

        Raises:
            PreparedDatasetError: a file was cut or altered.
        """
        now = self._stamps_now()
        for name, descriptor in self._descriptors.items():
            has_its_size = now[name].size_bytes == self._stamps[name].size_bytes
            if not has_its_size or _sha256_of(descriptor) != dataset.manifest.checksums[name]:
                raise PreparedDatasetError(f"{dataset.name}/{name} was cut or altered while it was served")
        self._stamps = now

    def _stamps_now(self) -> dict[str, _ArrayStamp]:
        stats = {name: os.fstat(descriptor) for name, descriptor in self._descriptors.items()}
        return {name: _ArrayStamp(stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def _sha256_of(descriptor: int) -> str:
    with open(os.dup(descriptor), "rb") as file:
        file.seek(0)  # a copy of a descriptor shares its offset
        return hashlib.file_digest(file, "sha256").hexdigest()


def _close(descriptors: dict[str, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)
