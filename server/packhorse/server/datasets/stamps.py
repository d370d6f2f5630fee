"""What the catalog remembers of a dataset's folder: the stamps of its files, which show that they have changed.

Owns the stamps of a folder and of a dataset's open arrays, and the catalog's records that contain them: open datasets,
older versions and refused folders. Leaves finding, opening and withdrawing datasets to `catalog`.
"""

import hashlib
import math
import os
import time
import weakref
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from packhorse.dataset import PreparedDataset, PreparedDatasetError

KEEP_SECONDS = 3600.0
"""How long an older version is kept after it was last read: a run may pause between two epochs."""

Stamps: TypeAlias = tuple[tuple[str | int, ...], ...]
"""(name, inode, size in bytes, time of change in nanoseconds, mode, owner, group) of every file in a folder.

Mode, owner and group are there because a file's time of change does not change with its permissions."""


def stamps_of(folder: Path) -> Stamps:
    """Returns the stamps of a folder's files, by name; empty if it is gone."""
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
        """Opens a dataset's array files once more."""
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


@dataclass(frozen=True, eq=False)
class OpenDataset:
    """A dataset that is open."""

    dataset: PreparedDataset
    arrays: ArrayStamps
    """Stamps of its open array files, wherever its folder is by now."""
    stamps: Stamps
    """Stamps of its folder's files when it was opened."""


class OlderVersion:
    """A version whose folder was replaced: kept while a stream reads it, and KEEP_SECONDS longer."""

    def __init__(self, version: OpenDataset) -> None:
        self.digest = version.dataset.manifest.digest
        self.arrays = version.arrays
        self._kept: PreparedDataset | None = version.dataset
        self._dataset = weakref.ref(version.dataset)  # streams hold it while they are open
        self._read_at = time.monotonic()

    def holds(self, dataset: PreparedDataset) -> bool:
        """Whether a dataset is this version."""
        return self._dataset() is dataset

    def read(self) -> PreparedDataset | None:
        """Returns the dataset, which is then kept for KEEP_SECONDS again; None if it is gone."""
        self._read_at = time.monotonic()
        self._kept = self._dataset()
        return self._kept

    def is_gone(self) -> bool:
        """Lets go of the dataset when its time is over; returns whether no stream reads it any more either."""
        if time.monotonic() - self._read_at > KEEP_SECONDS:
            self._kept = None
        return self._dataset() is None


@dataclass(frozen=True)
class RefusedFolder:
    """A folder that could not be opened, or was withdrawn."""

    reason: str
    """Why, as clients may read it."""
    stamps: Stamps
    """Stamps of its files when it was refused. The folder is tried again when they change."""
    until: float = math.inf
    """Time, by `time.monotonic`, from which the folder is tried again in any case."""
    lacks_files: bool = False
    """Whether it could not be opened because the server had too many files open."""

    def stays(self, stamps: Stamps) -> bool:
        """Whether a folder with these stamps need not be tried again."""
        return stamps == self.stamps and time.monotonic() < self.until


def _sha256_of(descriptor: int) -> str:
    with open(os.dup(descriptor), "rb") as file:
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _close(descriptors: dict[str, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)
