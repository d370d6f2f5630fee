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

LONGEST_SPLIT = 1 << 40
"""The length of the longest sequence that is split. A longer one is a mistake, and its pieces would fill the disk."""

_TASK_ROWS = 1_000_000
"""The rows of a task, if neither workers nor memory ask for another number."""
_MOST_TASKS = 256
"""The most tasks, unless there are more workers."""
MOST_DENSE = 1 << 22
"""Lengths and rooms below this are counted in an array with an entry for every number, of up to 32 MB in each thread;
greater ones in a dict."""

_MOST_ENTRIES = 1 << 23
"""The most entries of all tasks' histograms together: 64 MB."""


class RoomCounts(NamedTuple):
    """How many entries have each room."""

    rooms: NDArray[np.int64]
    """Distinct rooms, ascending: int64 [D]."""
    counts: NDArray[np.int64]
    """Number of entries with each room: int64 [D]."""


class SkippedInFile(NamedTuple):
    """Skipped rows of one file."""

    file: str
    """Path or URL of the file."""
    rows: NDArray[np.int64]
    """(number of the row in the file, Fault) of each: int64 [k, 2]."""


class FoundRow(NamedTuple):
    """A sequence that a message names."""

    id: int
    """Id of the sequence."""
    length: int
    """Length of the sequence in tokens."""
    file: str
    """Path or URL of its file, without secrets."""
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
    skipped: tuple[SkippedInFile, ...]
    """The skipped rows of each batch that has some."""

    @property
    def by_room(self) -> RoomCounts:
        """The planned sequences and pieces by their rooms."""
        return RoomCounts(self.rooms, self.counts)

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
        skipped = tuple(
            SkippedInFile(path, np.array(rows, dtype=np.int64).reshape(-1, 2)) for path, rows in content["skipped"]
        )
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
    options, limit = task.options, task.options.rooms.longest
    is_split = options.over_length == "split"
    histogram, over = _Histogram(limit, is_split=is_split), _OverLong(limit)
    id_low, id_high = 2**63 - 1, -(2**63)  # no id yet
    skipped: list[SkippedInFile] = []
    for path, batch in task.batches():
        if batch.skipped is not None:
            skipped.append(SkippedInFile(path, batch.skipped))
        lengths, ids = batch.lengths, batch.ids
        if not len(lengths):
            continue
        longest = int(lengths.max())
        if is_split and longest > LONGEST_SPLIT:
            raise _too_long_to_split(batch, path)
        num_over = histogram.add(lengths, longest)
        if num_over:
            is_over = lengths > limit
            over.add(batch, is_over, path)
            if options.over_length == "truncate":
                histogram.add_truncated(num_over)
            elif not is_split:  # dropped, or refused when all tasks are counted
                ids = ids[~is_over]
        if len(ids):
            id_low, id_high = min(id_low, int(ids.min())), max(id_high, int(ids.max()))
    lengths, numbers = histogram.lengths_and_numbers()
    # Several lengths may have one room.
    by_room = added(RoomCounts(options.rooms.room(lengths), numbers))
    return TaskCounts(
        rooms=by_room.rooms,
        counts=by_room.counts,
        facts=LengthFacts.of(lengths, numbers),
        id_low=id_low,
        id_high=id_high,
        num_over=over.num_sequences,
        tokens_over=over.num_tokens,
        pieces_over=over.num_pieces,
        longest_over=over.longest,
        first_over=over.first,
        skipped=tuple(skipped),
    )


@dataclass(slots=True)
class _OverLong:
    """What a task counts of its over-long sequences."""

    limit: int
    """The most tokens of its own that a sequence can have in a bin."""
    num_sequences: int = 0
    """Number of these sequences."""
    num_tokens: int = 0
    """Sum of their lengths."""
    num_pieces: int = 0
    """Number of pieces into which the sequences can be split."""
    longest: int = 0
    """Length of the longest; 0 without any."""
    first: FoundRow | None = None
    """The first of the sequences; None without any."""

    def add(self, batch: Batch, is_over: NDArray[np.bool_], path: str) -> None:
        """Counts the over-long rows of a batch, those for which `is_over` is true: bool [n], at least one."""
        lengths = batch.lengths[is_over]
        if self.first is None:
            at = int(np.argmax(is_over))
            self.first = FoundRow(int(batch.ids[at]), int(lengths[0]), without_secrets(path), batch.row(at))
        self.num_sequences += len(lengths)
        self.num_tokens += exact_sum(lengths)
        self.num_pieces += exact_sum((lengths - 1) // self.limit + 1)
        self.longest = max(self.longest, int(lengths.max()))


class _Histogram:
    """Counts lengths, and pieces of longer sequences: in an array, or in a dict if lengths are great."""

    def __init__(self, limit: int, *, is_split: bool) -> None:
        """Takes the most tokens of its own that a sequence can have in a bin, and whether longer ones are split."""
        self._limit, self._is_split = limit, is_split
        self._dense = np.zeros(1, dtype=np.int64)  # by length; grows up to MOST_DENSE entries
        self._sparse = Counter[int]()  # length → number, for batches with a greater length and for truncated ones

    def add(self, lengths: NDArray[np.int64], longest: int) -> int:
        """Counts lengths up to the limit, and the pieces of greater ones; returns how many are greater.

        `longest` is the greatest of the lengths.
        """
        greatest_counted = min(longest, self._limit)
        if greatest_counted >= MOST_DENSE:
            return self._add_sparse(lengths)
        self._dense = grown(self._dense, greatest_counted + 1)
        return add_lengths(lengths, self._limit, self._is_split, self._dense)

    def add_truncated(self, num_sequences: int) -> None:
        """Counts sequences that are cut to the limit."""
        self._sparse[self._limit] += num_sequences

    def lengths_and_numbers(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns lengths, which may come twice, and how many sequences or pieces have each: int64 [n] both."""
        present, sparse = np.flatnonzero(self._dense), self._sparse
        lengths = np.concatenate((present, np.fromiter(sparse, np.int64, len(sparse))))
        return lengths, np.concatenate((self._dense[present], np.fromiter(sparse.values(), np.int64, len(sparse))))

    def _add_sparse(self, lengths: NDArray[np.int64]) -> int:
        """Does the same as the kernel `add_lengths`, in memory that grows with the number of distinct lengths only."""
        is_over = lengths > self._limit
        parts = [lengths[~is_over]]
        if self._is_split and is_over.any():
            self._sparse[self._limit] += exact_sum(lengths[is_over] // self._limit)
            rest = lengths[is_over] % self._limit
            parts.append(rest[rest > 0])
        found, numbers = np.unique(np.concatenate(parts), return_counts=True)
        self._sparse.update(dict(zip(found.tolist(), numbers.tolist(), strict=True)))
        return int(is_over.sum())


def _too_long_to_split(batch: Batch, path: str) -> ValueError:
    """Returns the error that names the first row of a batch that is longer than LONGEST_SPLIT."""
    at = int(np.argmax(batch.lengths > LONGEST_SPLIT))
    return ValueError(
        f"{without_secrets(path)}: row {batch.row(at)} has {int(batch.lengths[at])} tokens; sequences of up "
        f"to {LONGEST_SPLIT} can be split: repair the length, or choose " + parameter("over_length", "drop")
    )


def added(*parts: RoomCounts) -> RoomCounts:
    """Returns the sum of several counts by room; in each, rooms may be in any order and repeat."""
    all_rooms = np.concatenate([part.rooms for part in parts])
    rooms, at = np.unique(all_rooms, return_inverse=True)
    counts = np.zeros(len(rooms), dtype=np.int64)
    np.add.at(counts, at, np.concatenate([part.counts for part in parts]))
    return RoomCounts(rooms, counts)


def grown(histogram: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Returns a histogram of at least `size` entries: the same array, or a longer copy filled up with zeros."""
    if size <= len(histogram):
        return histogram
    longer = np.zeros(size, dtype=np.int64)
    longer[: len(histogram)] = histogram
    return longer


def exact_sum(values: NDArray[np.int64]) -> int:
    """Returns the sum as a Python integer, without overflow: a length column may hold values up to 2^63."""
    # The upper and the lower 32 bits of each value are summed apart.
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())
