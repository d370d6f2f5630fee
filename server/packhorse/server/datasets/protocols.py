"""The interfaces that the backend uses: a dataset or mixture, and the catalog of them.

Owns these protocols. Leaves prepared datasets and mixtures themselves to `packhorse.dataset`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from packhorse.dataset import Keys, Manifest, StageEntry, Takedown
from packhorse.epoch import Source
from packhorse.server.datasets.stream_progress import StreamProgress


class SizedSource(Source, Protocol):
    """A source that knows how much memory it takes."""

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that this source takes, beside those of its dataset."""
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
        """Component → its keys, in the order of components; a dataset's own keys under an empty name."""
        ...

    @property
    def num_rooms(self) -> int:
        """Number of distinct rooms. Locating an id takes a search for each."""
        ...

    @property
    def has_groups(self) -> bool:
        """Whether any sequences are planned in groups."""
        ...

    @property
    def has_templates(self) -> bool:
        """Whether the lengths of a bin's sequences follow from its template."""
        ...

    def epoch(self, number: int, seed: int) -> SizedSource:
        """Returns one epoch of a run."""
        ...


class Datasets(Protocol):
    """The datasets and mixtures that the backend serves: `Mixtures` over a catalog, or a `MemoryCatalog`."""

    def names(self) -> list[str]:
        """Returns the names of all datasets and mixtures, ascending."""
        ...

    def older_digests(self, name: str) -> list[str]:
        """Returns the digests of a dataset's older versions that clients can still get."""
        ...

    def get(self, name: str, digest: str = "") -> Dataset:
        """Returns a dataset, in the version of a digest if that is kept; raises a ServiceError if there is none."""
        ...

    def confirm(self, dataset: Dataset, components: Iterable[int] = ()) -> None:
        """Makes sure that the files of a dataset, or of a mixture's components, were checked; see `Catalog.confirm`."""
        ...

    def append_stage(
        self, name: str, stage: StageEntry | None, from_position: int, check: Callable[[], None], *, replace: bool
    ) -> None:
        """Appends a stage to a mixture. Does nothing if it is the last stage already: a client may ask again.

        Args:
            name: the mixture's name.
            stage: the stage, without `until`; None if stages are only removed.
            from_position: position of the run at which the stage begins.
            check: called before anything is written; raises if bins from the position on have been sent.
            replace: whether to remove first the stages that begin at the position or later.

        Raises:
            ServiceError: the name is not a mixture's, the stage or its position is wrong, or the file cannot be
                written; or whatever `check` raises.
        """
        ...

    def takedown(self, dataset: Dataset, *, is_open: bool = False) -> Takedown:
        """Returns what files take away from a dataset or mixture now; the same object until that changes.

        Args:
            dataset: the dataset or mixture.
            is_open: whether an open stream asks: the answer may be a quarter of a second old.

        Raises:
            ServiceError: a file is wrong, and was never right.
        """
        ...

    def follow(self, progress: StreamProgress) -> None:
        """Follows an open stream until its caller drops `progress`: no file may skip positions that it has passed."""
        ...

    def is_current(self, dataset: Dataset) -> bool:
        """Whether open streams of a dataset continue; False if a mixture has changed, and clients must reopen them."""
        ...
