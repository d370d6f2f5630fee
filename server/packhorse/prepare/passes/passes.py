"""The two passes over the raw data: count a task's lengths, then write its ids as a run, sorted by length and id.

Owns what a task is and what is done to it: each function takes one picklable task, keeps O(max_seq_len) in memory, and
runs on any engine, anywhere, any number of times. Leaves reading to `input`, runs that become one pool to `_merge`,
and the order of passes to `passes.sort`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from packhorse.dataset import PlanOptions, sync
from packhorse.formats.object_store import without_secrets
from packhorse.prepare.input import Batch, Span, changed, map_array
from packhorse.prepare.kernels import KEEP_HEAD, KEEP_TAIL, LEAVE_OUT, SPLIT, add_lengths, fill_pool, sort_pairs

PoolMap = NDArray[np.uint32] | NDArray[np.int64]
"""The pool, mapped: uint32 or int64 [n_sequences]."""

RoomCounts = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Distinct rooms, ascending, and how many entries have each: int64 [D] both."""

LONGEST_SPLIT = 1 << 40
"""The longest sequence that is split: a longer one is a mistake, and its pieces would fill the disk."""

_TASK_ROWS = 1_000_000
_MOST_TASKS = 256
_MOST_CELLS = 1 << 23


@dataclass(frozen=True, slots=True, kw_only=True)
class CountTask:
    """Some spans of rows, and what becomes of their lengths."""

    spans: tuple[Span, ...]
    options: PlanOptions

    @property
    def num_rows(self) -> int:
        """Rows in all spans."""
        return sum(span.num_rows for span in self.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCounts:
    """What the first pass found in one task."""

    rooms: NDArray[np.int64]
    """Distinct rooms of what is planned, ascending: int64 [D]."""
    counts: NDArray[np.int64]
    """Sequences, or pieces, of each: int64 [D]."""
    own_tokens: int
    """Their tokens without `extra_tokens` and alignment."""
    id_low: int
    """Smallest planned id; with `id_high` below it where nothing is planned."""
    id_high: int
    """Largest planned id."""
    num_over: int
    """Sequences that are too long."""
    tokens_over: int
    """Their lengths' sum."""
    pieces_over: int
    """The pieces that they can be split into."""
    longest_over: int
    """The greatest of their lengths; 0 without any."""
    first_over: tuple[int, int, str, int] | None
    """The first of them: id, length, file, row."""
    skipped: tuple[tuple[str, NDArray[np.int64]], ...]
    """File and (row, Fault) of the rows that were skipped: int64 [k, 2]."""

    def content(self) -> dict[str, Any]:
        """Returns it as JSON can hold it."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        content["rooms"], content["counts"] = self.rooms.tolist(), self.counts.tolist()
        content["skipped"] = [[path, rows.tolist()] for path, rows in self.skipped]
        return content

    @classmethod
    def of(cls, content: dict[str, Any]) -> "TaskCounts":
        """Returns what `content` was made of."""
        arrays = {name: np.array(content[name], dtype=np.int64) for name in ("rooms", "counts")}
        first_over = content["first_over"]
        skipped = tuple((path, np.array(rows, dtype=np.int64).reshape(-1, 2)) for path, rows in content["skipped"])
        return cls(**{**content, **arrays, "first_over": first_over and tuple(first_over), "skipped": skipped})


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Files of entries that are sorted by (room, id, first token): one task's, or those of a dataset that grows."""

    ids: str
    """Ids: [n]."""
    first_tokens: str | None
    """First tokens: [n]; None where all are 0."""
    over: str | None
    """(id, length) of sequences that are too long, by id: int64 [k, 2]; None without any."""

    @property
    def files(self) -> list[str]:
        """Those that there are."""
        return [file for file in (self.ids, self.first_tokens, self.over) if file is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTask:
    """The same rows, and the files that are theirs alone."""

    source: CountTask
    counted: TaskCounts
    """What the first pass found in them."""
    run: Run
    """Files of the right size."""
    sort: bool
    """Whether rows do not come by ascending ids."""
    flush: bool
    """Whether other machines read the files."""


def rows_of_task(num_rows: int, options: PlanOptions, workers: int) -> int:
    """Returns how many rows a task should have: about a million, more where all tasks' histograms would add up."""
    most = max(workers, min(_MOST_TASKS, _MOST_CELLS // options.max_seq_len))
    return max(min(_TASK_ROWS, -(-num_rows // workers)), -(-num_rows // most))


def make_tasks(spans: Sequence[Span], options: PlanOptions, rows: int) -> list[CountTask]:
    """Joins spans into tasks of at least so many rows."""
    tasks: list[CountTask] = []
    group: list[Span] = []
    held = 0
    for span in spans:
        group.append(span)
        held += span.num_rows
        if held >= rows:
            tasks.append(CountTask(spans=_joined(group), options=options))
            group, held = [], 0
    if group:
        tasks.append(CountTask(spans=_joined(group), options=options))
    return tasks


def count_task(task: CountTask) -> TaskCounts:
    """First pass: counts the task's lengths and checks every row."""
    histogram = np.zeros(1, dtype=np.int64)
    id_low, id_high = 2**63 - 1, -(2**63)
    num_over = tokens_over = pieces_over = longest_over = 0
    first_over: tuple[int, int, str, int] | None = None
    options, limit = task.options, task.options.rooms.longest
    is_split = options.over_length == "split"
    skipped: list[tuple[str, NDArray[np.int64]]] = []
    for path, batch in _batches(task.spans):
        if batch.skipped is not None:
            skipped.append((path, batch.skipped))
        lengths, ids = batch.lengths, batch.ids
        if not len(lengths):
            continue
        longest = int(lengths.max())
        if is_split and longest > LONGEST_SPLIT:
            at = int(np.argmax(lengths > LONGEST_SPLIT))
            raise ValueError(
                f"{without_secrets(path)}: row {batch.row(at)} has {int(lengths[at])} tokens; sequences of up to "
                f"{LONGEST_SPLIT} can be split: repair the length, or choose --over-length drop"
            )
        histogram = _grown(histogram, min(longest, limit) + 1)
        num_over_here = add_lengths(lengths, limit, is_split, histogram)
        if num_over_here:
            over = lengths > limit
            at = int(np.argmax(over))
            first_over = first_over or (int(ids[at]), int(lengths[at]), without_secrets(path), batch.row(at))
            num_over += num_over_here
            tokens_over += exact_sum(lengths[over])
            pieces_over += exact_sum((lengths[over] - 1) // limit + 1)
            longest_over = max(longest_over, longest)
            if options.over_length == "truncate":
                histogram[limit] += num_over_here
            elif not is_split:
                ids = ids[~over]
        if len(ids):
            id_low, id_high = min(id_low, int(ids.min())), max(id_high, int(ids.max()))
    present = np.flatnonzero(histogram)
    rooms, group = np.unique(options.rooms.room(present), return_inverse=True)
    counts = np.zeros(len(rooms), dtype=np.int64)
    np.add.at(counts, group, histogram[present])
    return TaskCounts(
        rooms=rooms,
        counts=counts,
        own_tokens=int(present @ histogram[present]),
        id_low=id_low,
        id_high=id_high,
        num_over=num_over,
        tokens_over=tokens_over,
        pieces_over=pieces_over,
        longest_over=longest_over,
        first_over=first_over,
        skipped=tuple(skipped),
    )


def fill_run(task: RunTask) -> str:
    """Second pass: writes the task's entries to its run, sorted, and the too long ones to its list.

    Returns:
        A checksum of all it wrote, see `run_checksum`.

    Raises:
        ValueError: a file is not what the first pass saw.
    """
    counted, options = task.counted, task.source.options
    pool = map_pool(task.run.ids, writable=True)
    first_tokens = np.empty(0, dtype=pool.dtype)
    if task.run.first_tokens:
        first_tokens = map_pool(task.run.first_tokens, writable=True)
    over_list = map_pool(task.run.over, writable=True) if task.run.over else None
    edges = np.concatenate(([0], np.cumsum(counted.counts)))
    size = int(counted.rooms[-1]) + 1 if len(counted.rooms) else 1
    cursors = np.zeros(size, dtype=np.int64)
    ends = np.zeros(size, dtype=np.int64)
    cursors[counted.rooms] = edges[:-1]
    ends[counted.rooms] = edges[1:]
    limit, over = options.rooms.longest, _over_action(options)
    row, last_row = 0, counted.num_over
    path = ""
    for path, batch in _batches(task.source.spans):
        is_over = batch.lengths > limit
        kept = batch.ids if over != LEAVE_OUT else batch.ids[~is_over]
        if len(kept) and not (counted.id_low <= int(kept.min()) and int(kept.max()) <= counted.id_high):
            raise changed(path)
        rule = (limit, over, options.align, options.extra_tokens)
        if fill_pool(batch.lengths, batch.ids, *rule, cursors, ends, pool, first_tokens) >= 0:
            raise changed(path)
        num_over = int(is_over.sum())
        if row + num_over > last_row:
            raise changed(path)
        if over_list is not None and num_over:
            over_list[row : row + num_over, 0] = batch.ids[is_over]
            over_list[row : row + num_over, 1] = batch.lengths[is_over]
        row += num_over
    if row != last_row or not np.array_equal(cursors, ends):
        raise changed(path)
    if task.sort:
        sort_segments(pool, first_tokens if task.run.first_tokens else None, edges)
        if over_list is not None:
            sort_pairs(over_list[:, 0], over_list[:, 1])
    if task.flush:
        for file in task.run.files:
            sync(Path(file))
    return run_checksum(task.run)


def run_checksum(run: Run) -> str:
    """Returns a checksum of all bytes of a run's files."""
    checksum = xxhash.xxh3_64()
    for file in run.files:
        checksum.update(np.memmap(file, dtype=np.uint8, mode="r").data)
    return checksum.hexdigest()


def sort_segments(ids: PoolMap, first_tokens: PoolMap | None, edges: NDArray[np.int64]) -> None:
    """Brings each segment into ascending order of (id, first token), in place.

    Args:
        ids: [n].
        first_tokens: [n]; None where all are 0.
        edges: int64 [D + 1], where each segment begins, and where the last one ends.
    """
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if first_tokens is None:
            ids[begin:end].sort()
        elif end - begin > 1:
            sort_pairs(ids[begin:end], first_tokens[begin:end])


def map_pool(path: str, *, writable: bool = False) -> PoolMap:
    """Maps an array file."""
    return np.asarray(map_array(path, writable=writable))


def find_rows(task: tuple[Sequence[Span], int]) -> list[tuple[str, int, int]]:
    """Returns (file, row, length) of every sequence with a certain id in some spans."""
    spans, wanted = task
    return [
        (without_secrets(path), batch.row(int(at)), int(batch.lengths[at]))
        for path, batch in _batches(spans)
        for at in np.flatnonzero(batch.ids == wanted)
    ]


def _batches(spans: Sequence[Span]) -> Iterator[tuple[str, Batch]]:
    for span in spans:
        for batch in span.batches():
            yield span.path, batch


def _joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Returns spans with neighbours in one file made one, so that the file is opened once."""
    joined: list[Span] = []
    first = last = spans[0]
    for span in spans[1:]:
        if not span.follows(last):
            joined.append(first if first is last else first.through(last))
            first = span
        last = span
    joined.append(first if first is last else first.through(last))
    return tuple(joined)


def _over_action(options: PlanOptions) -> int:
    if options.over_length == "truncate":
        return KEEP_HEAD if options.keep == "head" else KEEP_TAIL
    return SPLIT if options.over_length == "split" else LEAVE_OUT


def _grown(histogram: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    if size <= len(histogram):
        return histogram
    grown = np.zeros(size, dtype=np.int64)
    grown[: len(histogram)] = histogram
    return grown


def stored_dtype(low: int, high: int) -> Literal["uint32", "int64"]:
    """Returns what integers from `low` to `high` are stored as."""
    return "uint32" if low >= 0 and high < 2**32 else "int64"


def exact_sum(values: NDArray[np.int64]) -> int:
    """Sums without overflow, whatever the values: a length column may hold anything."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())
