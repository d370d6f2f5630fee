"""The first pass: each task checks its rows, applies the over-length policy and counts lengths.

Owns how rows are divided into tasks, and the counts of one task (`TaskCounts`). A task is small when pickled, needs
memory for its histogram only, and may run on any engine any number of times. Leaves reading to `input`, adding up the
counts of all tasks to `totals`, the second pass to `_spills`, and the order of passes to `_sort`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import PlanOptions, SequenceFacts
from packhorse.formats.object_store import without_secrets
from packhorse.parameters import parameter
from packhorse.prepare._kernels import add_lengths
from packhorse.prepare.input import Batch, RowRange

RoomCounts = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Distinct rooms, ascending, and the number of entries with each room: int64 [D] both."""

LONGEST_SPLIT = 1 << 40
"""The length of the longest sequence that is split. A longer one is a mistake, and its pieces would fill the disk."""

_TASK_ROWS = 1_000_000
"""The rows of a task, if neither workers nor memory ask for another number."""
_MOST_TASKS = 256
MOST_DENSE = 1 << 22
"""Lengths and rooms below this are counted in an array with an entry for every number, of up to 32 MB in each thread;
greater ones in a dict."""

_MOST_ENTRIES = 1 << 23
"""The most entries of all tasks' histograms together: 64 MB."""


class FoundRow(NamedTuple):
    """A sequence that a message names."""

    id: int
    length: int
    """In tokens."""
    file: str
    row: int
    """Number of its row in the file, 0-based."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountTask:
    """The rows of one task, and the options of the plan."""

    ranges: tuple[RowRange, ...]
    """Ranges of rows, in order."""
    options: PlanOptions
    """Options of the plan, which give the over-length policy and the rooms."""

    @property
    def num_rows(self) -> int:
        """Rows in all ranges."""
        return sum(each.num_rows for each in self.ranges)

    def batches(self) -> Iterator[tuple[str, Batch]]:
        """Yields each batch of rows that may be planned, with its file."""
        for each in self.ranges:
            for batch in each.batches():
                yield each.path, batch


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthFacts:
    """Facts of planned sequences that are sums, so that they can be added over tasks, groups and versions.

    Each field here has the same name in `SequenceFacts`. A fact is None if it is not known, because an earlier release
    wrote the version.
    """

    own_tokens: int = 0
    """Tokens of the sequences, without `extra_tokens` and alignment."""

    @classmethod
    def of(cls, lengths: NDArray[np.int64], numbers: NDArray[np.int64]) -> Self:
        """Returns the facts of `numbers[i]` sequences or pieces of length `lengths[i]`, for all i: int64 [n] both."""
        return cls(own_tokens=int(lengths @ numbers))

    @classmethod
    def of_version(cls, facts: SequenceFacts) -> Self:
        """Returns the facts that are in a manifest."""
        return cls(**{each.name: getattr(facts, each.name) for each in fields(cls)})

    def __add__(self, other: Self) -> Self:
        """Returns the sums of two sets of facts."""
        sums: dict[str, Any] = {}
        for name in (each.name for each in fields(self)):
            pair = getattr(self, name), getattr(other, name)
            sums[name] = None if None in pair else sum(pair)
        return type(self)(**sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCounts:
    """The counts of one task."""

    rooms: NDArray[np.int64]
    """Distinct rooms of the planned sequences and pieces, ascending: int64 [D]."""
    counts: NDArray[np.int64]
    """Number of sequences or pieces with each room: int64 [D]."""
    facts: LengthFacts
    """Facts of these sequences and pieces."""
    id_low: int
    """Smallest planned id. If nothing is planned, it is greater than `id_high`."""
    id_high: int
    """Largest planned id."""
    num_over: int
    """Number of over-long sequences: those longer than a bin has room for, whatever the policy."""
    tokens_over: int
    """Sum of the over-long sequences' lengths."""
    pieces_over: int
    """Number of pieces that the over-long sequences can be split into."""
    longest_over: int
    """Length of the longest sequence, if it is over-long; else 0."""
    first_over: FoundRow | None
    """The first over-long sequence; None without any."""
    skipped: tuple[tuple[str, NDArray[np.int64]], ...]
    """For each batch with skipped rows, its file and (row, Fault) of these rows: int64 [k, 2]."""

    def content(self) -> dict[str, Any]:
        """Returns the counts as values that JSON can hold."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        content["rooms"], content["counts"] = self.rooms.tolist(), self.counts.tolist()
        content["facts"] = asdict(self.facts)
        content["skipped"] = [[path, rows.tolist()] for path, rows in self.skipped]
        return content

    @classmethod
    def of(cls, content: dict[str, Any]) -> "TaskCounts":
        """Returns the counts of which `content` made its values."""
        arrays = {name: np.array(content[name], dtype=np.int64) for name in ("rooms", "counts")}
        first_over = None if content["first_over"] is None else FoundRow(*content["first_over"])
        skipped = tuple((path, np.array(rows, dtype=np.int64).reshape(-1, 2)) for path, rows in content["skipped"])
        parsed = {"facts": LengthFacts(**content["facts"]), "skipped": skipped}
        return cls(**{**content, **arrays, **parsed, "first_over": first_over})


def rows_of_task(num_rows: int, options: PlanOptions, workers: int) -> int:
    """Returns the rows of a task: a million, fewer if all workers would not get one, more if tasks would be too many.

    Every task's histogram stays in memory until all are added, so `_MOST_ENTRIES` limits the number of tasks.
    """
    most_tasks = max(workers, min(_MOST_TASKS, _MOST_ENTRIES // options.max_seq_len))
    return max(min(_TASK_ROWS, -(-num_rows // workers)), -(-num_rows // most_tasks))


def make_tasks(ranges: Sequence[RowRange], options: PlanOptions, rows: int) -> list[CountTask]:
    """Joins ranges into tasks of at least `rows` rows."""
    tasks: list[CountTask] = []
    of_task: list[RowRange] = []
    num_rows = 0
    for row_range in ranges:
        of_task.append(row_range)
        num_rows += row_range.num_rows
        if num_rows >= rows:
            tasks.append(CountTask(ranges=_joined(of_task), options=options))
            of_task, num_rows = [], 0
    if of_task:
        tasks.append(CountTask(ranges=_joined(of_task), options=options))
    return tasks


def _joined(ranges: Sequence[RowRange]) -> tuple[RowRange, ...]:
    """Joins ranges that follow each other in one file into one range, so that the file is opened once."""
    joined: list[RowRange] = []
    first = last = ranges[0]
    for row_range in ranges[1:]:
        if not row_range.follows(last):
            joined.append(first if first is last else first.through(last))
            first = row_range
        last = row_range
    joined.append(first if first is last else first.through(last))
    return tuple(joined)


def count_task(task: CountTask) -> TaskCounts:
    """Runs one task of the first pass: reads the rows, which checks them, and counts lengths."""
    histogram, sparse = np.zeros(1, dtype=np.int64), Counter[int]()
    id_low, id_high = 2**63 - 1, -(2**63)
    num_over = tokens_over = pieces_over = longest_over = 0
    first_over: FoundRow | None = None
    options, limit = task.options, task.options.rooms.longest
    is_split = options.over_length == "split"
    skipped: list[tuple[str, NDArray[np.int64]]] = []
    for path, batch in task.batches():
        if batch.skipped is not None:
            skipped.append((path, batch.skipped))
        lengths, ids = batch.lengths, batch.ids
        if not len(lengths):
            continue
        longest = int(lengths.max())
        if is_split and longest > LONGEST_SPLIT:
            raise _too_long_to_split(batch, path)
        if min(longest, limit) < MOST_DENSE:
            histogram = grown(histogram, min(longest, limit) + 1)
            num_over_here = add_lengths(lengths, limit, is_split, histogram)
        else:
            num_over_here = _add_sparse(lengths, limit, is_split, sparse)
        if num_over_here:
            over = lengths > limit
            at = int(np.argmax(over))
            first_over = first_over or FoundRow(int(ids[at]), int(lengths[at]), without_secrets(path), batch.row(at))
            num_over += num_over_here
            tokens_over += exact_sum(lengths[over])
            pieces_over += exact_sum((lengths[over] - 1) // limit + 1)
            longest_over = max(longest_over, longest)
            if options.over_length == "truncate":
                sparse[limit] += num_over_here
            elif not is_split:
                ids = ids[~over]
        if len(ids):
            id_low, id_high = min(id_low, int(ids.min())), max(id_high, int(ids.max()))
    dense = np.flatnonzero(histogram)
    distinct_lengths = np.concatenate((dense, np.fromiter(sparse, np.int64, len(sparse))))
    numbers = np.concatenate((histogram[dense], np.fromiter(sparse.values(), np.int64, len(sparse))))
    rooms, counts = added((options.rooms.room(distinct_lengths), numbers))
    return TaskCounts(
        rooms=rooms,
        counts=counts,
        facts=LengthFacts.of(distinct_lengths, numbers),
        id_low=id_low,
        id_high=id_high,
        num_over=num_over,
        tokens_over=tokens_over,
        pieces_over=pieces_over,
        longest_over=longest_over,
        first_over=first_over,
        skipped=tuple(skipped),
    )


def _too_long_to_split(batch: Batch, path: str) -> ValueError:
    at = int(np.argmax(batch.lengths > LONGEST_SPLIT))
    return ValueError(
        f"{without_secrets(path)}: row {batch.row(at)} has {int(batch.lengths[at])} tokens; sequences of up "
        f"to {LONGEST_SPLIT} can be split: repair the length, or choose " + parameter("over_length", "drop")
    )


def _add_sparse(lengths: NDArray[np.int64], limit: int, is_split: bool, counts: Counter[int]) -> int:
    """Does the same as the kernel `add_lengths`, in memory that grows with the number of distinct lengths only."""
    over = lengths > limit
    parts = [lengths[~over]]
    if is_split and over.any():
        counts[limit] += exact_sum(lengths[over] // limit)
        rest = lengths[over] % limit
        parts.append(rest[rest > 0])
    found, numbers = np.unique(np.concatenate(parts), return_counts=True)
    counts.update(dict(zip(found.tolist(), numbers.tolist(), strict=True)))
    return int(over.sum())


def added(*parts: RoomCounts) -> RoomCounts:
    """Returns the sum of several counts by room; in each, rooms may be in any order and repeat."""
    all_rooms = np.concatenate([rooms for rooms, _ in parts])
    rooms, which = np.unique(all_rooms, return_inverse=True)
    counts = np.zeros(len(rooms), dtype=np.int64)
    np.add.at(counts, which, np.concatenate([counts for _, counts in parts]))
    return rooms, counts


def grown(histogram: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Returns a histogram of at least `size` entries: the same array, or a longer copy filled up with zeros."""
    if size <= len(histogram):
        return histogram
    longer = np.zeros(size, dtype=np.int64)
    longer[: len(histogram)] = histogram
    return longer


def exact_sum(values: NDArray[np.int64]) -> int:
    """Returns the sum as a Python integer, without overflow: a length column may hold values up to 2^63."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())
