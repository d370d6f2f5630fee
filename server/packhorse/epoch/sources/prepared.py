"""The epoch of a prepared dataset as a function: from any position to its bin, and from any id to its position.

Owns `EpochView`, the source of which all others are made. Leaves the compiled loops to `plan_kernels` and
`locating_kernels`, the ranks that get the positions to `assignment`, and the pool's files to `packhorse.dataset`.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.epoch import locating_kernels, plan_kernels
from packhorse.epoch.bins import Bins, PoolArray, read_only
from packhorse.epoch.columns import column_to_read, column_to_write
from packhorse.epoch.draws import MOST_IN_NARROW_WORDS, permute_positions
from packhorse.epoch.permutation import ROW_WIDTH, Permutation, fill_parameters
from packhorse.epoch.plan_index import PlanIndex
from packhorse.epoch.seeds import checked_seed, derive_key
from packhorse.epoch.sources.source import Locations, checked_positions
from packhorse.epoch.sources.unfilled import LENGTH_DTYPE, Columns, Outline, UnfilledBins, bins_at

LocateEntries = Callable[[NDArray[np.int64], NDArray[np.int64]], tuple[NDArray[np.int64], NDArray[np.int64]]]
"""A function such as `EpochView.locate_entries`."""


class EpochView:
    """One epoch of a prepared dataset, under one seed.

    Args:
        plan: the plan's tables.
        pool: ids of all lengths, ascending by (length, id): uint32 or int64 [number of sequences].
        seed: in [0, 2^64).
        epoch: in [0, 2^64).
        first_tokens: first token of each pool entry in its sequence, if the pool has pieces: uint32 or int64 [as the
            pool]; entries of one length then ascend by (id, first token).
        window: number of the locality window that the plan is of, in [0, 2^32); each is shuffled separately.
        wide: whether to draw with 64-bit words, which only large pools need; the ids are the same. None decides by the
            pool's size.

    Raises:
        ValueError: seed or epoch is out of range, or the pool or first_tokens does not have the plan's size.
    """

    def __init__(
        self,
        plan: PlanIndex,
        pool: PoolArray,
        *,
        seed: int,
        epoch: int,
        first_tokens: PoolArray | None = None,
        window: int = 0,
        wide: bool | None = None,
    ) -> None:
        self.seed = checked_seed("seed", seed)
        self.epoch = checked_seed("epoch", epoch)
        check_pool(plan, pool, first_tokens)
        self._plan = plan
        self.num_bins = plan.num_bins
        self.max_seq_len = plan.max_seq_len
        self.max_sequences_per_bin = plan.max_sequences_per_bin
        self._pool = read_only(pool)
        self._first_tokens = None if first_tokens is None else read_only(first_tokens)
        self._pool_columns = (column_to_read(self._pool), column_to_read(self._first_tokens))
        self._dtypes = {"ids": pool.dtype, "lengths": LENGTH_DTYPE}
        if first_tokens is not None:
            self._dtypes["first_tokens"] = first_tokens.dtype
        self._template_costs: dict[int, NDArray[np.int64]] = {}  # the last `cost_linear` → a bin's cost by template
        draws_64_bits = len(pool) > MOST_IN_NARROW_WORDS if wide is None else wide
        self._words = np.empty(0, dtype=np.uint64 if draws_64_bits else np.uint32)  # only its dtype is used
        self._bin_row = Permutation(max(plan.num_bins, 1), derive_key(self.seed, self.epoch, "bins"), window).row
        self._pool_rows = np.empty((len(plan.lengths), ROW_WIDTH), dtype=np.uint64)
        fill_parameters(
            np.maximum(plan.counts, 1).view(np.uint64),  # a window may lack a length
            plan.pool_starts.view(np.uint64),
            plan.lengths.astype(np.uint64) | np.uint64(window << 32),  # another tweak for each length and window
            np.uint64(derive_key(self.seed, self.epoch, "pool")),
            self._pool_rows,
        )
        self.num_bytes = self._pool_rows.nbytes
        """Bytes of memory that this epoch takes in addition to its dataset."""

    def bins(self, positions: ArrayLike) -> Bins:
        """Returns the bins at the given positions, in that order; raises a ValueError if one is outside."""
        return bins_at(self, positions)

    def find(self, positions: NDArray[np.int64], outline: Outline, first_template: int = 0) -> UnfilledBins:
        """Finds the bins at the given positions; see `FindingSource.find`."""
        templates, copies = np.empty((2, len(positions)), dtype=np.int64)
        permute_positions(self._bin_row, positions, copies)
        plan_kernels.find_bins(
            self._plan.bin_tables, first_template, templates, copies, outline.sizes, outline.templates
        )
        return UnfilledBins(
            fill=partial(self.draw, templates, copies),
            num_bins=len(positions),
            dtypes=self._dtypes,
            have_templates=True,
        )

    def draw(
        self, templates: NDArray[np.int64], copies: NDArray[np.int64], bounds: NDArray[np.int64], columns: Columns
    ) -> int:
        """Fills bins that `find` found, and returns their number of tokens.

        Args:
            templates: template of each bin: int64 [N].
            copies: which copy of its template each bin is: int64 [N].
            bounds: as in `Fill`.
            columns: receive the bins.
        """
        num_tokens, _ = plan_kernels.draw_ids(
            self._plan.draw_tables,
            self._pool_rows,
            *self._pool_columns,
            self._words,
            templates,
            copies,
            bounds[0],
            column_to_write(columns["ids"]),
            columns["lengths"],
            column_to_write(None if self._first_tokens is None else columns["first_tokens"]),
        )
        return int(num_tokens)

    def costs(self, positions: ArrayLike, cost_linear: int) -> NDArray[np.int64]:
        """Returns the costs of the bins at the given positions, which are those of their templates: int64 [N]."""
        wanted_positions = checked_positions(positions, self.num_bins)
        template_costs = self._template_costs.get(cost_linear)
        if template_costs is None:
            template_costs = self._plan.template_costs(cost_linear)
            self._template_costs = {cost_linear: template_costs}
        costs = np.empty(len(wanted_positions), dtype=np.int64)
        permute_positions(self._bin_row, wanted_positions, costs)
        plan_kernels.find_costs(self._plan.bin_tables, template_costs, costs)
        return costs

    def locate(self, ids: ArrayLike) -> Locations:
        """Returns where ids are in the epoch, in O(distinct lengths · log pool) for each: its length is not known."""
        return located(self._plan, self._pool, self._first_tokens, ids, self.locate_entries)

    def locate_entries(
        self, length_index: NDArray[np.int64], entries: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns where entries of the pool are: positions, and indices in the bins; both -1 for an entry of -1.

        Args:
            length_index: int64 [n], each entry's index into the plan's lengths.
            entries: int64 [n], indices into the pool.
        """
        positions, index_in_bin = np.full((2, len(entries)), -1, dtype=np.int64)
        locating_kernels.locate_entries(
            self._plan.tables,
            self._plan.repeat_tables,
            self._pool_rows,
            self._bin_row,
            length_index,
            entries,
            positions,
            index_in_bin,
        )
        return positions, index_in_bin


def check_pool(plan: PlanIndex, pool: PoolArray, first_tokens: PoolArray | None) -> None:
    """Raises a ValueError if a pool or its first_tokens have another size than the plan."""
    if len(pool) != plan.pool_size:
        raise ValueError(f"the pool has {len(pool)} ids, but the plan uses {plan.pool_size}")
    if first_tokens is not None and len(first_tokens) != len(pool):
        raise ValueError(f"there are {len(first_tokens)} first_tokens for {len(pool)} ids")


def located(
    plan: PlanIndex, pool: PoolArray, first_tokens: PoolArray | None, ids: ArrayLike, locate_entries: LocateEntries
) -> Locations:
    """Returns where ids are in an epoch: finds their entries in the pool, which `locate_entries` then locates."""
    wanted_ids = np.ascontiguousarray(ids, dtype=np.int64)
    index_of_id, length_index, entries = _find_entries(plan, pool, first_tokens is not None, wanted_ids)
    firsts = np.where(entries < 0, -1, 0)  # first token of each entry in its sequence
    if first_tokens is not None:
        firsts[entries >= 0] = first_tokens[entries[entries >= 0]]
        order = np.lexsort((firsts, index_of_id))
        index_of_id, length_index = index_of_id[order], length_index[order]
        entries, firsts = entries[order], firsts[order]
    positions, index_in_bin = locate_entries(length_index, entries)
    lengths = np.full(len(index_of_id), -1, dtype=np.int64)
    lengths[entries >= 0] = plan.lengths[length_index[entries >= 0]]
    return Locations(
        ids=wanted_ids[index_of_id],
        first_tokens=firsts,
        lengths=lengths,
        positions=positions,
        index_in_bin=index_in_bin,
    )


def _find_entries(
    plan: PlanIndex, pool: PoolArray, has_pieces: bool, wanted_ids: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Returns what `locating_kernels.find_entries` writes, in arrays that are long enough.

    These are, for each row, the index of its id in `wanted_ids`, the index of its length in the plan, and its entry of
    the pool; int64 [rows] each.
    """
    num_rows = len(wanted_ids)
    while True:
        rows = (np.empty(num_rows, np.int64), np.empty(num_rows, np.int64), np.empty(num_rows, np.int64))
        num_found = locating_kernels.find_entries(plan.tables, pool, wanted_ids, has_pieces, *rows)
        if num_found <= num_rows:
            return rows
        num_rows = num_found  # an id has a row for each piece, so the arrays were too short
