"""An epoch of a prepared dataset, as a function: any bin at any position, and back from any id.

Owns `EpochView` and the block of bins that it returns; leaves the order in which positions are asked for to
`topology`, and the files behind the pool to the dataset.
"""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.epoch import kernels, lookup
from packhorse.epoch.keys import checked_seed, derive_key
from packhorse.epoch.permutation import ROW_WIDTH, Permutation, fill_parameters
from packhorse.epoch.plan_index import PlanIndex

PoolArray = NDArray[np.uint32 | np.int64]
"""Ids as they lie in a pool."""

_Made = TypeVar("_Made")

_MOST_SHARED = 4
"""Dealt steps that an epoch keeps: a run asks for one, another only where it goes on under another topology."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Bins:
    """Bins laid end to end.

    Legend: S sequences, N bins.
    """

    ids: PoolArray
    """Ids of all sequences, bin after bin, in the pool's dtype: uint32 or int64 [S]."""
    lengths: NDArray[np.int32]
    """Their lengths in tokens: int32 [S]."""
    bin_ends: NDArray[np.int64]
    """Exclusive end of every bin in `ids`: int64 [N]."""
    positions: NDArray[np.int64]
    """Position of every bin: int64 [N]; -1 for a bin that the remainder policy added."""
    starts: PoolArray | None = None
    """First token of each entry in its sequence: uint32 or int64 [S]; None where all begin at token 0."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Locations:
    """Where ids stand in an epoch; every array is int64 [n], and -1 but for its id where the dataset lacks one.

    One row an id, in the order asked for; an id whose sequence was split has a row for each piece, one after the other
    by ascending start.
    """

    ids: NDArray[np.int64]
    """The id."""
    starts: NDArray[np.int64]
    """First token in its sequence."""
    lengths: NDArray[np.int64]
    """Length in tokens."""
    positions: NDArray[np.int64]
    """Position of the bin that holds the id."""
    index_in_bin: NDArray[np.int64]
    """The id's index among the sequences of that bin."""


class EpochView:
    """One epoch under one seed.

    Args:
        plan: the plan's tables.
        pool: ids of all lengths, ascending by (length, id): uint32 or int64 [number of sequences].
        seed: in [0, 2^64).
        epoch: in [0, 2^64).
        starts: first token of each pool entry in its sequence, for pools that hold pieces; uint32 or int64, as long as
            the pool, and entries of one length ascend by (id, start).

    Raises:
        ValueError: seed or epoch is out of range, or the pool's or starts' size is not the plan's.
    """

    def __init__(
        self, plan: PlanIndex, pool: PoolArray, *, seed: int, epoch: int, starts: PoolArray | None = None
    ) -> None:
        self.seed = checked_seed("seed", seed)
        self.epoch = checked_seed("epoch", epoch)
        if len(pool) != plan.num_sequences:
            raise ValueError(f"the pool has {len(pool)} ids, but the plan places {plan.num_sequences}")
        if starts is not None and len(starts) != len(pool):
            raise ValueError(f"there are {len(starts)} starts for {len(pool)} ids")
        self._plan = plan
        self._pool = pool
        self._starts = starts
        self._lock = threading.Lock()
        self._shared: dict[Hashable, Any] = {}
        self._bin_row = Permutation(max(plan.num_bins, 1), derive_key(self.seed, self.epoch, "bins")).row
        self._pool_rows = np.empty((len(plan.lengths), ROW_WIDTH), dtype=np.uint64)
        fill_parameters(
            plan.counts.view(np.uint64),
            plan.pool_starts.view(np.uint64),
            plan.lengths.astype(np.uint64),
            np.uint64(derive_key(self.seed, self.epoch, "pool")),
            self._pool_rows,
        )

    @property
    def num_bins(self) -> int:
        """B: bins in the epoch."""
        return self._plan.num_bins

    def shared(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """Returns what `make` made of this epoch under `key`: once for all streams, the last few are kept."""
        with self._lock:
            if key not in self._shared:
                while len(self._shared) >= _MOST_SHARED:
                    del self._shared[next(iter(self._shared))]
                self._shared[key] = make()
            return self._shared[key]

    def bins(self, positions: ArrayLike) -> Bins:
        """Returns the bins at the given positions, in that order.

        Args:
            positions: int [N], each in [0, num_bins); repeats allowed.

        Raises:
            ValueError: a position is outside the epoch.
        """
        wanted = np.ascontiguousarray(positions, dtype=np.int64)
        if len(wanted) and not 0 <= int(wanted.min()) <= int(wanted.max()) < self.num_bins:
            bad = wanted[(wanted < 0) | (wanted >= self.num_bins)][0]
            raise ValueError(f"positions must be in [0, {self.num_bins}), got {bad}")
        plan = self._plan
        templates = np.empty(len(wanted), dtype=np.int64)
        copies = np.empty(len(wanted), dtype=np.int64)
        bin_ends = np.empty(len(wanted), dtype=np.int64)
        kernels.find_bins(
            wanted,
            self._bin_row,
            plan.first_bin,
            plan.lookup,
            plan.lookup_shift,
            plan.template_size,
            templates,
            copies,
            bin_ends,
        )
        num_sequences = int(bin_ends[-1]) if len(wanted) else 0
        ids, lengths = self._draw(self._pool, templates, copies, num_sequences)
        starts = None if self._starts is None else self._draw(self._starts, templates, copies, num_sequences)[0]
        return Bins(ids=ids, lengths=lengths, bin_ends=bin_ends, positions=wanted, starts=starts)

    def _draw(
        self, pool: PoolArray, templates: NDArray[np.int64], copies: NDArray[np.int64], num_sequences: int
    ) -> tuple[PoolArray, NDArray[np.int32]]:
        """Returns what the drawn entries hold in an array beside the pool, or in the pool itself, and their lengths."""
        plan = self._plan
        values = np.empty(num_sequences, dtype=pool.dtype)
        lengths = np.empty(num_sequences, dtype=np.int32)
        kernels.draw_ids(
            templates,
            copies,
            plan.first_run,
            plan.run_length,
            plan.run_copies,
            plan.run_first_draw,
            plan.lengths,
            self._pool_rows,
            pool,
            np.empty(num_sequences, dtype=np.int32),
            np.empty(num_sequences, dtype=np.uint64),
            values,
            lengths,
        )
        return values, lengths

    def locate(self, ids: ArrayLike) -> Locations:
        """Returns where ids stand in the epoch.

        Costs O(distinct lengths · log pool) an id: an id does not tell its length.

        Args:
            ids: int [n].
        """
        plan = self._plan
        wanted = np.ascontiguousarray(ids, dtype=np.int64)
        which, length_index, entries = self._entries(wanted)
        starts = np.where(entries < 0, -1, 0)
        if self._starts is not None:
            starts[entries >= 0] = self._starts[entries[entries >= 0]]
            order = np.lexsort((starts, which))
            which, length_index, entries, starts = which[order], length_index[order], entries[order], starts[order]
        positions = np.full(len(which), -1, dtype=np.int64)
        index_in_bin = np.full(len(which), -1, dtype=np.int64)
        by_length_run, by_length_start, run_template = self._runs_by_length
        lookup.place_entries(
            length_index,
            entries,
            plan.pool_starts,
            self._pool_rows,
            by_length_start,
            by_length_run,
            run_template,
            plan.run_copies,
            plan.run_first_draw,
            plan.first_run,
            plan.first_bin,
            self._bin_row,
            positions,
            index_in_bin,
        )
        lengths = np.full(len(which), -1, dtype=np.int64)
        lengths[entries >= 0] = plan.lengths[length_index[entries >= 0]]
        return Locations(
            ids=wanted[which], starts=starts, lengths=lengths, positions=positions, index_in_bin=index_in_bin
        )

    def _entries(self, wanted: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Returns rows of (which wanted id, index into lengths, index into the pool): int64 [n] each."""
        plan = self._plan
        num_rows, size = len(wanted), -1
        while size < num_rows:  # with pieces the number of rows is known only afterwards
            size = num_rows
            rows = (np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64))
            num_rows = lookup.find_entries(
                wanted, self._pool, plan.pool_starts, plan.counts, self._starts is not None, *rows
            )
        return rows

    @cached_property
    def _runs_by_length(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Runs sorted by (length, template), where each length's begin, and each run's template."""
        plan = self._plan
        by_length = np.argsort(plan.run_length, kind="stable")
        starts = np.searchsorted(plan.run_length[by_length], np.arange(len(plan.lengths) + 1))
        run_template = np.repeat(np.arange(len(plan.template_size)), np.diff(plan.first_run))
        return by_length, starts.astype(np.int64), run_template
