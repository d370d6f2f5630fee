"""An epoch of a prepared dataset, as a function: any bin at any position, and back from any id.

Owns `EpochView`, the source that all others are made of; leaves the order in which positions are asked for to
`assignment`, and the pool's files to the dataset.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.epoch.bins import Bins, PoolArray, read_only
from packhorse.epoch.kernels import ids_to_positions as lookup
from packhorse.epoch.kernels import positions_to_ids as kernels
from packhorse.epoch.kernels.columns import read, written
from packhorse.epoch.kernels.draws import MOST_IN_NARROW_WORDS, permute_positions
from packhorse.epoch.kernels.permutation import ROW_WIDTH, Permutation, fill_parameters
from packhorse.epoch.keys import checked_seed, derive_key
from packhorse.epoch.plan_index import PlanIndex
from packhorse.epoch.sources.found import Columns, Found, Outline, made
from packhorse.epoch.sources.source import Locations, checked_positions

LocateEntries = Callable[[NDArray[np.int64], NDArray[np.int64]], tuple[NDArray[np.int64], NDArray[np.int64]]]


class EpochView:
    """One epoch under one seed.

    Args:
        plan: the plan's tables.
        pool: ids of all lengths, ascending by (length, id): uint32 or int64 [number of sequences].
        seed: in [0, 2^64).
        epoch: in [0, 2^64).
        first_tokens: where each pool entry begins in its sequence, for pools that hold pieces; uint32 or int64, as long
            as the pool, and entries of one length ascend by (id, first token).
        window: which locality window the plan is of, in [0, 2^32): each is shuffled by itself.
        wide: draw in words of 64 bits, which large pools need and others may do without; the ids are the same. None
            asks the pool's size.

    Raises:
        ValueError: seed or epoch is out of range, or the pool's or first_tokens' size is not the plan's.
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
        if len(pool) != plan.pool_size:
            raise ValueError(f"the pool has {len(pool)} ids, but the plan uses {plan.pool_size}")
        if first_tokens is not None and len(first_tokens) != len(pool):
            raise ValueError(f"there are {len(first_tokens)} first_tokens for {len(pool)} ids")
        self._plan = plan
        self._pool = read_only(pool)
        self._first_tokens = None if first_tokens is None else read_only(first_tokens)
        self._read = (read(self._pool), read(self._first_tokens))
        self._costs: tuple[int, NDArray[np.int64]] | None = None
        is_wide = len(pool) > MOST_IN_NARROW_WORDS if wide is None else wide
        self._words = np.empty(0, dtype=np.uint64 if is_wide else np.uint32)
        self._bin_row = Permutation(max(plan.num_bins, 1), derive_key(self.seed, self.epoch, "bins"), window).row
        self._pool_rows = np.empty((len(plan.lengths), ROW_WIDTH), dtype=np.uint64)
        fill_parameters(
            np.maximum(plan.counts, 1).view(np.uint64),  # a window may lack a length
            plan.pool_starts.view(np.uint64),
            plan.lengths.astype(np.uint64) | np.uint64(window << 32),
            np.uint64(derive_key(self.seed, self.epoch, "pool")),
            self._pool_rows,
        )

    @property
    def num_bins(self) -> int:
        """B: bins in the epoch."""
        return self._plan.num_bins

    @property
    def num_bytes(self) -> int:
        """Memory that this epoch takes beside its dataset."""
        return self._pool_rows.nbytes

    @property
    def max_seq_len(self) -> int:
        """A bin's capacity in tokens."""
        return self._plan.max_seq_len

    @property
    def max_sequences_per_bin(self) -> int:
        """The most sequences in any bin."""
        return self._plan.max_sequences_per_bin

    def bins(self, positions: ArrayLike) -> Bins:
        """Returns the bins at the given positions, in that order.

        Args:
            positions: int [N], each in [0, num_bins); repeats allowed.

        Raises:
            ValueError: a position is outside the epoch.
        """
        wanted = checked_positions(positions, self.num_bins)
        outline = Outline.of(len(wanted))
        return made(outline, self.find(wanted, outline), wanted)

    def find(self, positions: NDArray[np.int64], outline: Outline, first_template: int = 0) -> Found:
        """Finds the bins at the given positions, to be made in memory that `outline` names.

        Args:
            positions: int64 [n], each in [0, num_bins); repeats allowed.
            outline: of n bins; gets what is known of them.
            first_template: where the numbers of templates begin.
        """
        templates, copies = np.empty((2, len(positions)), dtype=np.int64)
        permute_positions(self._bin_row, positions, copies)
        kernels.find_bins(self._plan.bin_tables, first_template, templates, copies, outline.sizes, outline.templates)
        return Found(
            fill=partial(self.draw, templates, copies),
            num_bins=len(positions),
            ids_dtype=self._pool.dtype,
            columns={} if self._first_tokens is None else {"first_tokens": self._first_tokens.dtype},
            have_templates=True,
        )

    def draw(
        self,
        templates: NDArray[np.int64],
        copies: NDArray[np.int64],
        bounds: NDArray[np.int64],
        ids: PoolArray,
        lengths: NDArray[np.int32],
        columns: Columns,
    ) -> int:
        """Makes bins that were found, and returns how many tokens they have.

        Args:
            templates: of each bin: int64 [n].
            copies: which of its template's bins each is: int64 [n].
            bounds: as `Fill` takes them, and what follows likewise.
            ids: written.
            lengths: written.
            columns: written.
        """
        num_tokens, _ = kernels.draw_ids(
            self._plan.draw_tables,
            self._pool_rows,
            self._read[0],
            self._read[1],
            self._words,
            templates,
            copies,
            bounds[0],
            written(ids),
            lengths,
            written(columns.get("first_tokens") if self._first_tokens is not None else None),
        )
        return int(num_tokens)

    def costs(self, positions: ArrayLike, cost_linear: int) -> NDArray[np.int64]:
        """Returns the cost of the bins at the given positions, by a look-up of their templates: int64 [N].

        Args:
            positions: int [N], each in [0, num_bins).
            cost_linear: a sequence of L tokens costs cost_linear · L + L².
        """
        wanted = checked_positions(positions, self.num_bins)
        known = self._costs
        if known is None or known[0] != cost_linear:
            known = self._costs = (cost_linear, self._plan.template_costs(cost_linear))
        costs = np.empty(len(wanted), dtype=np.int64)
        permute_positions(self._bin_row, wanted, costs)
        kernels.find_costs(self._plan.bin_tables, known[1], costs)
        return costs

    def locate(self, ids: ArrayLike) -> Locations:
        """Returns where ids are in the epoch.

        Costs O(distinct lengths · log pool) an id: an id does not tell its length.

        Args:
            ids: int [n].
        """
        return located(self._plan, self._pool, self._first_tokens, ids, self.locate_entries)

    def locate_entries(
        self, length_index: NDArray[np.int64], entries: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns where entries of the pool are: positions, and indices in their bins; -1 for an entry of -1.

        Args:
            length_index: int64 [n], each entry's index into the plan's lengths.
            entries: int64 [n], indices into the pool.
        """
        positions = np.full(len(entries), -1, dtype=np.int64)
        index_in_bin = np.full(len(entries), -1, dtype=np.int64)
        lookup.place_entries(
            self._plan.tables,
            self._plan.run_tables,
            self._pool_rows,
            self._bin_row,
            length_index,
            entries,
            positions,
            index_in_bin,
        )
        return positions, index_in_bin


def located(
    plan: PlanIndex, pool: PoolArray, first_tokens: PoolArray | None, ids: ArrayLike, locate_entries: LocateEntries
) -> Locations:
    """Returns where ids stand, given where the pool's entries do.

    Args:
        plan: of the whole epoch.
        pool: ids of all lengths, as `EpochView` takes them.
        first_tokens: as `EpochView` takes them.
        ids: int [n].
        locate_entries: as `EpochView.locate_entries`.
    """
    wanted = np.ascontiguousarray(ids, dtype=np.int64)
    which, length_index, entries = _entries(plan, pool, first_tokens is not None, wanted)
    begins = np.where(entries < 0, -1, 0)
    if first_tokens is not None:
        begins[entries >= 0] = first_tokens[entries[entries >= 0]]
        order = np.lexsort((begins, which))
        which, length_index, entries, begins = which[order], length_index[order], entries[order], begins[order]
    positions, index_in_bin = locate_entries(length_index, entries)
    lengths = np.full(len(which), -1, dtype=np.int64)
    lengths[entries >= 0] = plan.lengths[length_index[entries >= 0]]
    return Locations(
        ids=wanted[which],
        first_tokens=begins,
        lengths=lengths,
        positions=positions,
        index_in_bin=index_in_bin,
    )


def _entries(
    plan: PlanIndex, pool: PoolArray, has_pieces: bool, wanted: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Returns rows of (which wanted id, index into lengths, index into the pool): int64 [n] each."""
    num_rows, size = len(wanted), -1
    while size < num_rows:  # with pieces the number of rows is known only afterwards
        size = num_rows
        rows = (np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64))
        num_rows = lookup.find_entries(plan.tables, pool, wanted, has_pieces, *rows)
    return rows
