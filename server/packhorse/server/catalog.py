"""The datasets that are served: every prepared folder below one root, by its folder's name.

Owns finding, opening and withdrawing them; leaves how a folder is checked to `dataset`.
"""

import logging
import threading
from pathlib import Path

from packhorse.dataset import MANIFEST, POOLS, PreparedDataset, PreparedDatasetError, open_prepared
from packhorse.server.faults import ServiceError
from packhorse.v1 import packing_pb2 as pb

_LOG = logging.getLogger(__name__)

CHECK_AT_ONCE_BYTES = 1 << 30
"""Pools up to this size are read and compared with their checksum before they are served; larger ones beside serving,
so that a server of a huge corpus starts at once, and are withdrawn when they turn out altered."""


class Catalog:
    """Prepared datasets below a root; a folder that appears later is found when it is asked for.

    A dataset that was opened stays as it is until the process ends, even when its folder is replaced.

    Args:
        root: a folder of prepared folders, or one prepared folder.

    Raises:
        PreparedDatasetError: there is no dataset, or none that can be opened.
    """

    def __init__(self, root: Path | str) -> None:
        self._root = Path(root).resolve()
        self._lock = threading.Lock()
        self._datasets: dict[str, PreparedDataset] = {}
        self._broken: dict[str, str] = {}
        if not self._root.is_dir():
            raise PreparedDatasetError(f"data root {root} is not a folder")
        self.refresh()
        if not self._datasets:
            reasons = "; ".join(self._broken.values())
            raise PreparedDatasetError(
                f"no dataset below {root} can be served: {reasons}"
                if reasons
                else f"no prepared dataset below {root}; `packhorse prepare --output {root}/NAME …` writes one"
            )

    def refresh(self) -> None:
        """Looks for prepared folders that are not known yet."""
        folders = [self._root] if (self._root / MANIFEST).exists() else sorted(self._root.iterdir())
        for folder in folders:
            if folder.name.startswith(".") or not (folder / MANIFEST).exists():
                continue
            with self._lock:
                if folder.name not in self._datasets and folder.name not in self._broken:
                    self._open(folder)

    def names(self) -> list[str]:
        """Names of the datasets that can be asked for, ascending."""
        self.refresh()
        with self._lock:
            return sorted(self._datasets)

    def get(self, name: str) -> PreparedDataset:
        """Returns a dataset; a ServiceError where there is none of that name, or where it is corrupt."""
        if name not in self._datasets:
            self.refresh()
        with self._lock:
            if name in self._broken:
                raise ServiceError(
                    pb.ERROR_REASON_DATASET_CORRUPT,
                    f"dataset {name!r} is not served: {self._broken[name]}",
                    {"dataset": name},
                )
            if name not in self._datasets:
                served = ", ".join(sorted(self._datasets)) or "none"
                raise ServiceError(
                    pb.ERROR_REASON_DATASET_NOT_FOUND,
                    f"no dataset is named {name!r}; this server has: {served}",
                    {"dataset": name},
                )
            return self._datasets[name]

    def opened(self) -> list[PreparedDataset]:
        """The datasets that are open now."""
        with self._lock:
            return list(self._datasets.values())

    def _open(self, folder: Path) -> None:
        try:
            num_bytes = sum(path.stat().st_size for path in folder.glob("*.npy"))
            at_once = num_bytes <= CHECK_AT_ONCE_BYTES
            dataset = open_prepared(folder, check_pool=at_once)
        except PreparedDatasetError as error:
            _LOG.error("not serving %s: %s", folder.name, error)
            self._broken[folder.name] = str(error)
            return
        except OSError as error:
            _LOG.error("not serving %s: %s", folder.name, error)
            self._broken[folder.name] = f"{folder.name} cannot be read: {error.strerror}"
            return
        self._datasets[folder.name] = dataset
        if not at_once:
            threading.Thread(target=self._check_beside_serving, args=(dataset,), daemon=True).start()

    def _check_beside_serving(self, dataset: PreparedDataset) -> None:
        try:
            dataset.check_pool()
        except (PreparedDatasetError, OSError) as error:
            _LOG.error("withdrawing %s: %s", dataset.name, error)
            with self._lock:
                self._broken[dataset.name] = f"{POOLS} does not match its checksum"
                self._datasets.pop(dataset.name, None)
