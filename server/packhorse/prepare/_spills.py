"""The second pass: each task writes its ids as a spill, a set of files sorted by room, id and first token.

Owns what a spill is, and writing one. Leaves counting, which must come first, to `counting`, and merging spills to
`_merging`.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from packhorse.dataset import OVER_LENGTH, POOLS, STARTS, PlanOptions, PreparedDataset, create_array
from packhorse.prepare._kernels import KEEP_HEAD, KEEP_TAIL, LEAVE_OUT, SPLIT, fill_pool, sort_pairs
from packhorse.prepare.counting import MOST_DENSE, CountTask, TaskCounts
from packhorse.prepare.input import changed, map_array
from packhorse.storage import sync

Entries = NDArray[np.uint32] | NDArray[np.int64]
"""An array file of entries, mapped: uint32 or int64 [n], or int64 [n, 2]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spill:
    """Files of entries, sorted by (room, id, first token): of one task, or of the dataset that is appended to."""

    ids: str
    """Path of the file of ids: uint32 or int64 [n]."""
    first_tokens: str | None
    """Path of the file of first tokens: uint32 or int64 [n]; None if all are 0."""
    over: str | None
    """Path of the file of (id, length) of over-long sequences, ascending by id: int64 [k, 2]; None without any."""

    @classmethod
    def of_version(cls, before: PreparedDataset) -> "Spill":
        """Returns a prepared dataset's array files as a spill, to be merged with the new ones."""
        return cls(
            ids=str(before.path / POOLS),
            first_tokens=str(before.path / STARTS) if before.manifest.start_dtype else None,
            over=str(before.path / OVER_LENGTH) if before.manifest.over_length.sequences else None,
        )

    @property
    def files(self) -> list[str]:
        """Paths of the files that the spill has."""
        return [file for file in (self.ids, self.first_tokens, self.over) if file is not None]

    def claim(self, counted: TaskCounts, id_dtype: str, start_dtype: str | None) -> None:
        """Creates the spill's files with their disk space, in place of any old ones."""
        shape = (int(counted.counts.sum()),)
        claim_array(self.ids, id_dtype, shape)
        if self.first_tokens and start_dtype:
            claim_array(self.first_tokens, start_dtype, shape)
        if self.over:
            claim_array(self.over, "int64", (counted.num_over, 2))

    def checksum(self) -> str:
        """Returns a checksum of all bytes of the spill's files."""
        checksum = xxhash.xxh3_64()
        for file in self.files:
            checksum.update(np.memmap(file, dtype=np.uint8, mode="r").data)
        return checksum.hexdigest()

    def is_whole(self, checksum: str | None) -> bool:
        """Returns whether the files still have the checksum that was recorded when the spill was finished."""
        return checksum is not None and all(map(os.path.exists, self.files)) and self.checksum() == checksum


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillTask:
    """The rows of one task, and the spill to write them into."""

    source: CountTask
    """The task of the first pass, whose rows are read again."""
    counted: TaskCounts
    """The rows' counts from the first pass."""
    spill: Spill
    """Files of the right size, still empty."""
    sort: bool
    """Whether ids must be sorted, because the rows may not ascend by id."""
    flush: bool
    """Whether to flush the files to disk, because other machines read them."""


def write_spill(task: SpillTask) -> str:
    """Writes a task's rows into its spill, sorted; returns the spill's checksum.

    A counting sort: the counts of the first pass say where each room's entries begin, so every id is written to its
    place at once. Then the ids of each room are sorted, if they do not ascend already.

    Raises:
        ValueError: a file is not as it was in the first pass.
    """
    counted, options, spill = task.counted, task.source.options, task.spill
    pool = map_entries(spill.ids, writable=True)
    first_tokens = np.empty(0, dtype=pool.dtype)
    if spill.first_tokens:
        first_tokens = map_entries(spill.first_tokens, writable=True)
    over_list = map_entries(spill.over, writable=True) if spill.over else None
    edges = np.concatenate(([0], np.cumsum(counted.counts)))
    places = _Places.of(counted.rooms, edges)
    limit, over_action = options.rooms.longest, _over_action(options)
    num_listed = 0  # entries of `over_list` so far
    path = ""  # of the last batch, for the error at the end; `batches` raises one if there is none
    for path, batch in task.source.batches():
        is_over = batch.lengths > limit
        kept = batch.ids if over_action != LEAVE_OUT else batch.ids[~is_over]
        if len(kept) and not (counted.id_low <= int(kept.min()) and int(kept.max()) <= counted.id_high):
            raise changed(path)
        room_rule = (limit, over_action, options.align, options.extra_tokens)
        row_without_place = fill_pool(batch.lengths, batch.ids, *room_rule, *places, pool, first_tokens)
        end = num_listed + int(is_over.sum())
        if row_without_place >= 0 or end > counted.num_over:
            raise changed(path)
        if over_list is not None:
            over_list[num_listed:end, 0] = batch.ids[is_over]
            over_list[num_listed:end, 1] = batch.lengths[is_over]
        num_listed = end
    if num_listed != counted.num_over or not np.array_equal(places.cursors, places.ends):
        raise changed(path)
    if task.sort:
        sort_segments(pool, first_tokens if spill.first_tokens else None, edges)
        if over_list is not None:
            sort_pairs(over_list[:, 0], over_list[:, 1])
    if task.flush:
        for file in spill.files:
            sync(Path(file))
    return spill.checksum()


class _Places(NamedTuple):
    """Where the next entry of each room is written: three arguments of the kernel `fill_pool`, in this order."""

    rooms: NDArray[np.int64]
    """The D distinct rooms, ascending: int64 [D]; empty if the other arrays are indexed by the room itself."""
    cursors: NDArray[np.int64]
    """The next free entry of each room: int64 [D], or [largest room + 1]."""
    ends: NDArray[np.int64]
    """The end of each room's entries, exclusive: int64, as many."""

    @classmethod
    def of(cls, rooms: NDArray[np.int64], edges: NDArray[np.int64]) -> "_Places":
        """Returns the places before anything is written.

        Args:
            rooms: the distinct rooms, ascending: int64 [D].
            edges: where each room's entries begin, and where the last room's end: int64 [D + 1].
        """
        largest = int(rooms[-1]) if len(rooms) else 0
        if largest >= MOST_DENSE:
            return cls(rooms, edges[:-1].copy(), edges[1:])
        # Indexed by the room itself, which saves a search for each row.
        cursors, ends = np.zeros((2, largest + 1), dtype=np.int64)
        cursors[rooms], ends[rooms] = edges[:-1], edges[1:]
        return cls(np.empty(0, dtype=np.int64), cursors, ends)


def _over_action(options: PlanOptions) -> int:
    """Returns the over-length policy as a constant of the kernel `fill_pool`."""
    if options.over_length == "truncate":
        return KEEP_HEAD if options.keep == "head" else KEEP_TAIL
    return SPLIT if options.over_length == "split" else LEAVE_OUT


def sort_segments(ids: Entries, first_tokens: Entries | None, edges: NDArray[np.int64]) -> None:
    """Sorts the entries of each room by (id, first token), in place.

    Args:
        ids: ids of all rooms' entries: [n].
        first_tokens: their first tokens: [n]; None if all are 0.
        edges: where each room's entries begin, and where the last room's end: int64 [D + 1].
    """
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if first_tokens is None:
            ids[begin:end].sort()
        elif end - begin > 1:
            sort_pairs(ids[begin:end], first_tokens[begin:end])


def claim_array(path: Path | str, dtype_name: str, shape: tuple[int, ...]) -> str:
    """Creates an array file with its disk space, in place of an old one, and returns its path."""
    Path(path).unlink(missing_ok=True)
    create_array(Path(path), dtype_name, shape)
    return str(path)


def map_entries(path: str, *, writable: bool = False) -> Entries:
    """Maps an array file of entries, read-only by default."""
    return np.asarray(map_array(path, writable=writable))
