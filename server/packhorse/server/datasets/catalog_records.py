"""What the catalog remembers of a dataset's folder: the open dataset, older versions, or why it was refused.

Owns how long an older version is kept, and when a refused folder is tried again. Leaves the stamps of files to
`stamps`, and finding, opening and withdrawing datasets to `catalog`.
"""

import math
import time
import weakref
from dataclasses import dataclass

from packhorse.dataset import PreparedDataset
from packhorse.server.datasets.stamps import ArrayStamps, Stamps

KEEP_SECONDS = 3600.0
"""How long an older version is kept after it was last read: a run may pause between two epochs."""


@dataclass(frozen=True, eq=False)
class OpenDataset:
    """A dataset that is open."""

    dataset: PreparedDataset
    arrays: ArrayStamps
    """Stamps of its open array files, wherever its folder is by now."""
    stamps: Stamps
    """Stamps of its folder's files when it was opened."""


class OlderVersion:
    """A version whose folder was replaced: kept while a stream reads it, and KEEP_SECONDS longer.

    The catalog calls `read` whenever somebody asks for the version, and before each of its blocks is sent.
    """

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
