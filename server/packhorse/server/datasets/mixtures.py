"""The mixtures that are served beside a catalog's datasets: every `NAME.mixture.toml` below its root.

Owns reading their files, again when they change, and making mixtures of the catalog's datasets. Leaves which files
there are to `_mixture_files`, the content of a file to `packhorse.dataset`, the datasets to `catalog`, and how far runs
have come to `run_progress`.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from packhorse.dataset import (
    MIXTURE_SUFFIX,
    MOST_MIXTURE_BYTES,
    MixtureDataset,
    MixtureError,
    MixtureFile,
    PreparedDataset,
    PreparedDatasetError,
    StageEntry,
    Takedown,
    append_to_mixture,
    text_of,
)
from packhorse.epoch import first_difference
from packhorse.server.base.faults import ServiceError, invalid_field
from packhorse.server.datasets._mixture_files import FoundFile, MixtureFiles
from packhorse.server.datasets.catalog import Catalog
from packhorse.server.datasets.protocols import Dataset
from packhorse.server.datasets.refusals import no_mixture, not_served
from packhorse.server.datasets.stream_progress import StreamProgress
from packhorse.server.datasets.taken_away.takedowns import Takedowns
from packhorse.storage import Stamp
from packhorse.v1 import packing_pb2 as pb

_LOG = logging.getLogger(__name__)


class _LastRead(NamedTuple):
    """A mixture, and the stamp that its file had when it was read."""

    stamp: Stamp
    mixture: MixtureDataset


class Mixtures:
    """A catalog's datasets, and the mixtures of them. Implements `protocols.Datasets`.

    A mixture's file is read again when it changed. If it is wrong then, the mixture stays as it was, and the log says
    why; only a mixture that was never right is refused. If a mixture changes, its streams end, and their clients reopen
    them: the chain of digests decides whether they may continue in the changed mixture.

    Args:
        catalog: the datasets; its root is also that of the mixtures.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._locks: dict[str, threading.RLock] = {}  # by name: only requests for the same mixture wait
        self._last_read: dict[str, _LastRead] = {}  # by name: only mixtures that were right once
        self._files = MixtureFiles(catalog.root, known=self._last_read.keys())
        self._refused: dict[str, Stamp] = {}  # name → stamp of the file that was refused last
        self._wrong: dict[str, str] = {}  # name → why its file is refused
        self._takedowns = Takedowns(catalog.root, catalog.refuse_link)

    @property
    def root(self) -> Path:
        """The folder of the datasets and mixtures."""
        return self._catalog.root

    def names(self) -> list[str]:
        """Returns the names of all datasets and mixtures that can be served, ascending."""
        return [name for name in sorted({*self._catalog.names(), *self._files.names()}) if self._is_served(name)]

    def opened(self) -> list[MixtureDataset]:
        """Returns the mixtures that are open now, in the order of their names."""
        last_read = sorted(self._last_read.items())
        return [each.mixture for name, each in last_read if self._files.path_of(name) is not None]

    def troubles(self) -> dict[tuple[str, str], str]:
        """Returns what is wrong with files below the root: ("dataset", "mixture" or "takedown", its name) → why."""
        wrong = {name: why for name, why in list(self._wrong.items()) if self._files.has(name)}
        kinds = {"dataset": self._catalog.troubles(), "mixture": wrong, "takedown": self._takedowns.troubles()}
        return {(kind, name): why for kind, whys in kinds.items() for name, why in sorted(whys.items())}

    def older_digests(self, name: str) -> list[str]:
        """Returns the digests of a dataset's older versions; none for a mixture, which has its chain of digests."""
        is_dataset = self._catalog.has(name) or not self._files.has(name)
        return self._catalog.older_digests(name) if is_dataset else []

    def warn_of_unknown_ids(self) -> None:
        """Warns of ids in takedowns that their dataset does not have; see `Takedowns`."""
        self._takedowns.warn_of_unknown_ids()

    def get(self, name: str, digest: str = "") -> Dataset:
        """Returns a dataset or mixture; see `Datasets.get`. A mixture has one version only, and ignores `digest`."""
        last_read = self._last_read.get(name)
        try:
            # A dataset comes before a mixture of its name.
            found = None if self._catalog.has(name) else self._files.look_at(name)
        except TimeoutError as error:
            why = f"{name}{MIXTURE_SUFFIX} cannot be looked at: {error.strerror}"
            if last_read is None:
                raise not_served(name, why) from None
            self._note_trouble(name, f"{why}; it stays as it was")
            return last_read.mixture
        if found is None:
            return self._catalog.get(name, digest, besides=self._files.names())
        if last_read is not None and found.stamp in (last_read.stamp, self._refused.get(name)):
            return last_read.mixture
        with self._locks.setdefault(name, threading.RLock()):
            return self._read_again(name, found)

    def append_stage(
        self, name: str, stage: StageEntry | None, from_position: int, check: Callable[[], None], *, replace: bool
    ) -> None:
        """Appends a stage to a mixture's file; see `Datasets.append_stage`."""
        mixture, path = self.get(name), self._files.path_of(name)
        if path is None or not isinstance(mixture, MixtureDataset):
            raise no_mixture(name)
        last_begins, _ = mixture.chain[-1]  # position of the run at which the last stage begins, and its digest
        if stage is None:
            is_done = last_begins < from_position  # there is nothing to remove
        else:
            is_done = last_begins == from_position and mixture.file.stages[-1] == stage
        if is_done:  # a client that got no answer asks again
            return
        check()
        try:
            append_to_mixture(path, stage, from_position, self.component, replace=replace)
        except MixtureError as error:
            field = "from_position" if "position" in str(error) else "weights"  # only the text says what is wrong
            raise invalid_field(field, str(error)) from None
        except OSError as error:
            raise ServiceError(
                pb.ERROR_REASON_NOT_IMPLEMENTED,
                f"this server cannot write {path.name} ({error.strerror}); append on a machine that can write the data "
                "root, with `packhorse mixture append --data-root DIR`",
            ) from None

    def component(self, name: str) -> PreparedDataset:
        """Returns a dataset that may be a component.

        Raises:
            MixtureError: it is a mixture itself, or there is no dataset of that name.
        """
        if not self._catalog.has(name) and self._files.has(name):
            raise MixtureError(f"{name} is a mixture itself; name its components")
        try:
            return self._catalog.get(name)
        except ServiceError as error:
            raise MixtureError(error.message) from None

    def confirm(self, dataset: Dataset, components: Iterable[int] = ()) -> None:
        """Makes sure that bins came from files that were checked; see `Datasets.confirm`."""
        if isinstance(dataset, MixtureDataset):
            try:
                for number in components:
                    self._catalog.confirm(dataset.datasets[number])
            except ServiceError:
                # The mixture is made again, from the datasets as they are then.
                self._last_read.pop(dataset.name, None)
                raise
        elif isinstance(dataset, PreparedDataset):
            self._catalog.confirm(dataset)

    def is_current(self, dataset: Dataset) -> bool:
        """Whether a dataset's streams continue. They do if a mixture's file is gone: only a changed file ends them."""
        if not isinstance(dataset, MixtureDataset):
            return True
        try:
            now = self.get(dataset.name)
        except ServiceError:
            return True
        return now is dataset

    def takedown(self, dataset: Dataset, *, is_open: bool = False) -> Takedown:
        """Returns what files take away from a dataset or mixture; see `Datasets.takedown`."""
        return self._takedowns.of(dataset, is_open=is_open)

    def follow(self, progress: StreamProgress) -> None:
        """Follows an open stream; see `Datasets.follow`."""
        self._takedowns.follow(progress)

    def _is_served(self, name: str) -> bool:
        """Whether a dataset or mixture, with its takedown, can be served; logs why not."""
        try:
            self.takedown(self.get(name))
        except ServiceError as error:
            self._refuse(name, error.message, self._files.stamp(name))
            return False
        last_read = self._last_read.get(name)
        if last_read is not None and last_read.stamp == self._files.stamp(name):  # right again, without being read
            self._wrong.pop(name, None)
            self._refused.pop(name, None)
        return True

    def _read_again(self, name: str, found: FoundFile) -> MixtureDataset:
        """Reads a mixture's changed file; returns the new mixture, or the previous one if the file is wrong.

        Raises:
            ServiceError: the file is wrong, and was never right.
        """
        last_read = self._last_read.get(name)
        before = None if last_read is None else last_read.mixture
        if last_read is not None and last_read.stamp == found.stamp:  # another thread was faster
            return last_read.mixture
        try:
            mixture = self._mixture_of_file(name, found.path)
        except PreparedDatasetError as error:
            if before is None:
                raise not_served(name, str(error)) from None
            why = f"{error}; it stays as it was, digest {before.manifest.digest}"
            if isinstance(error.__cause__, OSError):  # the unchanged file is read again: the disk may answer then
                self._note_trouble(name, why)
            else:
                self._refuse(name, why, found.stamp)
            return before
        if before is not None and before.file == mixture.file:  # only touched
            mixture = before
        elif before is not None:
            self._log_change(before, mixture)
        self._last_read[name] = _LastRead(found.stamp, mixture)
        self._refused.pop(name, None)
        self._wrong.pop(name, None)
        return mixture

    def _log_change(self, before: MixtureDataset, now: MixtureDataset) -> None:
        """Logs that a mixture changed, and warns if it did so at positions that a stream has passed."""
        name = now.name
        _LOG.info("mixture %s changed: digest %s", name, now.manifest.digest)
        changes_from, furthest = first_difference(before.chain, now.chain), self._takedowns.furthest(name)
        if changes_from is not None and furthest is not None and furthest.run_position > changes_from:
            _LOG.warning(
                "mixture %s changes from position %d of the run, and a stream has come to %s: trainers continue "
                "with the bins that they hold, and those that hold any from there on are refused then; stop all "
                "ranks and resume them from a cursor at or before that position, or restore the stages",
                name,
                changes_from,
                furthest,
            )

    def _mixture_of_file(self, name: str, path: Path) -> MixtureDataset:
        """Returns the mixture of a file; raises a PreparedDatasetError if the file or a component is wrong."""
        self._catalog.refuse_link(path, path.name)
        file = MixtureFile.parse(text_of(path, MOST_MIXTURE_BYTES, MixtureError), path.name)
        try:
            datasets = [self.component(component) for component in file.names]
        except MixtureError as error:
            raise MixtureError(f"{path.name}: {error}") from None
        return MixtureDataset(name, file, datasets)

    def _refuse(self, name: str, why: str, stamp: Stamp | None) -> None:
        """Notes why the file with this stamp is refused, so that it is not read again; None if there is no file."""
        if stamp is not None and self._refused.get(name) != stamp:
            self._refused[name] = stamp
            self._note_trouble(name, why)

    def _note_trouble(self, name: str, why: str) -> None:
        """Notes what is wrong with a mixture's file, and logs it unless it was noted before."""
        if self._wrong.get(name) != why:
            self._wrong[name] = why
            _LOG.error("mixture %s: %s", name, why)
