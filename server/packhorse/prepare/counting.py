"""The first pass: each task checks its rows, applies the over-length policy and counts lengths; counts are added up.

Owns how rows are divided into tasks, the counts of one task (`TaskCounts`), and their sum (`Counted`). A task is small
when pickled, needs memory for its histogram only, and may run on any engine any number of times. Leaves reading to
`input`, the second pass to `_spills`, and the order of passes to `_sort`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import OverLengthLedger, PlanOptions, PreparedDataset, SequenceFacts
from packhorse.formats.object_store import without_secrets
from packhorse.parameters import parameter
from packhorse.prepare._kernels import add_lengths
from packhorse.prepare.input import Batch, RowRange

RoomCounts = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Distinct rooms, ascending, and the number of entries with each room: int64 [D] both."""

IdType = Literal["uint32", "int64"]

LONGEST_SPLIT = 1 << 40
"""The length of the longest sequence that is split. A longer one is a mistake, and its pieces would fill the disk."""

_TASK_ROWS = 1_000_000
_MOST_TASKS = 256
MOST_DENSE = 1 << 22
"""Lengths and rooms below this are counted in an array with an entry for every number, of up to 32 MB in each thread;
greater ones in a dict."""

_MOST_CELLS = 1 << 23
"""The most entries of all tasks' histograms together: 64 MB."""


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
    first_over: tuple[int, int, str, int] | None
    """(id, length, file, row) of the first over-long sequence; None without any."""
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
        first_over = content["first_over"]
        skipped = tuple((path, np.array(rows, dtype=np.int64).reshape(-1, 2)) for path, rows in content["skipped"])
        parsed = {"facts": LengthFacts(**content["facts"]), "skipped": skipped}
        return cls(**{**content, **arrays, **parsed, "first_over": first_over and tuple(first_over)})


def rows_of_task(num_rows: int, options: PlanOptions, workers: int) -> int:
    """Returns the rows of a task: a million, fewer if all workers would not get one, more if tasks would be too many.

    Every task's histogram stays in memory until all are added, so `_MOST_CELLS` limits the number of tasks.
    """
    most = max(workers, min(_MOST_TASKS, _MOST_CELLS // options.max_seq_len))
    return max(min(_TASK_ROWS, -(-num_rows // workers)), -(-num_rows // most))


def make_tasks(ranges: Sequence[RowRange], options: PlanOptions, rows: int) -> list[CountTask]:
    """Joins ranges into tasks of at least `rows` rows."""
    tasks: list[CountTask] = []
    held: list[RowRange] = []
    num_rows = 0
    for each in ranges:
        held.append(each)
        num_rows += each.num_rows
        if num_rows >= rows:
            tasks.append(CountTask(ranges=_joined(held), options=options))
            held, num_rows = [], 0
    if held:
        tasks.append(CountTask(ranges=_joined(held), options=options))
    return tasks


def _joined(ranges: Sequence[RowRange]) -> tuple[RowRange, ...]:
    """Joins ranges that follow each other in one file into one range, so that the file is opened once."""
    joined: list[RowRange] = []
    first = last = ranges[0]
    for each in ranges[1:]:
        if not each.follows(last):
            joined.append(first if first is last else first.through(last))
            first = each
        last = each
    joined.append(first if first is last else first.through(last))
    return tuple(joined)


def count_task(task: CountTask) -> TaskCounts:
    """Runs one task of the first pass: reads the rows, which checks them, and counts lengths."""
    histogram, sparse = np.zeros(1, dtype=np.int64), Counter[int]()
    id_low, id_high = 2**63 - 1, -(2**63)
    num_over = tokens_over = pieces_over = longest_over = 0
    first_over: tuple[int, int, str, int] | None = None
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
            first_over = first_over or (int(ids[at]), int(lengths[at]), without_secrets(path), batch.row(at))
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
    planned = np.concatenate((dense, np.fromiter(sparse, np.int64, len(sparse))))  # distinct lengths
    numbers = np.concatenate((histogram[dense], np.fromiter(sparse.values(), np.int64, len(sparse))))
    rooms, counts = _added((options.rooms.room(planned), numbers))
    return TaskCounts(
        rooms=rooms,
        counts=counts,
        facts=LengthFacts.of(planned, numbers),
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
    """Returns the error for the first sequence of a batch that is longer than any that is split."""
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


def find_rows(task: tuple[Sequence[RowRange], int]) -> list[tuple[str, int, int]]:
    """Returns (file, row, length) of every sequence in `task[0]`, ranges of rows, that has the id `task[1]`."""
    ranges, wanted = task
    return [
        (each.where, batch.row(int(at)), int(batch.lengths[at]))
        for each in ranges
        for batch in each.batches()
        for at in np.flatnonzero(batch.ids == wanted)
    ]


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The counts of all tasks together, with those of the version before, if rows are appended to one."""

    tasks: list[CountTask]
    """The tasks of the first pass."""
    parts: list[TaskCounts]
    """The counts of each task."""
    rooms: NDArray[np.int64]
    """Distinct rooms of all rows, ascending: int64 [D]."""
    counts: NDArray[np.int64]
    """Number of sequences, pieces or groups with each room: int64 [D]."""
    id_range: tuple[int, int]
    """The smallest and the largest id in the pool; if rows are groups, of the groups' numbers."""
    id_dtype: IdType
    """Type of the pool's entries."""
    start_dtype: IdType | None
    """Type of starts.npy; None if all first tokens are 0, or if rows are groups."""
    facts: SequenceFacts
    """Facts of the sequences. Their `ids_sum_a` and `ids_sum_b` are not known before the merge, unless rows are groups.
    """

    @property
    def by_room(self) -> dict[int, int]:
        """Room in tokens → number of sequences."""
        return dict(zip(self.rooms.tolist(), self.counts.tolist(), strict=True))

    @property
    def skipped(self) -> list[tuple[str, NDArray[np.int64]]]:
        """Pairs of a file, and (row, Fault) of skipped rows in it: int64 [k, 2]."""
        return [rows for part in self.parts for rows in part.skipped]

    @property
    def array_bytes(self) -> int:
        """Bytes of pools.npy, starts.npy and over_length.npy."""
        start_dtype = self.start_dtype
        entry = np.dtype(self.id_dtype).itemsize + (np.dtype(start_dtype).itemsize if start_dtype else 0)
        return int(self.counts.sum()) * entry + 16 * self.facts.over_length.sequences

    def edges_of(self, spills: Sequence[RoomCounts]) -> NDArray[np.int64]:
        """Returns where each room's entries begin in each of k spills, and where the last room's end: int64 [k, D + 1].

        Args:
            spills: for each spill, in order, its rooms and counts; together they hold all that was counted.
        """
        edges = np.zeros((len(spills), len(self.rooms) + 1), dtype=np.int64)
        for of_spill, (rooms, counts) in zip(edges, spills, strict=True):
            of_spill[1 + np.searchsorted(self.rooms, rooms)] = counts
        return np.cumsum(edges, axis=1, out=edges)

    @classmethod
    def of(
        cls,
        tasks: list[CountTask],
        parts: list[TaskCounts],
        options: PlanOptions,
        *,
        before: PreparedDataset | None,
        groups: SequenceFacts | None,
    ) -> "Counted":
        """Adds up the counts of all tasks.

        Args:
            tasks: the tasks.
            parts: the counts of each task.
            options: options of the plan.
            before: the version to which the rows are added; None for a new dataset.
            groups: facts of the groups' sequences; None if rows are sequences.

        Raises:
            ValueError: a sequence is too long and the policy refuses it, or nothing is left to plan.
        """
        ledger = _over_length_ledger(parts, options)
        planned = [part for part in parts if len(part.rooms)]
        if not planned:
            raise ValueError(
                f"all {sum(task.num_rows for task in tasks):,} rows are bad, so nothing is left to prepare"
            )
        rooms, counts = _added(counts_of(before), *((part.rooms, part.counts) for part in planned))
        low, high = min(part.id_low for part in planned), max(part.id_high for part in planned)
        sums = sum((part.facts for part in parts), LengthFacts())
        start_dtypes = {_start_dtype(parts, options)}
        if before is not None:
            low, high = min(low, id_range(before)[0]), max(high, id_range(before)[1])
            sums += LengthFacts.of_version(before.manifest)
            ledger += before.manifest.over_length
            start_dtypes.add(before.manifest.start_dtype)
        facts = groups or facts_of(
            rooms,
            counts,
            sums,
            id_range=(low, high),
            start_dtype="int64" if "int64" in start_dtypes else "uint32" if "uint32" in start_dtypes else None,
            over_length=ledger,
        )
        return cls(
            tasks=tasks,
            parts=parts,
            rooms=rooms,
            counts=counts,
            id_range=(low, high),
            id_dtype=stored_dtype(low, high),
            start_dtype=None if groups else facts.start_dtype,
            facts=facts,
        )


def facts_of(
    rooms: NDArray[np.int64],
    counts: NDArray[np.int64],
    sums: LengthFacts,
    *,
    id_range: tuple[int, int],
    start_dtype: IdType | None = None,
    over_length: OverLengthLedger,
) -> SequenceFacts:
    """Returns the manifest's facts of the planned sequences, grouped or not.

    Args:
        rooms: distinct rooms of sequences, ascending: int64 [D].
        counts: number of sequences or pieces with each room: int64 [D].
        sums: facts that are sums over these sequences.
        id_range: the smallest and the largest id.
        start_dtype: type of first tokens; None if all are 0.
        over_length: counts of the over-long sequences.
    """
    return SequenceFacts(
        **asdict(sums),
        num_sequences=int(counts.sum()),
        id_dtype=stored_dtype(*id_range),
        start_dtype=start_dtype,
        over_length=over_length,
    )


def _over_length_ledger(found: Sequence[TaskCounts], options: PlanOptions) -> OverLengthLedger:
    """Returns the ledger of over-long sequences in all tasks; refuses the first of them if the policy is "error"."""
    num_over = sum(part.num_over for part in found)
    if not num_over:
        return OverLengthLedger()
    limit = options.rooms.longest
    what = (
        (parameter("max_seq_len") + f" {limit}")
        if options.rooms.is_plain
        else (
            f"the {limit} that fit "
            + parameter("max_seq_len")
            + f" {options.max_seq_len} with align {options.align} and "
            + parameter("extra_tokens")
            + f" {options.extra_tokens}"
        )
    )
    tokens_over = sum(part.tokens_over for part in found)
    if options.over_length == "error":
        identity, length, path, row = next(part.first_over for part in found if part.first_over)
        raise ValueError(
            f"sequence {identity} (row {row} of {path}) has {length} tokens, over "
            + what
            + f", and it is {'the only one' if num_over == 1 else f'one of {num_over:,}'}; raise "
            + parameter("max_seq_len")
            + ", or cut such sequences into pieces by "
            + parameter("over_length", "split")
            + ", or choose drop or truncate, which lose tokens"
        )
    if not any(len(part.rooms) for part in found):
        raise ValueError(
            f"all {num_over:,} sequences are over " + what + " and dropped; raise " + parameter("max_seq_len")
        )
    is_split = options.over_length == "split"
    lost = {"drop": tokens_over, "truncate": tokens_over - num_over * limit, "split": 0}[options.over_length]
    pieces = sum(part.pieces_over for part in found) if is_split else 0
    return OverLengthLedger(sequences=num_over, source_tokens=tokens_over, tokens=lost, pieces=pieces)


def _start_dtype(found: Sequence[TaskCounts], options: PlanOptions) -> IdType | None:
    """Returns the type of first tokens, from the greatest that the policy makes; None if all are 0."""
    longest, limit = max(part.longest_over for part in found), options.rooms.longest
    if not longest or (options.over_length, options.keep) not in (("split", "head"), ("truncate", "tail")):
        return None
    last = (longest - 1) // limit * limit if options.over_length == "split" else longest - limit
    return stored_dtype(0, last)


def counts_of(before: PreparedDataset | None) -> RoomCounts:
    """Returns the rooms and counts of a version's entries; empty arrays if there is no version."""
    if before is None:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    return before.plan.lengths.astype(np.int64), before.plan.counts.astype(np.int64)


def id_range(before: PreparedDataset) -> tuple[int, int]:
    """Returns the smallest and the largest entry of a version's pool: ids, or numbers of groups."""
    ends = np.cumsum(before.plan.counts)
    return int(before.pool[before.plan.pool_starts].min()), int(before.pool[ends - 1].max())


def _added(*parts: RoomCounts) -> RoomCounts:
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
    grown = np.zeros(size, dtype=np.int64)
    grown[: len(histogram)] = histogram
    return grown


def stored_dtype(low: int, high: int) -> IdType:
    """Returns the type in which integers from `low` to `high` are stored."""
    return "uint32" if low >= 0 and high < 2**32 else "int64"


def exact_sum(values: NDArray[np.int64]) -> int:
    """Returns the sum as a Python integer, without overflow: a length column may hold values up to 2^63."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())
