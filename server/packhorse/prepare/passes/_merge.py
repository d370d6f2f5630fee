"""Runs become one array: each task merges the entries of one range of it and writes them alone.

Owns where ranges are cut (where pages of the file begin, so that no two writers share one, on one machine or several)
and how a range is found in every run. Leaves writing runs to `passes.passes`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from packhorse.dataset import write_entries
from packhorse.prepare.kernels import scatter
from packhorse.prepare.passes.passes import PoolMap, map_pool, sort_segments
from packhorse.wire import ids_sum

PAGE_BYTES = 1 << 16
"""Ranges are cut at multiples of it: the largest plain page of any machine, a block of most file systems."""

_HUGE_PAGE_BYTES = 1 << 21
"""The same of larger ranges, so that what was just written is mapped in huge pages."""

_RANGE_BYTES = 1 << 24
_RANGES_OF_WORKER = 8
_PIVOTS = 64

Files = tuple[str, str | None]
"""A run's ids and first tokens, or None where all are 0; of a list of (id, length) the file and None."""

Writes = Literal["ids", "first_tokens", "over"]
"""Which array a task writes: pools.npy, starts.npy or over_length.npy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeTask:
    """A range of an array's entries, and where they stand in the runs."""

    runs: tuple[Files, ...]
    edges: NDArray[np.int64]
    """Entry of each run where each segment begins that the range touches, and where the last ends: int64 [k, D + 1]."""
    first_rank: int
    """How many entries of the first segment are before the range."""
    num_entries: int
    output: str
    first_entry: int
    writes: Writes
    sort: bool
    """Whether runs overlap; else the ids of each are above those of the run before."""


def cut_merges(
    runs: Sequence[Files], edges: NDArray[np.int64], output: str, *, writes: Writes, sort: bool, workers: int
) -> Iterator[MergeTask]:
    """Yields tasks that together write all of an array.

    Args:
        runs: what is merged, in order.
        edges: int64 [k, D + 1], where each segment begins in each run, and where the last one ends.
        output: a file of `create_array` with as many entries as all runs.
        writes: what the file is for.
        sort: see `MergeTask`.
        workers: how many tasks run at a time.
    """
    segments = edges.sum(axis=0)
    total = int(segments[-1])
    data_bytes = map_pool(output).nbytes
    entry_bytes = data_bytes // total
    header_bytes = Path(output).stat().st_size - data_bytes
    range_bytes = min(_RANGE_BYTES, data_bytes // (_RANGES_OF_WORKER * workers))
    unit = _HUGE_PAGE_BYTES if range_bytes >= _HUGE_PAGE_BYTES else PAGE_BYTES
    range_bytes = max(PAGE_BYTES, range_bytes // unit * unit)
    inner = range((range_bytes - header_bytes) // entry_bytes, total, range_bytes // entry_bytes)
    cuts = [0, *(cut for cut in inner if cut > 0), total]
    for begin, end in pairwise(cuts):
        low = int(np.searchsorted(segments, begin, side="right")) - 1
        high = int(np.searchsorted(segments, end, side="left"))
        yield MergeTask(
            runs=tuple(runs),
            edges=edges[:, low : high + 1],
            first_rank=begin - int(segments[low]),
            num_entries=end - begin,
            output=output,
            first_entry=begin,
            writes=writes,
            sort=sort,
        )


class Merged(NamedTuple):
    """What became of a range."""

    sums: tuple[int, int]
    """`ids_sum` of its ids and first tokens; zeros where it is not one of ids."""
    checksum: str
    """Of its bytes."""

    @classmethod
    def of(cls, content: list[Any]) -> "Merged":
        """Returns what was kept as JSON."""
        (first, second), checksum = content
        return cls((first, second), checksum)


def merge_task(task: MergeTask) -> Merged:
    """Third pass: writes a range of the array."""
    columns = [_columns(files) for files in task.runs]
    edges = task.edges
    sizes = np.diff(edges, axis=1).sum(axis=0)
    last_rank = task.first_rank + task.num_entries - int(sizes[:-1].sum())
    begins, ends = edges[:, 0], edges[:, -1]
    if task.first_rank:
        begins = _entries_at(columns, edges[:, 0], edges[:, 1], task.first_rank, sort=task.sort)
    if last_rank < sizes[-1]:
        ends = _entries_at(columns, edges[:, -2], edges[:, -1], last_rank, sort=task.sort)
    edges = np.clip(edges, begins[:, None], ends[:, None])
    merged_edges = np.concatenate(([0], np.cumsum(np.diff(edges, axis=1).sum(axis=0))))
    written = map_pool(task.output)
    ids = np.empty(task.num_entries, dtype=written.dtype if task.writes == "ids" else np.int64)
    seconds = None
    if any(second is not None for _, second in columns):
        seconds = np.zeros(task.num_entries, dtype=written.dtype if task.writes == "first_tokens" else np.int64)
    cursors = merged_edges[:-1].copy()
    for (run_ids, run_seconds), of_run in zip(columns, edges, strict=True):
        if seconds is not None and run_seconds is not None:
            scatter(run_seconds, of_run, cursors.copy(), seconds)
        scatter(run_ids, of_run, cursors, ids)
    if task.sort:
        sort_segments(ids, seconds, merged_edges)
    entries, sums = ids, (0, 0)
    if task.writes == "ids":
        sums = ids_sum(ids, seconds)
    else:
        assert seconds is not None
        entries = seconds if task.writes == "first_tokens" else np.stack([ids, seconds], axis=1)
    write_entries(Path(task.output), task.first_entry, entries)
    return Merged(sums, _checksum(entries))


def is_merged(task: MergeTask, merged: Merged) -> bool:
    """Whether a range that was finished is as it was then."""
    last_entry = task.first_entry + task.num_entries
    return _checksum(map_pool(task.output)[task.first_entry : last_entry]) == merged.checksum


def _checksum(entries: NDArray[Any]) -> str:
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(entries).data.cast("B"))


def _columns(files: Files) -> tuple[PoolMap, PoolMap | None]:
    first, second = files
    mapped = map_pool(first)
    if mapped.ndim == 2:
        return mapped[:, 0], mapped[:, 1]
    return mapped, map_pool(second) if second else None


def _entries_at(
    columns: Sequence[tuple[PoolMap, PoolMap | None]],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    rank: int,
    *,
    sort: bool,
) -> NDArray[np.int64]:
    """Returns where the first `rank` entries of a segment end in each run: int64 [k].

    Equal ids are of one run, and stand there by first tokens; should they be of several, those of the first run come
    first.
    """
    if not sort:
        return begins + _dealt(ends - begins, rank)
    segments = [ids[begin:end] for (ids, _), begin, end in zip(columns, begins, ends, strict=True)]
    low = min(int(segment[0]) for segment in segments if len(segment))
    high = max(int(segment[-1]) for segment in segments if len(segment))
    while low < high:  # the id of that rank is in [low, high]
        pivots = sorted({low + (high - low) * i // _PIVOTS for i in range(_PIVOTS)})
        at_most = sum(_searched(segment, pivots, "right") for segment in segments)
        found = int(np.searchsorted(at_most, rank, side="right"))
        low, high = (
            (pivots[found - 1] + 1 if found else low),
            (pivots[found] if found < len(pivots) else high),
        )
    before = np.array([_searched(segment, [low], "left")[0] for segment in segments])
    through = np.array([_searched(segment, [low], "right")[0] for segment in segments])
    return begins + before + _dealt(through - before, rank - int(before.sum()))


def _searched(segment: PoolMap, values: Sequence[int], side: Literal["left", "right"]) -> NDArray[np.int64]:
    """Returns how many ids of an ascending segment are below each value ("left"), or at most it ("right")."""
    limits = np.iinfo(segment.dtype)
    fitting = np.array([min(max(value, limits.min), limits.max) for value in values], dtype=segment.dtype)
    found = np.searchsorted(segment, fitting, side=side)
    found[[value < limits.min for value in values]] = 0
    found[[value > limits.max for value in values]] = len(segment)
    return found.astype(np.int64)


def _dealt(sizes: NDArray[np.int64], rank: int) -> NDArray[np.int64]:
    """Returns how many of the first `rank` entries are of each run, where one run follows the other."""
    before = np.cumsum(sizes) - sizes
    return np.clip(rank - before, 0, sizes)
