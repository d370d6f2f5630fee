"""The third pass: spills are merged into the array files of the prepared folder, of which each task writes a range.

Owns pools.npy, starts.npy and over_length.npy while they are written, and cutting them into ranges, at pages of the
file, so that no two tasks write to the same page. Leaves the spills that are merged to `_spills`, and ids that occur
twice to `duplicates`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from packhorse.dataset import OVER_LENGTH, POOLS, STARTS, write_entries
from packhorse.prepare._kernels import scatter
from packhorse.prepare._spills import Entries, Spill, claim_array, map_entries, sort_segments
from packhorse.prepare.totals import Counted
from packhorse.wire import ids_sum

PAGE_BYTES = 1 << 16
"""Ranges are cut at multiples of this: the largest normal page of any machine, a block of most file systems."""

_HUGE_PAGE_BYTES = 1 << 21
"""Ranges of this size or larger are cut at multiples of it, so that the new file can be mapped in huge pages."""

_RANGE_BYTES = 1 << 24
"""The most bytes of a range."""
_RANGES_OF_WORKER = 8
"""Ranges for each worker, at least, so that workers end at about the same time."""
_PIVOTS = 64
"""Parts into which `_entries_at` divides a range of ids in each round of its search."""

Writes = Literal["ids", "first_tokens", "over"]
"""The array that a task writes: pools.npy, starts.npy or over_length.npy."""


class Files(NamedTuple):
    """Paths of the files of a spill that are merged into one array."""

    ids: str
    """The file of ids: uint32 or int64 [n]; or a list of (id, length): int64 [n, 2]."""
    first_tokens: str | None
    """The file of first tokens; None if all are 0, and for a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeTask:
    """A range of an array's entries, and where to find them in k spills.

    A segment is the entries of one room. The range may begin and end inside a segment.
    """

    spills: tuple[Files, ...]
    """Files of the k spills."""
    edges: NDArray[np.int64]
    """For each spill, where each of the D segments of the range begins, and where the last ends: int64 [k, D + 1]."""
    first_rank: int
    """Number of entries of the first segment, over all spills, that come before the range."""
    num_entries: int
    """Number of entries in the range."""
    output: str
    """Path of the array file."""
    first_entry: int
    """Index of the range's first entry in the array."""
    writes: Writes
    """The array that the file is."""
    sort: bool
    """Whether to sort each segment, as ids of different spills overlap. If not, the ids of each spill are greater than
    all ids of the spill before."""


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """Paths of the array files that merging writes."""

    pool: str
    """Path of pools.npy."""
    first_tokens: str | None
    """Path of starts.npy; None if all first tokens are 0."""
    over: str | None
    """Path of over_length.npy; None if no sequence is too long, or groups write it."""

    @property
    def files(self) -> list[str]:
        """All paths except None."""
        return [file for file in (self.pool, self.first_tokens, self.over) if file is not None]

    @classmethod
    def claimed(cls, folder: Path, counted: Counted, *, lists_over: bool) -> "Arrays":
        """Creates the files in a folder, with their disk space, unless interrupted work has left them.

        over_length.npy is created only if `lists_over`: groups write it themselves.
        """
        shape, start_dtype = (int(counted.counts.sum()),), counted.start_dtype
        num_over = counted.facts.over_length.sequences if lists_over else 0
        return cls(
            pool=_reused_or_claimed(folder / POOLS, counted.id_dtype, shape),
            first_tokens=_reused_or_claimed(folder / STARTS, start_dtype, shape) if start_dtype else None,
            over=_reused_or_claimed(folder / OVER_LENGTH, "int64", (num_over, 2)) if num_over else None,
        )

    def merges(self, spills: Sequence[Spill], edges: NDArray[np.int64], *, sort: bool, workers: int) -> list[MergeTask]:
        """Returns the tasks that fill the files, one file after the other.

        Args:
            spills: the k spills, in order.
            edges: where each room's entries begin in each spill, and where the last room's end: int64 [k, D + 1].
            sort: see `MergeTask`.
            workers: number of tasks that run at a time.
        """
        tasks_for = partial(cut_merges, sort=sort, workers=workers)
        files = [Files(spill.ids, spill.first_tokens) for spill in spills]
        tasks = [*tasks_for(files, edges, self.pool, writes="ids")]
        if self.first_tokens:
            tasks += tasks_for(files, edges, self.first_tokens, writes="first_tokens")
        if self.over:
            lists = [spill.over for spill in spills if spill.over]
            over_edges = np.array([[0, len(map_entries(path))] for path in lists])  # each is a single segment
            tasks += tasks_for([Files(path, None) for path in lists], over_edges, self.over, writes="over")
        return tasks


def _reused_or_claimed(path: Path, dtype_name: str, shape: tuple[int, ...]) -> str:
    """Returns the path of an array file that interrupted work left; creates the file if there is none that fits."""
    try:
        found = map_entries(str(path))
        if (found.dtype.name, found.shape) == (dtype_name, shape):
            return str(path)
    except (OSError, ValueError):  # missing, or truncated
        pass
    return claim_array(path, dtype_name, shape)


def cut_merges(
    spills: Sequence[Files], edges: NDArray[np.int64], output: str, *, writes: Writes, sort: bool, workers: int
) -> Iterator[MergeTask]:
    """Yields tasks that together write all of an array.

    Args:
        spills: files of the k spills, in order.
        edges: where each segment begins in each spill, and where the last one ends: int64 [k, D + 1].
        output: a file that `create_array` made, with as many entries as all spills together.
        writes: the array that the file is.
        sort: see `MergeTask`.
        workers: number of tasks that run at a time.
    """
    merged_edges = edges.sum(axis=0)  # where each segment begins in the array, and where the last one ends
    total = int(merged_edges[-1])
    data_bytes = map_entries(output).nbytes
    entry_bytes = data_bytes // total
    header_bytes = Path(output).stat().st_size - data_bytes
    range_bytes = min(_RANGE_BYTES, data_bytes // (_RANGES_OF_WORKER * workers))
    page_bytes = _HUGE_PAGE_BYTES if range_bytes >= _HUGE_PAGE_BYTES else PAGE_BYTES
    range_bytes = max(PAGE_BYTES, range_bytes // page_bytes * page_bytes)
    # Ranges begin at multiples of `range_bytes` in the file, which begins with a header, so the first range is shorter.
    inner = range((range_bytes - header_bytes) // entry_bytes, total, range_bytes // entry_bytes)
    range_edges = [0, *(entry for entry in inner if entry > 0), total]
    for begin, end in pairwise(range_edges):
        first_segment = int(np.searchsorted(merged_edges, begin, side="right")) - 1
        end_segment = int(np.searchsorted(merged_edges, end, side="left"))
        yield MergeTask(
            spills=tuple(spills),
            edges=edges[:, first_segment : end_segment + 1],
            first_rank=begin - int(merged_edges[first_segment]),
            num_entries=end - begin,
            output=output,
            first_entry=begin,
            writes=writes,
            sort=sort,
        )


class _Columns(NamedTuple):
    """The entries of one spill's files, mapped."""

    ids: Entries
    second_numbers: Entries | None
    """The second number of each entry: its first token, or its length if the array is over_length.npy. None if all are
    0."""


class Merged(NamedTuple):
    """The result of a merge task."""

    sums: tuple[int, int]
    """Both halves of `ids_sum` of the ids and first tokens in the range; zeros if the task does not write ids."""
    checksum: str
    """XXH3-64 of the bytes written, in hexadecimal."""

    @classmethod
    def of(cls, content: list[Any]) -> "Merged":
        """Returns the result that JSON holds as a list."""
        (sum_a, sum_b), checksum = content
        return cls((sum_a, sum_b), checksum)


def merge_task(task: MergeTask) -> Merged:
    """Runs one task: finds its range in every spill, copies the entries segment by segment, sorts and writes them."""
    columns = [_mapped(files) for files in task.spills]
    edges = _edges_in_range(task, columns)
    merged_edges = np.concatenate(([0], np.cumsum(np.diff(edges, axis=1).sum(axis=0))))
    written = map_entries(task.output)
    ids = np.empty(task.num_entries, dtype=written.dtype if task.writes == "ids" else np.int64)
    second_numbers = None
    if any(of_spill.second_numbers is not None for of_spill in columns):
        second_numbers = np.zeros(task.num_entries, dtype=written.dtype if task.writes == "first_tokens" else np.int64)
    cursors = merged_edges[:-1].copy()
    for of_spill, spill_edges in zip(columns, edges, strict=True):
        if second_numbers is not None and of_spill.second_numbers is not None:
            scatter(of_spill.second_numbers, spill_edges, cursors.copy(), second_numbers)
        scatter(of_spill.ids, spill_edges, cursors, ids)
    if task.sort:
        sort_segments(ids, second_numbers, merged_edges)
    entries, sums = ids, (0, 0)
    if task.writes == "ids":
        sums = ids_sum(ids, second_numbers)
    else:
        assert second_numbers is not None  # without first tokens or lists there is no such array to write
        entries = second_numbers if task.writes == "first_tokens" else np.stack([ids, second_numbers], axis=1)
    write_entries(Path(task.output), task.first_entry, entries)
    return Merged(sums, _checksum(entries))


def _edges_in_range(task: MergeTask, columns: Sequence[_Columns]) -> NDArray[np.int64]:
    """Returns a task's edges without what its first and last segment have in other ranges: int64 [k, D + 1].

    Args:
        task: the task.
        columns: the entries of each spill.
    """
    sizes = np.diff(task.edges, axis=1).sum(axis=0)  # of the segments, over all spills
    end_rank = task.first_rank + task.num_entries - int(sizes[:-1].sum())  # as `first_rank`, of the last segment
    begins, ends = task.edges[:, 0], task.edges[:, -1]
    if task.first_rank:
        begins = _entries_at(columns, begins, task.edges[:, 1], task.first_rank, sort=task.sort)
    if end_rank < sizes[-1]:
        ends = _entries_at(columns, task.edges[:, -2], ends, end_rank, sort=task.sort)
    return np.clip(task.edges, begins[:, None], ends[:, None])


def is_merged(task: MergeTask, merged: Merged) -> bool:
    """Returns whether the range in the file still has the checksum of its result."""
    end = task.first_entry + task.num_entries
    return _checksum(map_entries(task.output)[task.first_entry : end]) == merged.checksum


def _checksum(entries: NDArray[Any]) -> str:
    """Returns the XXH3-64 of the entries' bytes, in hexadecimal."""
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(entries).data.cast("B"))


def _mapped(files: Files) -> _Columns:
    """Maps a spill's files."""
    ids = map_entries(files.ids)
    if ids.ndim == 2:  # (id, length) of over-long sequences
        return _Columns(ids[:, 0], ids[:, 1])
    return _Columns(ids, map_entries(files.first_tokens) if files.first_tokens else None)


def _entries_at(
    columns: Sequence[_Columns],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    rank: int,
    *,
    sort: bool,
) -> NDArray[np.int64]:
    """Returns where the first `rank` entries of one merged segment end in each of k spills: int64 [k].

    The id at this rank is found by a search over values: each round counts the entries up to each of `_PIVOTS` ids in
    every spill, and goes on between two of these ids. Equal ids, of one sequence's pieces, are in one spill, ascending
    by first token; if a wrong input has them in several spills, those of the first spill come first.

    Args:
        columns: the entries of each spill.
        begins: where the segment begins in each spill: int64 [k].
        ends: where it ends in each spill: int64 [k].
        rank: a number of entries, at most the segment's.
        sort: see `MergeTask`.
    """
    if not sort:
        return begins + _dealt_in_order(ends - begins, rank)
    segments = [spill.ids[begin:end] for spill, begin, end in zip(columns, begins, ends, strict=True)]
    low = min(int(segment[0]) for segment in segments if len(segment))
    high = max(int(segment[-1]) for segment in segments if len(segment))
    while low < high:  # the id of that rank is in [low, high]
        pivots = sorted({low + (high - low) * i // _PIVOTS for i in range(_PIVOTS)})
        # For each pivot, how many ids of all spills are not greater.
        points = sum(_insertion_points(segment, pivots, "right") for segment in segments)
        num_below = int(np.searchsorted(points, rank, side="right"))  # pivots below the id
        low = pivots[num_below - 1] + 1 if num_below else low
        high = pivots[num_below] if num_below < len(pivots) else high
    before = np.array([_insertion_points(segment, [low], "left")[0] for segment in segments])
    through = np.array([_insertion_points(segment, [low], "right")[0] for segment in segments])
    return begins + before + _dealt_in_order(through - before, rank - int(before.sum()))


def _insertion_points(segment: Entries, values: Sequence[int], side: Literal["left", "right"]) -> NDArray[np.int64]:
    """Returns `np.searchsorted` of values in an ascending segment: how many ids are less ("left") or not greater."""
    limits = np.iinfo(segment.dtype)  # a value may be outside the type of this spill's ids
    fitting = np.array([min(max(value, limits.min), limits.max) for value in values], dtype=segment.dtype)
    found = np.searchsorted(segment, fitting, side=side)
    found[[value < limits.min for value in values]] = 0
    found[[value > limits.max for value in values]] = len(segment)
    return found.astype(np.int64)


def _dealt_in_order(sizes: NDArray[np.int64], rank: int) -> NDArray[np.int64]:
    """Returns how many of the first `rank` entries each spill has, if spills of these sizes follow each other."""
    before = np.cumsum(sizes) - sizes
    return np.clip(rank - before, 0, sizes)
