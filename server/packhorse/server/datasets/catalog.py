"""The datasets of a server: every prepared folder below one root, by its folder's name, in the version of a digest.

Owns opening, replacing, refusing and withdrawing them. Leaves finding the folders to `_folders`, the check of a folder
to `packhorse.dataset`, and noticing that open files changed to `stamps`.
"""

import logging
import math
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from packhorse.dataset import (
    PreparedDataset,
    PreparedDatasetError,
    aside_of,
    find_version,
    open_prepared,
)
from packhorse.server.base.faults import RETRY_AFTER_SECONDS, ServiceError, lacks_files, no_file_left
from packhorse.server.datasets._folders import find_folders, has_folders, has_manifest
from packhorse.server.datasets.catalog_records import OlderVersion, OpenDataset, RefusedFolder
from packhorse.server.datasets.refusals import no_dataset, not_served, reason_of
from packhorse.server.datasets.stamps import ArrayStamps, Stamps, stamps_of
from packhorse.storage import look_at

_LOG = logging.getLogger(__name__)

CHECK_AT_ONCE_BYTES = 1 << 30
"""Pools up to this size are compared with their checksum before they are served. Larger ones are compared while they
are served, so that a server of a huge corpus starts at once, and are withdrawn if they were altered."""

TRY_AGAIN_SECONDS = 10.0
"""Time after which a folder that the system failed to read is tried again."""

_STILL_SERVED = "; the version loaded before is served until this server ends, and a restart would not serve it"


class Catalog:
    """Prepared datasets below a root. A folder that appears later is found when a client asks for it.

    If a folder is replaced, clients get the new version; those that ask for the old digest get the old version as long
    as somebody reads it. Earlier versions inside a folder, which `prepare --append` keeps, are opened for clients that
    ask for their digests. If a folder disappears, its dataset is still served. A dataset is withdrawn if its open files
    are altered. A refused folder is tried again once its files change, or soon if the system failed to read it. Opening
    a folder delays only clients that ask for it.

    Args:
        root: a folder of prepared folders, or one prepared folder.

    Raises:
        PreparedDatasetError: there is no dataset, or none that can be opened.
    """

    def __init__(self, root: Path | str) -> None:
        self._root = Path(root).resolve()
        self._lock = threading.Lock()  # held to look up names, never while a folder is read
        # By the dataset's name, which is its folder's:
        self._current: dict[str, OpenDataset] = {}
        self._refused: dict[str, RefusedFolder] = {}
        self._locks: dict[str, threading.Lock] = {}  # held while a folder is opened
        self._older: dict[str, list[OlderVersion]] = {}  # the oldest first
        self._gone: dict[str, str] = {}  # dataset that is served though its folder is not there → why
        self._hanging: set[str] = set()  # folders whose file system did not answer when it was last asked
        if not look_at(str(self._root), self._root.is_dir):
            raise PreparedDatasetError(f"data root {root} is not a folder")
        if not look_at(f"{root}/*", lambda: has_folders(self._root, self.has)):
            raise PreparedDatasetError(
                f"no prepared dataset below {root}; `packhorse prepare --output {root}/NAME …` writes one"
            )
        self._open_first()

    def _open_first(self) -> None:
        """Opens all folders; raises a PreparedDatasetError if none can be served."""
        self.refresh()
        if not self._current:
            reasons = "; ".join(refused.reason for refused in self._refused.values())
            raise PreparedDatasetError(f"no dataset below {self._root} can be served: {reasons}")

    @property
    def root(self) -> Path:
        """The folder of the prepared folders."""
        return self._root

    def refresh(self) -> None:
        """Opens prepared folders that are not known yet, or that changed since they were opened or refused."""
        try:
            found = self._find_folders()
        except OSError as error:
            self._note_gone(dict.fromkeys(self._current, f"the data root cannot be read: {error.strerror}"))
            raise
        for folder, stamps in found.items():
            self._open(folder, stamps)
        names = {folder.name for folder in found} | self._hanging
        # A folder that is just being replaced may lie aside for a moment: it is not gone.
        gone = [name for name in self._current if name not in names and not aside_of(self._root / name).exists()]
        self._note_gone(dict.fromkeys(gone, "its folder is gone"))
        with self._lock:
            self._refused = {name: refused for name, refused in self._refused.items() if name in names}
            kept = {name: [older for older in olders if not older.is_gone()] for name, olders in self._older.items()}
            self._older = {name: olders for name, olders in kept.items() if olders}

    def _note_gone(self, gone: dict[str, str]) -> None:
        """Notes which datasets are served from files that a restart would not find, and logs what is new."""
        before, self._gone = self._gone, gone
        for name, why in gone.items():
            if name not in before:
                _LOG.error("%s: %s%s", name, why, _STILL_SERVED)
        for name in before.keys() - gone.keys():
            _LOG.info("%s: its folder is there again", name)

    def names(self) -> list[str]:
        """Returns the names of the datasets, ascending; only of the open ones if the root is unreadable."""
        with suppress(OSError):  # `watch` in `app.health` logs it
            self.refresh()
        with self._lock:
            return sorted(self._current)

    def opened(self) -> list[PreparedDataset]:
        """Returns the datasets that are open now."""
        with self._lock:
            return [current.dataset for current in self._current.values()]

    def has(self, name: str) -> bool:
        """Whether a dataset of that name is open, without looking at the disk."""
        return name in self._current

    def troubles(self) -> dict[str, str]:
        """Returns what is wrong with folders as they are on disk now, by name.

        A dataset that was loaded before its folder was damaged is still served, until a restart.
        """
        with self._lock:
            wrong = self._gone | {name: refused.reason for name, refused in self._refused.items()}
            return {name: f"{why}{_STILL_SERVED if name in self._current else ''}" for name, why in wrong.items()}

    def older_digests(self, name: str) -> list[str]:
        """Returns the digests of a dataset's older versions that are kept, the oldest first."""
        with self._lock:
            return [older.digest for older in self._older.get(name, ()) if not older.is_gone()]

    def get(self, name: str, digest: str = "", *, besides: Iterable[str] = ()) -> PreparedDataset:
        """Returns a dataset in the version of a digest; in the newest without a digest, or if that version is gone.

        Args:
            name: the dataset's name.
            digest: the version's digest; empty for the newest.
            besides: names of mixtures, which the error for an unknown name lists too.

        Raises:
            ServiceError: no dataset has that name, its folder is refused, or the server can open no more files.
        """
        current = self._current.get(name)
        is_current = current is not None and digest in ("", current.dataset.manifest.digest)
        if not is_current and (older := self._older_version(name, digest)) is not None:
            return older
        if current is not None:
            return self._in_version(current.dataset, digest)
        try:
            found = self._find_folders()
        except OSError as error:  # `watch` in `app.health` logs it
            if lacks_files(error):
                raise no_file_left() from None
            found = {}
        folders = {folder.name: (folder, stamps) for folder, stamps in found.items()}
        if name in folders:
            folder, stamps = folders[name]
            self._open(folder, stamps)
        with self._lock:
            current, refused = self._current.get(name), self._refused.get(name)
            served = {*folders, *self._current} - {*self._refused}
        if current is not None:
            return self._in_version(current.dataset, digest)
        if refused is not None:
            raise no_file_left() if refused.lacks_files else not_served(name, refused.reason)
        raise no_dataset(name, sorted({*served, *besides}))

    def confirm(self, dataset: PreparedDataset) -> None:
        """Makes sure that bins, read but not yet sent, came from the files that were checked.

        Raises:
            ServiceError: a file was altered or cut while it was served, and the dataset is withdrawn.
        """
        arrays = self._arrays_of(dataset)
        if arrays is None:
            refused = self._refused.get(dataset.name)
            raise not_served(dataset.name, refused.reason if refused else "it was withdrawn")
        if not arrays.is_unchanged():
            self._check_open_files(dataset, arrays)

    def refuse_link(self, path: Path, name: str) -> None:
        """Refuses a link that leads out of the root; the message calls it `name`.

        Raises:
            PreparedDatasetError: it is such a link.
        """
        try:
            target = look_at(str(path), path.resolve)
        except TimeoutError as error:
            raise PreparedDatasetError(f"{name} cannot be looked at: {error.strerror}") from error
        if not target.is_relative_to(self._root):
            raise PreparedDatasetError(
                f"{name} is a link that leads out of the data root; move its target there, or mount it"
            )

    def _check_open_files(self, dataset: PreparedDataset, arrays: ArrayStamps) -> None:
        """Compares a version's open files with their checksums; if one differs, withdraws it with a ServiceError."""
        try:
            arrays.check_again(dataset)
        except (PreparedDatasetError, OSError) as error:
            if lacks_files(error):
                raise no_file_left() from None
            reason = reason_of(dataset.path, error)
            self._withdraw(dataset, reason)
            raise not_served(dataset.name, reason) from None

    def _arrays_of(self, dataset: PreparedDataset) -> ArrayStamps | None:
        """Returns the open files of a version; None if it was withdrawn."""
        current = self._current.get(dataset.name)
        if current is not None and current.dataset is dataset:
            return current.arrays
        for older in self._older.get(dataset.name, ()):
            if older.holds(dataset):
                older.read()
                return older.arrays
        return None

    def _find_folders(self) -> dict[Path, Stamps]:
        """Returns as `find_folders`, and refuses the folders that do not answer until they do.

        Raises:
            OSError: the root cannot be read.
        """
        found = find_folders(self._root, self.has)
        self._hanging = {folder.name for folder in found.hanging}
        for folder, error in found.hanging.items():
            self._refuse(folder, error, stamps=())  # none is known, so it is tried again as soon as it answers
        return found.stamps

    def _open(self, folder: Path, stamps: Stamps) -> None:
        """Opens a folder whose files have these stamps, or refuses it; does nothing if it was so before."""
        with self._lock:
            lock = self._locks.setdefault(folder.name, threading.Lock())
        with lock:  # only requests for the same folder wait meanwhile
            refused, before = self._refused.get(folder.name), self._current.get(folder.name)
            if (before is not None and stamps == before.stamps) or (refused is not None and refused.stays(stamps)):
                return
            if not stamps and not has_manifest(folder) and not aside_of(folder).exists():  # it is gone
                return
            if before is not None:
                with suppress(ServiceError):  # if files were altered in place, this withdraws the dataset
                    self.confirm(before.dataset)
            try:
                opened, is_checked = self._open_version(folder, stamps)
            except Exception as error:  # no folder, however odd, affects another
                self._refuse(folder, error, stamps)
                return
            is_new = self._serve(folder.name, opened)
        if not is_checked and is_new:
            self._begin_check_beside_serving(opened)

    def _serve(self, name: str, opened: OpenDataset) -> bool:
        """Serves a folder as it is open now, and keeps the version before it; returns whether this is a new version.

        If only the files are others, what was open before stays open: streams read it.
        """
        now = opened.dataset
        with self._lock:
            before = self._current.get(name)  # None if it was withdrawn
            is_new = before is None or before.dataset.manifest.digest != now.manifest.digest
            if before is not None and not is_new:
                opened = OpenDataset(dataset=before.dataset, arrays=before.arrays, stamps=opened.stamps)
            elif before is not None:
                self._older.setdefault(name, []).append(OlderVersion(before))
                _warn_of_new_version(before.dataset, now)
            self._current[name] = opened
            if self._refused.pop(name, None) is not None:
                _LOG.info("%s is right now: it is served with digest %s", name, now.manifest.digest)
        return is_new

    def _in_version(self, current: PreparedDataset, digest: str) -> PreparedDataset:
        """Returns the earlier version with a digest, if the folder of `current` keeps it; otherwise `current`."""
        if digest in ("", current.manifest.digest) or current.manifest.version == 1:
            return current
        with self._locks[current.name]:
            if (older := self._older_version(current.name, digest)) is not None:  # a request at the same time opened it
                return older
            folder = find_version(current.path, digest)
            if folder is None:
                return current
            stamps = stamps_of(folder)
            try:
                opened, is_checked = self._open_version(folder, stamps)
            except (PreparedDatasetError, OSError) as error:
                _LOG.error("not serving an earlier version of %s: %s", current.name, error)
                return current
            with self._lock:
                self._older.setdefault(current.name, []).append(OlderVersion(opened))
        if not is_checked:
            self._begin_check_beside_serving(opened)
        return opened.dataset

    def _older_version(self, name: str, digest: str) -> PreparedDataset | None:
        """Returns the dataset of an older version that is open; None if none has the digest."""
        for older in self._older.get(name, ()):
            if older.digest == digest and (dataset := older.read()) is not None:
                return dataset
        return None

    def _open_version(self, folder: Path, stamps: Stamps) -> tuple[OpenDataset, bool]:
        """Opens a folder with these stamps; returns also whether its arrays were compared with their checksums."""
        self._check_inside(folder)
        dataset, is_checked = self._open_files(folder, stamps)
        return OpenDataset(dataset=dataset, arrays=ArrayStamps.of(dataset), stamps=stamps), is_checked

    def _check_inside(self, folder: Path) -> None:
        """Refuses a folder with links out of the root: its owner may not be allowed to read what the server can."""
        self.refuse_link(folder, folder.name)
        for path in folder.iterdir() if folder.is_dir() else ():  # else opening it raises
            self.refuse_link(path, f"{folder.name}/{path.name}")

    def _open_files(self, folder: Path, stamps: Stamps) -> tuple[PreparedDataset, bool]:
        """Opens a folder's files, and returns whether its arrays were compared with their checksums."""
        num_bytes = sum(path.stat().st_size for path in folder.glob("*.npy"))
        at_once = num_bytes <= CHECK_AT_ONCE_BYTES
        return open_prepared(folder, check_pool=at_once), at_once

    def _refuse(self, folder: Path, error: Exception, stamps: Stamps) -> None:
        """Notes why a folder is not served, and when it is tried again; logs it unless it has been logged."""
        still_served = _STILL_SERVED if folder.name in self._current else ""
        what = "the new version of " if still_served else ""
        reason, refused = reason_of(folder, error), self._refused.get(folder.name)
        is_logged = refused is not None and (refused.reason, refused.stamps) == (reason, stamps)
        if isinstance(error, PreparedDatasetError | OSError) and not is_logged:
            _LOG.error("not serving %s%s: %s%s", what, folder.name, error, still_served)
        elif not is_logged:
            _LOG.error("not serving %s%s%s", what, folder.name, still_served, exc_info=error)
        seconds = TRY_AGAIN_SECONDS if isinstance(error, OSError | MemoryError) else math.inf
        if lacks_files(error):
            seconds = RETRY_AFTER_SECONDS
        with self._lock:
            self._refused[folder.name] = RefusedFolder(reason, stamps, time.monotonic() + seconds, lacks_files(error))

    def _begin_check_beside_serving(self, opened: OpenDataset) -> None:
        thread = threading.Thread(target=self._check_beside_serving, args=(opened.dataset, opened.stamps), daemon=True)
        thread.start()

    def _check_beside_serving(self, dataset: PreparedDataset, stamps: Stamps) -> None:
        """Compares a dataset with its checksums, and withdraws it if one differs.

        `stamps` are those of its folder when it was opened.
        """
        try:
            dataset.check_pool()
        except (PreparedDatasetError, OSError) as error:
            if stamps_of(dataset.path) != stamps:  # the folder holds another version by now: the open files decide
                arrays = self._arrays_of(dataset)
                if arrays is not None:
                    with suppress(ServiceError):
                        self._check_open_files(dataset, arrays)
                return
            self._withdraw(dataset, reason_of(dataset.path, error))

    def _withdraw(self, dataset: PreparedDataset, reason: str) -> None:
        """Ends serving a version; if it is the current one, its folder is refused until its files change."""
        _LOG.error("withdrawing %s: %s", dataset.name, reason)
        with self._lock:
            olders = self._older.get(dataset.name, ())
            self._older[dataset.name] = [older for older in olders if not older.holds(dataset)]
            current = self._current.get(dataset.name)
            if current is not None and current.dataset is dataset:
                self._refused[dataset.name] = RefusedFolder(reason, stamps_of(dataset.path))
                del self._current[dataset.name]


def _warn_of_new_version(before: PreparedDataset, now: PreparedDataset) -> None:
    _LOG.warning(
        "%s was replaced: new runs get digest %s; those that began with digest %s keep it while they read it",
        now.name,
        now.manifest.digest,
        before.manifest.digest,
    )
