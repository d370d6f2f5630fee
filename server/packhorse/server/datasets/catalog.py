"""The datasets that are served: every prepared folder below one root, by its folder's name.

Owns finding, opening and withdrawing them; leaves how a folder is checked to `dataset`, and how a change of open files
is noticed to `stamps`.
"""

import logging
import math
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from packhorse.dataset import (
    MANIFEST,
    PreparedDataset,
    PreparedDatasetError,
    aside_of,
    find_version,
    left_aside,
    open_prepared,
)
from packhorse.server.base.faults import ServiceError
from packhorse.server.base.stamps import ArrayStamps, Stamps, stamps_of
from packhorse.v1 import packing_pb2 as pb

_LOG = logging.getLogger(__name__)

CHECK_AT_ONCE_BYTES = 1 << 30
"""Pools up to this size are read and compared with their checksum before they are served; larger ones beside serving,
so that a server of a huge corpus starts at once, and are withdrawn when they turn out altered."""

KEEP_SECONDS = 3600.0
"""How long an older version is kept after it was read last: a run may pause between two epochs."""

TRY_AGAIN_SECONDS = 10.0
"""After which a folder is opened again that the system failed to read: it may pass, as where descriptors ran out."""

_OF_THE_FILE_SYSTEM = "lost+found"
"""Stands at the top of many volumes, where its owner alone may look into it."""

_GOES_ON = "; what was loaded before is served on until this server ends, and a restart would not serve it"

MOST_NAMES = 8
"""How many datasets a message names: a message of thousands would be refused on its way."""


@dataclass(frozen=True, eq=False)
class _Served:
    """A dataset that is open."""

    dataset: PreparedDataset
    arrays: ArrayStamps
    stamps: Stamps
    """Of its folder's files when it was opened."""


class _Older:
    """A version whose folder was replaced: kept as long as a stream reads it, and KEEP_SECONDS more.

    Args:
        served: what it was.
    """

    def __init__(self, served: _Served) -> None:
        self.digest = served.dataset.manifest.digest
        self.arrays = served.arrays
        self._kept: PreparedDataset | None = served.dataset
        self._dataset = weakref.ref(served.dataset)  # streams hold it while they are open
        self._read_at = time.monotonic()

    def holds(self, dataset: PreparedDataset) -> bool:
        """Whether it is this version."""
        return self._dataset() is dataset

    def read(self) -> PreparedDataset | None:
        """Returns the dataset, for which its time begins anew; None where it is gone."""
        self._read_at = time.monotonic()
        self._kept = self._dataset()
        return self._kept

    def is_gone(self) -> bool:
        """Lets go of the dataset when its time is over; whether nobody reads it any more either."""
        if time.monotonic() - self._read_at > KEEP_SECONDS:
            self._kept = None
        return self._dataset() is None


@dataclass(frozen=True)
class _Refused:
    """A folder that could not be opened, or was withdrawn."""

    reason: str
    stamps: Stamps
    """Of its files when it was refused: it is looked at again when they change."""
    until: float = math.inf
    """When it is looked at again all the same, by `time.monotonic`."""

    def stays(self, stamps: Stamps) -> bool:
        """Whether a folder with these stamps need not be looked at."""
        return stamps == self.stamps and time.monotonic() < self.until


class Catalog:
    """Prepared datasets below a root; a folder that appears later is found when it is asked for.

    A dataset is served under its name until its folder holds another: that one is then served to whoever asks for no
    digest or for its own, and the older version to those who ask for that one's, as long as somebody reads it. Versions
    that a folder keeps, as `prepare --append` does, are opened for those who ask for their digests. A folder that goes
    away changes nothing. A dataset is withdrawn when its open files are altered. A folder that was refused is tried
    again once its files change, or soon where the system failed to read it. Opening a folder holds up nobody who asks
    for another.

    Args:
        root: a folder of prepared folders, or one prepared folder.

    Raises:
        PreparedDatasetError: there is no dataset, or none that can be opened.
    """

    def __init__(self, root: Path | str) -> None:
        self._root = Path(root).resolve()
        self._lock = threading.Lock()  # held to look names up, never while a folder is read
        self._served: dict[str, _Served] = {}
        self._refused: dict[str, _Refused] = {}
        self._opening: dict[str, threading.Lock] = {}
        self._older: dict[str, list[_Older]] = {}
        if not self._root.is_dir():
            raise PreparedDatasetError(f"data root {root} is not a folder")
        if next(self._folders(), None) is None:
            raise PreparedDatasetError(
                f"no prepared dataset below {root}; `packhorse prepare --output {root}/NAME …` writes one"
            )
        self._open_first()

    def _open_first(self) -> None:
        """Opens all that is there."""
        self.refresh()
        if not self._served:
            reasons = "; ".join(refused.reason for refused in self._refused.values())
            raise PreparedDatasetError(f"no dataset below {self._root} can be served: {reasons}")

    def refresh(self) -> None:
        """Opens prepared folders that are not known yet, or that changed since they were opened or refused."""
        there = list(self._folders())
        for folder in there:
            self._open(folder)
        names = {folder.name for folder in there}
        with self._lock:
            self._refused = {name: refused for name, refused in self._refused.items() if name in names}
            kept = {name: [older for older in olders if not older.is_gone()] for name, olders in self._older.items()}
            self._older = {name: olders for name, olders in kept.items() if olders}

    def names(self) -> list[str]:
        """Names of the datasets that can be asked for, ascending; of those that are open, if the root is unreadable."""
        with suppress(OSError):  # the log is told by whoever watches the root
            self.refresh()
        with self._lock:
            return sorted(self._served)

    def has(self, name: str) -> bool:
        """Whether a dataset of that name is open, without a look at the disk."""
        return name in self._served

    def troubles(self) -> dict[str, str]:
        """Returns what is wrong with folders as they are on disk now, by name.

        A dataset that was loaded before its folder was damaged is served on, and only a restart would tell.
        """
        with self._lock:
            return {
                name: f"{refused.reason}{_GOES_ON if name in self._served else ''}"
                for name, refused in self._refused.items()
            }

    @property
    def root(self) -> Path:
        """The folder below which it looks."""
        return self._root

    def older_digests(self, name: str) -> list[str]:
        """Digests of a dataset's older versions that are kept, the oldest first."""
        with self._lock:
            return [older.digest for older in self._older.get(name, ()) if not older.is_gone()]

    def get(self, name: str, digest: str = "", *, besides: Iterable[str] = ()) -> PreparedDataset:
        """Returns a dataset; a ServiceError where there is none of that name, or where it is corrupt.

        Args:
            name: of its folder.
            digest: of the version wanted. Where that is not kept, and where it is empty, the newest is returned.
            besides: names of other things that can be asked for, which the error lists too.
        """
        served = self._served.get(name)
        if digest and (served is None or served.dataset.manifest.digest != digest):
            for older in self._older.get(name, ()):
                if older.digest == digest and (dataset := older.read()) is not None:
                    return dataset
        if served is not None:
            return self._version(served.dataset, digest)
        folders = {folder.name: folder for folder in self._folders()}
        if name in folders:
            self._open(folders[name])
        with self._lock:
            served, refused = self._served.get(name), self._refused.get(name)
            names = sorted({*folders, *self._served} - {*self._refused})
        if served is not None:
            return self._version(served.dataset, digest)
        if refused is not None:
            raise not_served(name, refused.reason)
        raise no_dataset(name, sorted({*names, *besides}))

    def confirm(self, dataset: PreparedDataset) -> None:
        """Makes sure that what was just read from a dataset came from the files that were checked.

        To be called after bins were read and before they are sent.

        Raises:
            ServiceError: a file was altered or cut while it was served, and the dataset is withdrawn.
        """
        arrays = self._arrays_of(dataset)
        if arrays is None:
            refused = self._refused.get(dataset.name)
            raise not_served(dataset.name, refused.reason if refused else "it was withdrawn")
        if not arrays.is_unchanged():
            self._check_open_files(dataset, arrays)

    def _check_open_files(self, dataset: PreparedDataset, arrays: ArrayStamps) -> None:
        """Compares a version's open files with their checksums; a ServiceError where one differs: it is withdrawn."""
        try:
            arrays.check_again(dataset)
        except (PreparedDatasetError, OSError) as error:
            reason = _reason(dataset.path, error)
            self._withdraw(dataset, reason)
            raise not_served(dataset.name, reason) from None

    def _arrays_of(self, dataset: PreparedDataset) -> ArrayStamps | None:
        """Returns the open files of a version that is served; None where it was withdrawn."""
        served = self._served.get(dataset.name)
        if served is not None and served.dataset is dataset:
            return served.arrays
        for older in self._older.get(dataset.name, ()):
            if older.holds(dataset):
                older.read()
                return older.arrays
        return None

    def opened(self) -> list[PreparedDataset]:
        """The datasets that are open now."""
        with self._lock:
            return [served.dataset for served in self._served.values()]

    def _folders(self) -> Iterator[Path]:
        for folder in [self._root] if has_manifest(self._root) else sorted(self._root.iterdir()):
            if not folder.name.startswith(".") and folder.name != _OF_THE_FILE_SYSTEM and has_manifest(folder):
                yield folder
            elif (crashed := left_aside(folder)) and crashed.name not in self._served and has_manifest(folder):
                yield crashed  # refused, with the way out

    def _open(self, folder: Path) -> None:
        with self._lock:
            opening = self._opening.setdefault(folder.name, threading.Lock())
        with opening:  # whoever asks for the same folder meanwhile waits, nobody else
            stamps = stamps_of(folder)
            refused, before = self._refused.get(folder.name), self._served.get(folder.name)
            if (before is not None and stamps == before.stamps) or (refused is not None and refused.stays(stamps)):
                return
            if not stamps and not has_manifest(folder) and not aside_of(folder).exists():  # it is gone
                return
            if before is not None:
                with suppress(ServiceError):  # altered in place: withdrawn, as its next reader would find
                    self.confirm(before.dataset)
            try:
                self._check_inside(folder)
                dataset, is_checked = self._load(folder, stamps)
                served = _Served(dataset, ArrayStamps.of(dataset), stamps)
            except Exception as error:  # however odd a folder is, it costs nothing but itself
                self._refuse(folder, error, stamps)
                return
            with self._lock:
                before = self._served.get(folder.name)  # None where it was withdrawn
                is_same = before is not None and before.dataset.manifest.digest == dataset.manifest.digest
                if before is not None and is_same:
                    served = _Served(before.dataset, before.arrays, stamps)
                elif before is not None:
                    self._older.setdefault(folder.name, []).append(_Older(before))
                    _tell_of_new_version(before.dataset, dataset)
                self._served[folder.name] = served
                self._refused.pop(folder.name, None)
        if not is_checked and not is_same:
            threading.Thread(target=self._check_beside_serving, args=(dataset, stamps), daemon=True).start()

    def _version(self, current: PreparedDataset, digest: str) -> PreparedDataset:
        """Returns the version with a digest that the folder of a dataset keeps; the dataset where there is none."""
        if digest in ("", current.manifest.digest) or current.manifest.version == 1:
            return current
        with self._opening[current.name]:
            for older in self._older.get(current.name, ()):  # by whoever asked at the same time
                if older.digest == digest and (dataset := older.read()) is not None:
                    return dataset
            folder = find_version(current.path, digest)
            if folder is None:
                return current
            stamps = stamps_of(folder)
            try:
                self._check_inside(folder)
                dataset, is_checked = self._load(folder, stamps)
                older = _Older(_Served(dataset, ArrayStamps.of(dataset), stamps))
            except (PreparedDatasetError, OSError) as error:
                _LOG.error("not serving an earlier version of %s: %s", current.name, error)
                return current
            with self._lock:
                self._older.setdefault(current.name, []).append(older)
        if not is_checked:
            threading.Thread(target=self._check_beside_serving, args=(dataset, stamps), daemon=True).start()
        return dataset

    def _check_inside(self, folder: Path) -> None:
        """Refuses a folder with links out of the root: who may write there may not read all that the server may."""
        self.refuse_link(folder, folder.name)
        for path in folder.iterdir() if folder.is_dir() else ():  # what it is otherwise, opening it says
            self.refuse_link(path, f"{folder.name}/{path.name}")

    def refuse_link(self, path: Path, name: str) -> None:
        """Refuses a link that leads out of the root.

        Args:
            path: below the root.
            name: what a message calls it.

        Raises:
            PreparedDatasetError: it is such a link.
        """
        if not path.resolve().is_relative_to(self._root):
            raise PreparedDatasetError(
                f"{name} is a link that leads out of the data root; move what it stands for there, or mount it"
            )

    def _load(self, folder: Path, stamps: Stamps) -> tuple[PreparedDataset, bool]:
        """Opens a folder with these stamps, and tells whether its arrays were compared with their checksums."""
        num_bytes = sum(path.stat().st_size for path in folder.glob("*.npy"))
        at_once = num_bytes <= CHECK_AT_ONCE_BYTES
        return open_prepared(folder, check_pool=at_once), at_once

    def _refuse(self, folder: Path, error: Exception, stamps: Stamps) -> None:
        goes_on = _GOES_ON if folder.name in self._served else ""
        what = "what is on disk now of " if goes_on else ""
        reason, before = _reason(folder, error), self._refused.get(folder.name)
        is_told = before is not None and (before.reason, before.stamps) == (reason, stamps)
        if isinstance(error, PreparedDatasetError | OSError) and not is_told:
            _LOG.error("not serving %s%s: %s%s", what, folder.name, error, goes_on)
        elif not is_told:
            _LOG.error("not serving %s%s%s", what, folder.name, goes_on, exc_info=error)
        until = time.monotonic() + TRY_AGAIN_SECONDS if isinstance(error, OSError | MemoryError) else math.inf
        with self._lock:
            self._refused[folder.name] = _Refused(reason, stamps, until)

    def _check_beside_serving(self, dataset: PreparedDataset, stamps: Stamps) -> None:
        """Compares a dataset, whose folder had these stamps when it was opened, with its checksums."""
        try:
            dataset.check_pool()
        except (PreparedDatasetError, OSError) as error:
            if stamps_of(dataset.path) != stamps:  # another stands there by now: what is open decides
                arrays = self._arrays_of(dataset)
                if arrays is not None:
                    with suppress(ServiceError):
                        self._check_open_files(dataset, arrays)
                return
            self._withdraw(dataset, _reason(dataset.path, error))

    def _withdraw(self, dataset: PreparedDataset, reason: str) -> None:
        _LOG.error("withdrawing %s: %s", dataset.name, reason)
        with self._lock:
            olders = self._older.get(dataset.name, ())
            self._older[dataset.name] = [older for older in olders if not older.holds(dataset)]
            served = self._served.get(dataset.name)
            if served is not None and served.dataset is dataset:
                self._refused[dataset.name] = _Refused(reason, stamps_of(dataset.path))
                del self._served[dataset.name]


def has_manifest(folder: Path) -> bool:
    """Whether it is a prepared folder, or may be one: where nobody may look into it, opening it says so."""
    try:
        return (folder / MANIFEST).exists()
    except PermissionError:
        return True


def _tell_of_new_version(before: PreparedDataset, now: PreparedDataset) -> None:
    _LOG.warning(
        "%s was replaced: new runs get digest %s; those that began with digest %s keep it while they read it",
        now.name,
        now.manifest.digest,
        before.manifest.digest,
    )


def no_dataset(name: str, names: Sequence[str]) -> ServiceError:
    """Returns the error for a name that no dataset has, with some of the names that there are."""
    some = ", ".join(names[:MOST_NAMES]) or "none"
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    shown = name if len(name) <= 80 else f"{name[:80]}…"
    return ServiceError(
        pb.ERROR_REASON_DATASET_NOT_FOUND,
        f"no dataset is named {shown!r}; this server has: {some}{more}",
        {"dataset": shown},
    )


def no_mixture(name: str) -> ServiceError:
    """Returns the error for a dataset that is asked for what only mixtures have."""
    return ServiceError(
        pb.ERROR_REASON_INVALID_FIELD,
        f"{name} is no mixture, but a prepared dataset; stages are appended to mixtures",
        {"field": "dataset"},
    )


def _reason(folder: Path, error: Exception) -> str:
    """What a client may read: no path of this machine, no trace."""
    if isinstance(error, PreparedDatasetError):
        return str(error)
    if isinstance(error, OSError):
        return f"{folder.name} cannot be read: {error.strerror}"
    return f"{folder.name} cannot be opened: {type(error).__name__}; the server's log has the details"


def not_served(name: str, reason: str) -> ServiceError:
    """Returns the error for a name whose files are not as they must be."""
    return ServiceError(pb.ERROR_REASON_DATASET_CORRUPT, f"dataset {name!r} is not served: {reason}", {"dataset": name})
