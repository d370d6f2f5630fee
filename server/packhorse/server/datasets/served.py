"""What the service serves under a name, and where it comes from: the two protocols that the backend knows.

Owns what a request may ask of either; leaves prepared datasets and mixtures themselves to `packhorse.dataset`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from packhorse.dataset import Keys, Manifest, StageEntry, Takedown
from packhorse.epoch import Source


@dataclass(eq=False)
class Reader:
    """An open stream: how far it has come."""

    name: str
    """Of what it reads."""
    epoch: int
    """0-based."""
    seed: int
    """Of its run."""
    num_bins: int
    """Of the whole epoch."""
    position: int = 0
    """The position of the whole epoch before which bins have left."""

    @property
    def run_position(self) -> int:
        """The position of the run before which bins have left."""
        return self.epoch * self.num_bins + self.position

    def __str__(self) -> str:
        return f"position {self.position} of epoch {self.epoch} of the run of seed {self.seed}"


class SizedSource(Source, Protocol):
    """An epoch that knows what it takes."""

    @property
    def num_bytes(self) -> int:
        """Memory that this epoch takes beside its dataset."""
        ...


class Served(Protocol):
    """A prepared dataset, or a mixture of some."""

    @property
    def name(self) -> str:
        """By which it is asked for."""
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
        """Its keys by no component; those of a mixture's components by their names, in their order."""
        ...

    @property
    def num_lengths(self) -> int:
        """Distinct lengths: what it costs to find an id."""
        ...

    @property
    def has_groups(self) -> bool:
        """Whether any sequences are planned in groups."""
        ...

    def epoch(self, number: int, seed: int) -> SizedSource:
        """Returns one epoch of a run."""
        ...


class Datasets(Protocol):
    """Where served datasets come from: `Mixtures` over a catalog, or a `MemoryCatalog`."""

    def names(self) -> list[str]:
        """Names of the datasets that can be asked for, ascending."""
        ...

    def older_digests(self, name: str) -> list[str]:
        """Digests of a dataset's older versions that can still be asked for."""
        ...

    def get(self, name: str, digest: str = "") -> Served:
        """Returns a dataset, the version of that digest where it can be had; a ServiceError where there is none."""
        ...

    def confirm(self, served: Served, components: Iterable[int] = ()) -> None:
        """Makes sure that what was read is what was checked; see `Catalog.confirm`.

        Args:
            served: what bins were made of.
            components: of a mixture, those that were read.
        """
        ...

    def append_stage(
        self, name: str, stage: StageEntry | None, from_position: int, check: Callable[[], None], *, replace: bool
    ) -> None:
        """Appends a stage to a mixture; a ServiceError where there is none of that name, or the stage cannot be.

        Args:
            name: of the mixture.
            stage: without `until`; None where stages are only taken back.
            from_position: of the run, where it begins.
            check: called where it is not the last stage already, before anything is written; refuses by raising.
            replace: takes back the stages that begin at the position or beyond, first.
        """
        ...

    def takedown(self, served: Served, *, goes_on: bool = False) -> Takedown:
        """Returns what is taken away from a dataset or a mixture by file now; the same object as long as it says so.

        Args:
            served: the dataset or mixture.
            goes_on: whether a stream that is open asks: it may be a quarter of a second old.

        Raises:
            ServiceError: its file was never right.
        """
        ...

    def follow(self, reader: Reader) -> None:
        """Knows of an open stream as long as it is held: what it has gone past is not taken away any more."""
        ...

    def is_current(self, served: Served) -> bool:
        """Whether streams of it go on; False where a mixture was changed, and they begin anew where they stand."""
        ...
