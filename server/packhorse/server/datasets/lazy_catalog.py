"""The catalog of an embedded client: datasets opened on first use, whose checksums are compared once.

Owns what is kept open, and which folders were checked. Datasets planned in memory are in `memory_catalog`.
"""

from pathlib import Path
from typing import NamedTuple, Protocol

from packhorse.dataset import PreparedDataset, open_prepared
from packhorse.server.datasets.catalog import Catalog
from packhorse.server.datasets.stamps import Stamps


class _Opened(NamedTuple):
    """A dataset, and the stamps that its files had when it was opened."""

    stamps: Stamps
    dataset: PreparedDataset


_OPEN: dict[Path, _Opened] = {}
"""What this process opened last in each folder."""


class Checked(Protocol):
    """A set of texts, which processes may share. A single process can give a `set`."""

    def add(self, text: str, /) -> None:
        """Adds a text."""
        ...

    def __contains__(self, text: str, /) -> bool:
        """Whether a text was added."""
        ...


class LazyCatalog(Catalog):
    """A catalog that opens a dataset on first use, and compares no checksums twice.

    Args:
        root: as of a Catalog.
        checked: the text by `_key` of each folder whose arrays matched their checksums. These folders are not compared
            again. Other folders are added once they matched.

    Raises:
        PreparedDatasetError: there is no dataset.
    """

    def __init__(self, root: Path | str, checked: Checked) -> None:
        self._checked = checked
        super().__init__(root)

    def _open_first(self) -> None:
        """Opens nothing: each dataset is opened when a client asks for it."""

    def refuse_link(self, path: Path, name: str) -> None:
        """Refuses no link out of the root: this process has the rights of its user."""

    def _open_files(self, folder: Path, stamps: Stamps) -> tuple[PreparedDataset, bool]:
        """Opens a folder, as `Catalog._open_files`, or takes the dataset that this process has open already.

        Returns:
            The dataset; and whether its arrays were compared with their checksums. If not, `Catalog` calls
            `_check_beside_serving`.
        """
        is_checked = _key(folder, stamps) in self._checked
        opened_before = _OPEN.get(folder)
        if opened_before is not None and opened_before.stamps == stamps:
            dataset = opened_before.dataset
        else:
            if is_checked:
                dataset = open_prepared(folder, check_pool=False)
            else:
                dataset, is_checked = super()._open_files(folder, stamps)
            _OPEN[folder] = _Opened(stamps, dataset)
        if is_checked:
            self._checked.add(_key(folder, stamps))
        return dataset, is_checked

    def _check_beside_serving(self, dataset: PreparedDataset, stamps: Stamps) -> None:
        """Compares a dataset with its checksums, as `Catalog` does, and remembers that they matched."""
        super()._check_beside_serving(dataset, stamps)
        if self._current.get(dataset.name) is not None:  # else it differed, and was withdrawn
            self._checked.add(_key(dataset.path, stamps))


def _key(folder: Path, stamps: Stamps) -> str:
    """Returns the text by which a folder in this state is remembered in `checked`."""
    return f"{folder} {stamps}"
