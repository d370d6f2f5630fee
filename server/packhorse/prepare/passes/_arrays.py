"""The array files of the folder to be: made with their disk space, then filled from runs, range by range.

Owns which there are and which tasks fill them. Leaves how a range is cut and merged to `_merge`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import OVER_LENGTH, POOLS, STARTS, create_array
from packhorse.prepare.passes._counted import Counted
from packhorse.prepare.passes._merge import MergeTask, cut_merges
from packhorse.prepare.passes.passes import Run, map_pool


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """The array files of the folder to be, where runs are merged into them."""

    pool: str
    first_tokens: str | None
    over: str | None

    @property
    def files(self) -> list[str]:
        """Those that there are."""
        return [file for file in (self.pool, self.first_tokens, self.over) if file is not None]

    @classmethod
    def claimed(cls, folder: Path, counted: Counted, *, lists_over: bool) -> "Arrays":
        """Makes those that are not there, with their disk space; the list of what is too long only if `lists_over`."""
        shape = (int(counted.counts.sum()),)
        num_over = counted.over_length.sequences if lists_over else 0
        return cls(
            pool=_kept(folder / POOLS, counted.id_dtype, shape),
            first_tokens=_kept(folder / STARTS, counted.start_dtype, shape) if counted.start_dtype else None,
            over=_kept(folder / OVER_LENGTH, "int64", (num_over, 2)) if num_over else None,
        )

    def merges(self, runs: Sequence[Run], edges: NDArray[np.int64], *, sort: bool, workers: int) -> list[MergeTask]:
        """Returns the tasks that fill them.

        Args:
            runs: what is merged, in order.
            edges: int64 [k, D + 1], where each room's entries begin in each run, and where the last one's end.
            sort: whether runs overlap; else the ids of each are above those of the run before.
            workers: how many tasks run at a time.
        """
        cut = partial(cut_merges, sort=sort, workers=workers)
        files = [(run.ids, run.first_tokens) for run in runs]
        tasks = [*cut(files, edges, self.pool, writes="ids")]
        if self.first_tokens:
            tasks += cut(files, edges, self.first_tokens, writes="first_tokens")
        if self.over:
            lists = [run.over for run in runs if run.over]
            over_edges = np.array([[0, len(map_pool(path))] for path in lists])
            tasks += cut([(path, None) for path in lists], over_edges, self.over, writes="over")
        return tasks


def _kept(path: Path, dtype_name: str, shape: tuple[int, ...]) -> str:
    """Returns the file of an array that interrupted work made, or makes it."""
    try:
        found = map_pool(str(path))
        if (found.dtype.name, found.shape) == (dtype_name, shape):
            return str(path)
    except (OSError, ValueError):  # missing, or cut
        pass
    return claim(path, dtype_name, shape)


def claim(path: Path | str, dtype_name: str, shape: tuple[int, ...]) -> str:
    """Makes an array file anew, with its disk space, and returns its path."""
    Path(path).unlink(missing_ok=True)
    create_array(Path(path), dtype_name, shape)
    return str(path)
