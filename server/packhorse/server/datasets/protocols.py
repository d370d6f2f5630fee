"""The interfaces that the backend uses: a dataset or mixture, the catalog of them, and the progress of streams.

Owns these protocols. Leaves prepared datasets and mixtures themselves to `packhorse.dataset`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from packhorse.dataset import Keys, Manifest, StageEntry, Takedown
from packhorse.epoch import Source


@dataclass(eq=False)
class StreamProgress:
    """How far an open stream has come."""

    name: str
    """Name of its dataset."""
    epoch: int
    """Number of the epoch, from 0."""
    seed: int
    """Seed of its run."""
    num_bins: int
    """Bins of the whole epoch."""
    position: int = 0
    """Bins before this position of the whole epoch have left."""

    @property
    def run_position(self) -> int:
        """Bins before this position of the run have left."""
        return self.epoch * self.num_bins + self.position

    def __str__(self) -> str:
        return f"position {self.position} of epoch {self.epoch} of the run of seed {self.seed}"


class SizedSource(Source, Protocol):
    """An epoch that knows its size."""

    @property
    def num_bytes(self) -> int:
        """Memory that this epoch takes beside its dataset."""
        ...


class Dataset(Protocol):
    """A prepared dataset, or a mixture."""

    @property
    def name(self) -> str:
        """The name in requests."""
        ...

    @property
    def manifest(self) -> Manifest:
        """Its facts; of a mixture, those of its components together."""
        ...

    @property
    def max_sequences_per_bin(self) -> int:
        """The most sequences in any bin."""
        ...

    @property
    def key_tables(self) -> Mapping[str, Keys | None]:
        """A mixture's keys by component, in their order; a dataset's own under an empty name."""
        ...

    @property
    def num_rooms(self) -> int:
        """Number of distinct rooms; locating an id searches each."""
        ...

    @property
    def has_groups(self) -> bool:
        """Whether any sequences are planned in groups."""
        ...

    @property
    def has_templates(self) -> bool:
        """Whether a bin's template tells the lengths of its sequences."""
        ...

    def epoch(self, number: int, seed: int) -> SizedSource:
        """Returns one epoch of a run."""
        ...


class Datasets(Protocol):
    """Where datasets come from: `Mixtures` over a catalog, or a `MemoryCatalog`."""

    def names(self) -> list[str]:
        """Returns the names of all datasets and mixtures, ascending."""
        ...

    def older_digests(self, name: str) -> list[str]:
        """Returns the digests of a dataset's older versions that clients can still get."""
        ...

    def get(self, name: str, digest: str = "") -> Dataset:
        """Returns a dataset, in the version of that digest if it is kept; a ServiceError if there is none."""
        ...

    def confirm(self, dataset: Dataset, components: Iterable[int] = ()) -> None:
        """Makes sure that the files of a dataset, or of a mixture's components, were checked; see `Catalog.confirm`."""
        ...

    def append_stage(
        self, name: str, stage: StageEntry | None, from_position: int, check: Callable[[], None], *, replace: bool
    ) -> None:
        """Appends a stage to a mixture; nothing if it is the last stage already, as when a client asks again.

        Args:
            name: of the mixture.
            stage: without `until`; None if stages are only taken back.
            from_position: of the run, where it begins.
            check: called before anything is written; raises if the future may not change from there on.
            replace: first takes back the stages that begin at the position or later.

        Raises:
            ServiceError: the name is not a mixture's, the stage or its position is wrong, or the file cannot be
                written; or whatever `check` raises.
        """
        ...

    def takedown(self, dataset: Dataset, *, is_open: bool = False) -> Takedown:
        """Returns what files take away from a dataset or mixture now; the same object until that changes.

        Args:
            dataset: or mixture.
            is_open: whether an open stream asks: the answer may be a quarter of a second old.

        Raises:
            ServiceError: its file was never right.
        """
        ...

    def follow(self, progress: StreamProgress) -> None:
        """Follows an open stream while its progress is held: no file takes away what it has passed."""
        ...

    def is_current(self, dataset: Dataset) -> bool:
        """Whether its streams continue; False if a mixture was changed, and its clients must reopen them."""
        ...
