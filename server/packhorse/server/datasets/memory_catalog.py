"""The catalog of datasets that are planned from lengths in memory, for an embedded client.

Owns the way from lengths to an open dataset. It runs `packhorse.prepare` into a temporary folder, so the bins are the
same as those of a prepared folder. Datasets in folders are in `lazy_catalog`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import PreparedDataset, StageEntry, Takedown, open_prepared
from packhorse.formats.megatron import write_index
from packhorse.prepare import Execution, Grouping, PlanOptions, prepare
from packhorse.server.datasets.protocols import Dataset
from packhorse.server.datasets.refusals import no_dataset, no_mixture
from packhorse.server.datasets.stream_progress import StreamProgress
from packhorse.server.datasets.taken_away.takedowns import NOTHING


class MemoryCatalog:
    """A catalog of datasets without files.

    Args:
        lengths: name → int32 [S], the lengths of S sequences in tokens; ids are indices.
        options: fields of PlanOptions, and `group_size`, which is None for no groups.

    Raises:
        ValueError: an option or a length is out of range.
    """

    def __init__(self, lengths: Mapping[str, NDArray[np.int32]], options: Mapping[str, Any]) -> None:
        self._datasets = {name: _planned(name, own_lengths, options) for name, own_lengths in lengths.items()}

    def names(self) -> list[str]:
        """Returns the names of the datasets, ascending."""
        return sorted(self._datasets)

    def older_digests(self, name: str) -> list[str]:
        """Returns nothing: there are no other versions."""
        return []

    def get(self, name: str, digest: str = "") -> PreparedDataset:
        """Returns a dataset; raises a ServiceError if there is none of that name."""
        if name not in self._datasets:
            raise no_dataset(name, self.names())
        return self._datasets[name]

    def confirm(self, dataset: Dataset, components: Iterable[int] = ()) -> None:
        """Does nothing: nothing can have changed."""

    def append_stage(
        self, name: str, stage: StageEntry | None, from_position: int, check: Callable[[], None], *, replace: bool
    ) -> None:
        """Raises a ServiceError: there are no mixtures."""
        self.get(name)  # raises another one if there is no such dataset
        raise no_mixture(name)

    def takedown(self, dataset: Dataset, *, is_open: bool = False) -> Takedown:
        """Returns an empty takedown: there are no files."""
        return NOTHING

    def follow(self, progress: StreamProgress) -> None:
        """Does nothing: nothing is ever taken away."""

    def is_current(self, dataset: Dataset) -> bool:
        """Returns True: nothing changes."""
        return True


def _planned(name: str, lengths: NDArray[np.int32], options: Mapping[str, Any]) -> PreparedDataset:
    """Prepares a dataset in a temporary folder, and returns it with its arrays in memory."""
    with TemporaryDirectory(prefix="packhorse-") as folder:
        index = Path(folder, "lengths.idx")
        with index.open("wb") as file:
            write_index(file, lengths, np.dtype(np.uint16))  # any type of tokens would do: there are none
        plan_options = dict(options)
        group_size = plan_options.pop("group_size")
        prepare(
            index,
            output=Path(folder, name),
            plan=PlanOptions(**plan_options),
            grouping=None if group_size is None else Grouping(size=group_size),
            execution=Execution(progress=False, workers=1),
        )
        dataset = open_prepared(Path(folder, name), check_pool=False)
        first_tokens = None if dataset.first_tokens is None else _held(dataset.first_tokens)
        groups = dataset.groups
        if groups is not None:
            order = None if groups.order is None else _held(groups.order)
            groups = replace(groups, table=_held(groups.table), members=_held(groups.members), order=order)
        return replace(dataset, pool=_held(dataset.pool), first_tokens=first_tokens, groups=groups)


def _held(mapped: NDArray[Any]) -> NDArray[Any]:
    """Returns a copy of a mapped array, in memory."""
    held = np.array(mapped)
    held.flags.writeable = False  # as mapped arrays are: for Numba, a writable array would be of another type
    return held
