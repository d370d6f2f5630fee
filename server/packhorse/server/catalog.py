"""The datasets that are served: every prepared folder below one root, by its folder's name.

Owns finding, opening and withdrawing them; leaves how a folder is checked to `dataset`, and how a change of open files
is noticed to `stamps`.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packhorse.dataset import MANIFEST, PreparedDataset, PreparedDatasetError, open_prepared
from packhorse.server.faults import ServiceError
from packhorse.server.stamps import ArrayStamps, Stamps, stamps_of
from packhorse.v1 import packing_pb2 as pb

_LOG = logging.getLogger(__name__)

CHECK_AT_ONCE_BYTES = 1 << 30
"""Pools up to this size are read and compared with their checksum before they are served; larger ones beside serving,
so that a server of a huge corpus starts at once, and are withdrawn when they turn out altered."""

MOST_NAMES = 8
"""How many datasets a message names: a message of thousands would be refused on its way."""


@dataclass(frozen=True, eq=False)
class _Served:
    """A dataset that is open."""

    dataset: PreparedDataset
    arrays: ArrayStamps
    stamps: Stamps
    """Of its folder's files when it was opened."""


@dataclass(frozen=True)
class _Refused:
    """A folder that could not be opened, or was withdrawn."""

    reason: str
    stamps: Stamps
    """Of its files when it was refused: it is looked at again when they change."""


class Catalog:
    """Prepared datasets below a root; a folder that appears later is found when it is asked for.

    A dataset that was opened is served until the process ends, even when its folder is replaced. It is withdrawn when
    its open files are altered. A folder that was refused is tried again once its files change. Opening a folder holds
    up nobody who asks for another.

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
        self._told: dict[str, Stamps] = {}
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
        """Opens prepared folders that are not known yet, or that changed since they were refused."""
        for folder in self._folders():
            self._open(folder)

    def names(self) -> list[str]:
        """Names of the datasets that can be asked for, ascending."""
        self.refresh()
        with self._lock:
            return sorted(self._served)

    def get(self, name: str) -> PreparedDataset:
        """Returns a dataset; a ServiceError where there is none of that name, or where it is corrupt."""
        served = self._served.get(name)
        if served is not None:
            return served.dataset
        folders = {folder.name: folder for folder in self._folders()}
        if name in folders:
            self._open(folders[name])
        with self._lock:
            served, refused = self._served.get(name), self._refused.get(name)
            names = sorted({*folders, *self._served} - {*self._refused})
        if served is not None:
            return served.dataset
        if refused is not None:
            raise _corrupt(name, refused.reason)
        raise no_dataset(name, names)

    def confirm(self, dataset: PreparedDataset) -> None:
        """Makes sure that what was just read from a dataset came from the files that were checked.

        To be called after bins were read and before they are sent.

        Raises:
            ServiceError: a file was altered or cut while it was served, and the dataset is withdrawn.
        """
        served = self._served.get(dataset.name)
        if served is None or served.dataset is not dataset:
            refused = self._refused.get(dataset.name)
            raise _corrupt(dataset.name, refused.reason if refused else "it was withdrawn")
        if served.arrays.is_unchanged():
            return
        try:
            served.arrays.check_again(dataset)
        except (PreparedDatasetError, OSError) as error:
            reason = _reason(dataset.path, error)
            self._withdraw(dataset, reason)
            raise _corrupt(dataset.name, reason) from None

    def opened(self) -> list[PreparedDataset]:
        """The datasets that are open now."""
        with self._lock:
            return [served.dataset for served in self._served.values()]

    def tell_of_replaced(self) -> None:
        """Logs, once each, which datasets' folders hold others by now: what runs trains on stays what it was."""
        with self._lock:
            served = list(self._served.values())
        for each in served:
            stamps = stamps_of(each.dataset.path)
            if stamps not in (each.stamps, self._told.get(each.dataset.name)):
                self._told[each.dataset.name] = stamps
                _LOG.warning(
                    "%s was replaced or altered on disk; this server goes on with the one it opened, digest %s. "
                    "Restart it to serve the new one, or give the new one another name",
                    each.dataset.name,
                    each.dataset.manifest.digest,
                )

    def _folders(self) -> Iterator[Path]:
        for folder in [self._root] if (self._root / MANIFEST).exists() else sorted(self._root.iterdir()):
            if not folder.name.startswith(".") and (folder / MANIFEST).exists():
                yield folder

    def _open(self, folder: Path) -> None:
        with self._lock:
            opening = self._opening.setdefault(folder.name, threading.Lock())
        with opening:  # whoever asks for the same folder meanwhile waits, nobody else
            if folder.name in self._served:
                return
            stamps = stamps_of(folder)
            refused = self._refused.get(folder.name)
            if refused is not None and refused.stamps == stamps:
                return
            try:
                self._check_inside(folder)
                dataset, is_checked = self._load(folder, stamps)
                served = _Served(dataset, ArrayStamps.of(dataset), stamps)
            except Exception as error:  # however odd a folder is, it costs nothing but itself
                self._refuse(folder, error, stamps)
                return
            with self._lock:
                self._served[folder.name] = served
                self._refused.pop(folder.name, None)
        if not is_checked:
            threading.Thread(target=self._check_beside_serving, args=(dataset, stamps), daemon=True).start()

    def _check_inside(self, folder: Path) -> None:
        """Refuses a folder that links lead out of the root: who may write there may not read all that the server may.

        Raises:
            PreparedDatasetError: it, or one of its files, is such a link.
        """
        for path in (folder, *folder.iterdir()):
            if not path.resolve().is_relative_to(self._root):
                name = folder.name if path == folder else f"{folder.name}/{path.name}"
                raise PreparedDatasetError(
                    f"{name} is a link that leads out of the data root; move what it stands for there, or mount it"
                )

    def _load(self, folder: Path, stamps: Stamps) -> tuple[PreparedDataset, bool]:
        """Opens a folder with these stamps, and tells whether its arrays were compared with their checksums."""
        num_bytes = sum(path.stat().st_size for path in folder.glob("*.npy"))
        at_once = num_bytes <= CHECK_AT_ONCE_BYTES
        return open_prepared(folder, check_pool=at_once), at_once

    def _refuse(self, folder: Path, error: Exception, stamps: Stamps) -> None:
        if isinstance(error, PreparedDatasetError | OSError):
            _LOG.error("not serving %s: %s", folder.name, error)
        else:
            _LOG.error("not serving %s", folder.name, exc_info=error)
        with self._lock:
            self._refused[folder.name] = _Refused(_reason(folder, error), stamps)

    def _check_beside_serving(self, dataset: PreparedDataset, stamps: Stamps) -> None:
        """Compares a dataset, whose folder had these stamps when it was opened, with its checksums."""
        try:
            dataset.check_pool()
        except (PreparedDatasetError, OSError) as error:
            self._withdraw(dataset, _reason(dataset.path, error))

    def _withdraw(self, dataset: PreparedDataset, reason: str) -> None:
        _LOG.error("withdrawing %s: %s", dataset.name, reason)
        with self._lock:
            self._refused[dataset.name] = _Refused(reason, stamps_of(dataset.path))
            self._served.pop(dataset.name, None)


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


def _reason(folder: Path, error: Exception) -> str:
    """What a client may read: no path of this machine, no trace."""
    if isinstance(error, PreparedDatasetError):
        return str(error)
    if isinstance(error, OSError):
        return f"{folder.name} cannot be read: {error.strerror}"
    return f"{folder.name} cannot be opened: {type(error).__name__}; the server's log has the details"


def _corrupt(name: str, reason: str) -> ServiceError:
    return ServiceError(pb.ERROR_REASON_DATASET_CORRUPT, f"dataset {name!r} is not served: {reason}", {"dataset": name})
