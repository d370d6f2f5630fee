"""The counting sort in two passes over the raw data, and a third over the pool that it fills.

Owns what a task is and what is done to it: each function takes one picklable task, keeps O(max_seq_len) in memory, and
runs on any engine. Leaves reading to `_sources` and the order of passes to `_sort`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import PrepareOptions
from packhorse.prepare._kernels import KEEP_HEAD, KEEP_TAIL, LEAVE_OUT, SPLIT, add_lengths, fill_pool, sort_pairs
from packhorse.prepare.readers import Batch, Span, changed
from packhorse.wire import ids_sum

PoolMap = NDArray[np.uint32] | NDArray[np.int64]
"""The pool, mapped: uint32 or int64 [n_sequences]."""

LONGEST_SPLIT = 1 << 40
"""The longest sequence that is split: a longer one is a mistake, and its pieces would fill the disk."""

_TASK_ROWS = 1 << 20
_MOST_TASKS = 256
_MOST_CELLS = 1 << 23


@dataclass(frozen=True, slots=True, kw_only=True)
class CountTask:
    """Some spans of rows, and what becomes of their lengths."""

    spans: tuple[Span, ...]
    options: PrepareOptions

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FillTask:
    """The same rows, and the entries of the pool that are theirs alone."""

    source: CountTask
    pool: str
    first_tokens_path: str | None
    """starts.npy, where there is one."""
    over_path: str | None
    """over_length.npy, where there is one."""
    over_rows: tuple[int, int]
    """The rows of it that are the task's: first, and exclusive end."""
    rooms: NDArray[np.int64]
    """Distinct rooms of the task, ascending: int64 [D]."""
    first_entries: NDArray[np.int64]
    """First entry of each: int64 [D]."""
    counts: NDArray[np.int64]
    """Number of entries of each: int64 [D]."""
    id_low: int
    id_high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishTask:
    """Consecutive segments of the pool, each the ids of one room."""

    pool: str
    first_tokens_path: str | None
    """starts.npy, where there is one."""
    edges: tuple[int, ...]
    """Where each segment begins, and where the last one ends."""
    sort: bool
    """Whether the ids of a segment are not ascending yet."""


def make_tasks(spans: Sequence[Span], options: PrepareOptions, workers: int) -> list[CountTask]:
    """Joins spans into tasks of about a million rows; fewer and larger ones where their histograms would add up."""
    total = sum(span.num_rows for span in spans)
    most = max(workers, min(_MOST_TASKS, _MOST_CELLS // options.max_seq_len))
    rows = max(min(_TASK_ROWS, -(-total // workers)), -(-total // most))
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
                f"{path}: row {batch.row(at)} has {int(lengths[at])} tokens; sequences of up to "
                f"{LONGEST_SPLIT} can be split: repair the length, or choose --over-length drop"
            )
        histogram = _grown(histogram, min(longest, limit) + 1)
        num_over_here = add_lengths(lengths, limit, is_split, histogram)
        if num_over_here:
            over = lengths > limit
            at = int(np.argmax(over))
            first_over = first_over or (int(ids[at]), int(lengths[at]), path, batch.row(at))
            num_over += num_over_here
            tokens_over += _exact_sum(lengths[over])
            pieces_over += _exact_sum((lengths[over] - 1) // limit + 1)
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


def fill_task(task: FillTask) -> None:
    """Second pass: writes the task's ids to its entries of the pool, and the too long ones to its rows of the list.

    Raises:
        ValueError: a file is not what the first pass saw.
    """
    pool = map_pool(task.pool, writable=True)
    first_tokens = np.empty(0, dtype=pool.dtype)
    if task.first_tokens_path:
        first_tokens = map_pool(task.first_tokens_path, writable=True)
    over_list = map_pool(task.over_path, writable=True) if task.over_path else None
    size = int(task.rooms[-1]) + 1 if len(task.rooms) else 1
    cursors = np.zeros(size, dtype=np.int64)
    ends = np.zeros(size, dtype=np.int64)
    cursors[task.rooms] = task.first_entries
    ends[task.rooms] = task.first_entries + task.counts
    options = task.source.options
    limit, over = options.rooms.longest, _over_action(options)
    row, last_row = task.over_rows
    path = ""
    for path, batch in _batches(task.source.spans):
        is_over = batch.lengths > limit
        kept = batch.ids if over != LEAVE_OUT else batch.ids[~is_over]
        if len(kept) and not (task.id_low <= int(kept.min()) and int(kept.max()) <= task.id_high):
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


def finish_task(task: FinishTask) -> tuple[int, int]:
    """Third pass: brings each segment into ascending order, in place, and returns `ids_sum` of all of them."""
    pool = map_pool(task.pool, writable=True)
    first_tokens = map_pool(task.first_tokens_path, writable=True) if task.first_tokens_path else None
    if task.sort:
        for begin, end in zip(task.edges[:-1], task.edges[1:], strict=True):
            if first_tokens is None:
                pool[begin:end].sort()
            else:
                sort_pairs(pool[begin:end], first_tokens[begin:end])
    all_of_task = slice(task.edges[0], task.edges[-1])
    return ids_sum(pool[all_of_task], None if first_tokens is None else first_tokens[all_of_task])


def sort_over_length(path: str) -> None:
    """Brings the rows of over_length.npy into ascending order, in place."""
    rows = map_pool(path, writable=True)
    sort_pairs(rows[:, 0], rows[:, 1])


def map_pool(path: str, *, writable: bool = False) -> PoolMap:
    """Maps the pool file, or an array file beside it."""
    return np.asarray(np.load(path, mmap_mode="r+" if writable else "r", allow_pickle=False))


def find_rows(task: tuple[CountTask, int]) -> list[tuple[str, int, int]]:
    """Returns (file, row, length) of every sequence with a certain id in a task."""
    source, wanted = task
    return [
        (path, batch.row(int(at)), int(batch.lengths[at]))
        for path, batch in _batches(source.spans)
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


def _over_action(options: PrepareOptions) -> int:
    if options.over_length == "truncate":
        return KEEP_HEAD if options.keep == "head" else KEEP_TAIL
    return SPLIT if options.over_length == "split" else LEAVE_OUT


def _grown(histogram: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    if size <= len(histogram):
        return histogram
    grown = np.zeros(size, dtype=np.int64)
    grown[: len(histogram)] = histogram
    return grown


def _exact_sum(values: NDArray[np.int64]) -> int:
    """Sums without overflow, whatever the values: a length column may hold anything."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())
