"""Comparing every planned length with the data as it is now.

Owns the comparison and its report. The caller gives a function that looks lengths up; comparing files with their
checksums is in `files`.

In this file an entry is one of `PreparedDataset.ids`: a sequence of the plan, or a piece of a split one. Reports count
dropped sequences as entries too. Shape letter: S sequences that are looked up together.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset.load import PreparedDataset, open_prepared
from packhorse.jobs import Progress, open_engine

LengthsOf = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""A function from ids, int64 [S], to the lengths of these whole sequences in tokens, int64 [S].

It raises a ValueError if a sequence is missing.
"""

Order = Literal["pool", "id"]
"""The order in which lengths are looked up: as in the pool, or by id, which suits files that must be decoded."""

_MOST_NAMED = 10
"""Differences that a report lists one by one."""
_ENTRIES_AT_ONCE = 1 << 20
"""Entries that are held in memory together."""
_ENTRIES_IN_A_TASK = 1 << 22
"""Entries of a task in the order "pool"."""
_TASKS_OF_A_WORKER = 4
"""Tasks for each worker, so that none waits long for the last one."""
_SCANNED_FOR_A_TASK = 1 << 24
"""Entries of the pool for each task in the order "id", in which every task scans the whole pool."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A sequence whose length is not the planned one."""

    id: int
    planned: int
    """The planned length in tokens; with `align` or `extra_tokens`, the planned room."""
    found: int | None
    """The length in tokens now; None if the sequence is missing."""
    why: str
    """The difference as a sentence for people."""


@dataclass(slots=True, kw_only=True)
class LengthReport:
    """The result of comparing lengths."""

    compared: int = 0
    """Entries that were compared: sequences of the plan (each piece of a split one counts), and dropped ones."""
    entries: int = 0
    """Entries that there are, compared or not."""
    tokens: int = 0
    """Tokens of the compared entries of the plan, as found now."""
    differing: int = 0
    """Entries that differ; a lower bound if several sequences are missing."""
    first: list[Difference] = field(default_factory=list)
    """The first ten differences, as a rule one for each sequence."""

    def add(self, other: "LengthReport") -> None:
        """Adds the result of a task; its `entries` are not added, because `verify_lengths` counts all of them."""
        self.compared += other.compared
        self.tokens += other.tokens
        self.differing += other.differing
        self.first = [*self.first, *other.first][:_MOST_NAMED]


def verify_lengths(
    folder: Path,
    open_lengths: Callable[[], LengthsOf],
    *,
    order: Order = "pool",
    sample: int | None = None,
    workers: int = 1,
    progress: Progress,
) -> LengthReport:
    """Compares planned lengths with the data's lengths now, for each entry of the plan and each dropped sequence.

    Example:
        >>> from packhorse.jobs import show_progress
        >>> with show_progress(quiet=True) as progress:
        ...     report = verify_lengths(
        ...         Path("datasets/corpus"), lambda: lambda ids: np.array([5, 3, 3, 6])[ids], progress=progress
        ...     )
        >>> report.compared, report.first[0].why
        (4, 'sequence 3: the plan says 5 tokens, and 6 are there')

    Args:
        folder: the prepared folder.
        open_lengths: opens the data and returns the function that looks lengths up. Each process calls it once, and
            its tasks share the result. With several workers it must pickle, and be of a module that they can import.
        order: "id" if neighbouring ids are cheap to look up together.
        sample: number of entries of the plan to compare, the same entries each time; None, or as many as there are,
            compares all entries, and dropped sequences too.
        workers: number of processes.
        progress: shows the sequences that were compared.

    Raises:
        PreparedDatasetError: the folder cannot be read.
        ValueError: `open_lengths` cannot open the data.
    """
    dataset = open_prepared(folder, check_pool=False)
    if sample is not None and sample >= len(dataset.ids):
        sample = None
    report = LengthReport(entries=len(dataset.ids) + len(_dropped(dataset)))
    for cached in (_opened, _opened_lengths):  # the folder or the data may have been replaced since an earlier call
        cached.cache_clear()
    tasks = [_Task(folder, open_lengths, each) for each in _selections(dataset, order, sample, workers)]
    total = report.entries if sample is None else sample
    with open_engine(workers) as engine, progress.task("comparing lengths", total, "sequences") as advance:
        for result in engine.map(_compare, tasks):
            report.add(result)
            advance(result.compared)
    return report


@dataclass(frozen=True, slots=True)
class _Selection:
    """The entries that one task compares."""

    kind: Literal["entries", "ids", "chosen", "dropped"]
    """How the entries are named: "entries", by an index in [first, end); "ids", by an id in [first, end); "chosen", by
    the indices in `chosen`; "dropped", all over-long sequences that are not in the plan."""
    first: int = 0
    end: int = 0
    chosen: NDArray[np.int64] | None = None
    """Indices among the dataset's ids: int64 [n]; None for every other kind."""


@dataclass(frozen=True, slots=True)
class _Task:
    """One call of `_compare`, which may run in another process."""

    folder: Path
    open_lengths: Callable[[], LengthsOf]
    selection: _Selection


def _selections(dataset: PreparedDataset, order: Order, sample: int | None, workers: int) -> Iterator[_Selection]:
    """Yields the work of `verify_lengths`, divided into tasks that workers can take one by one."""
    ids = dataset.ids
    num_entries = len(ids)
    if sample is not None:
        chosen = np.random.default_rng(0).choice(num_entries, sample, replace=False)
        chosen = chosen[np.argsort(ids[chosen], kind="stable")]  # neighbouring ids are cheap to look up together
        for chosen_of_task in np.array_split(chosen, min(max(workers, 1) * _TASKS_OF_A_WORKER, sample)):
            yield _Selection("chosen", chosen=chosen_of_task)
        return
    if order == "pool":
        for first in range(0, num_entries, _ENTRIES_IN_A_TASK):
            yield _Selection("entries", first, min(first + _ENTRIES_IN_A_TASK, num_entries))
    elif num_entries:
        # Each task takes a range of ids, so that a file is decoded by one task only. It finds its entries by scanning
        # all ids. With more tasks more is scanned, with fewer each holds more entries.
        low, high = int(ids.min()), int(ids.max()) + 1
        for_workers = workers * _TASKS_OF_A_WORKER if workers > 1 else 1
        num_tasks = min(max(for_workers, ceil(num_entries / _SCANNED_FOR_A_TASK)), high - low)
        edges = [low + (high - low) * number // num_tasks for number in range(num_tasks + 1)]
        for first, end in pairwise(edges):
            yield _Selection("ids", first, end)
    if len(_dropped(dataset)):
        yield _Selection("dropped")


def _compare(task: _Task) -> LengthReport:
    """Compares the entries of one task; the process opens the folder and the data at its first task."""
    dataset, lengths_of = _opened(task.folder), _opened_lengths(task.open_lengths)
    report = LengthReport()
    comparison = _Comparison(dataset, lengths_of, report)
    if task.selection.kind == "dropped":
        dropped = _dropped(dataset)
        comparison.compare(dropped[:, 0], None)
    else:
        for entries in _entries(dataset, task.selection):
            comparison.compare(dataset.ids[entries].astype(np.int64), entries)
    return report


class _LookedUp(NamedTuple):
    """Consecutive sequences whose lengths were looked up together, or one that is missing."""

    first: int
    """Index of the first of them among the ids to look up."""
    end: int
    """Index after the last of them."""
    lengths: NDArray[np.int64] | None
    """Their lengths in tokens: int64 [S]; None if the sequence is missing."""


class _Comparison:
    """Compares entries of one plan with lengths, and adds to a report."""

    def __init__(self, dataset: PreparedDataset, lengths_of: LengthsOf, report: LengthReport) -> None:
        self._rule = dataset.manifest.options.rooms
        self._dataset = dataset
        self._lengths_of = lengths_of
        self._report = report
        self._rooms = dataset.plan.lengths.astype(np.int64)  # they ascend
        self._room_ends = np.cumsum(dataset.plan.counts, dtype=np.int64)
        self._over_length = dataset.over_length()

    def compare(self, ids: NDArray[np.int64], entries: NDArray[np.int64] | None) -> None:
        """Looks up the lengths of some sequences and compares them.

        Args:
            ids: ids of the sequences: int64 [S].
            entries: their indices among the dataset's ids: int64 [S]; None if they are all the dropped ones.
        """
        for first, end, lengths in self._look_up(ids, 0, len(ids)):
            self._report.compared += end - first
            if lengths is None:
                self._add_difference(int(ids[first]), self._planned(entries, first), None, "it is missing")
            else:
                self._check(ids[first:end], lengths, None if entries is None else entries[first:end])

    def _check(self, ids: NDArray[np.int64], found: NDArray[np.int64], entries: NDArray[np.int64] | None) -> None:
        """Compares the lengths `found` with over_length.npy, then the rooms that follow from them with the plan.

        All arrays are int64 [S]; `entries` is None for dropped sequences, which have no room in the plan.
        """
        is_over = np.zeros(len(ids), dtype=np.bool_)  # whether it is in over_length.npy
        has_changed = np.zeros(len(ids), dtype=np.bool_)  # whether its length was another one there
        if len(self._over_length):
            over_ids, over_lengths = self._over_length[:, 0], self._over_length[:, 1]
            rows = np.minimum(np.searchsorted(over_ids, ids), len(over_ids) - 1)
            is_over = over_ids[rows] == ids
            has_changed = is_over & (found != over_lengths[rows])
            for i in np.flatnonzero(has_changed).tolist():
                was = int(over_lengths[rows[i]])
                self._add_difference(
                    int(ids[i]), was, int(found[i]), f"it had {was} tokens when it was planned, now {found[i]}"
                )
        if entries is None:
            return
        rule = self._rule
        rooms = self._rooms_of(entries)
        groups = self._dataset.groups
        first_tokens = self._dataset.first_tokens if groups is None else groups.first_tokens
        rest = found.astype(np.int64)  # tokens from the entry's first one to the sequence's end
        if first_tokens is not None:
            rest -= first_tokens[entries]
        own = np.where(is_over, np.minimum(rest, rule.longest), rest)  # its tokens in its bin; an over-long one was cut
        self._report.tokens += int(own.sum())
        # Different lengths may have one room, so a length that no bin can hold is wrong even in the planned room.
        is_wrong = (rule.room(own) != rooms) | (own < 1) | (own > rule.longest)
        for i in np.flatnonzero(is_wrong & ~has_changed).tolist():  # the changed ones were reported above
            planned = f"{rooms[i]} tokens" if rule.is_plain else f"a room of {rooms[i]} tokens"
            self._add_difference(
                int(ids[i]), int(rooms[i]), int(found[i]), f"the plan says {planned}, and {found[i]} are there"
            )

    def _look_up(self, ids: NDArray[np.int64], first: int, end: int) -> Iterator[_LookedUp]:
        """Looks up the lengths of `ids[first:end]`; a range that holds a missing id fails, and is halved."""
        if first == end:
            return
        try:
            lengths = self._lengths_of(ids[first:end])
        except ValueError:
            if end - first == 1:
                yield _LookedUp(first, end, None)
                return
            middle = (first + end) // 2
            yield from self._look_up(ids, first, middle)
            if len(self._report.first) < _MOST_NAMED:  # else the report names enough, and searching on is slow
                yield from self._look_up(ids, middle, end)
            return
        yield _LookedUp(first, end, lengths)

    def _planned(self, entries: NDArray[np.int64] | None, index: int) -> int:
        """Returns the planned room of one sequence, or the length that it had if it was dropped."""
        if entries is None:
            return int(self._over_length[index, 1])
        return int(self._rooms_of(entries[index : index + 1])[0])

    def _rooms_of(self, entries: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the planned rooms of some entries: int64 [S]."""
        if (groups := self._dataset.groups) is not None:
            rooms: NDArray[np.int64] = self._rule.room(groups.members[entries, 1])
            return rooms
        return self._rooms[np.searchsorted(self._room_ends, entries, side="right")]

    def _add_difference(self, sequence_id: int, planned: int, found: int | None, why: str) -> None:
        """Counts a difference, and lists it if the list has space and does not have the sequence yet."""
        self._report.differing += 1
        listed_ids = {difference.id for difference in self._report.first}
        if len(listed_ids) < _MOST_NAMED and sequence_id not in listed_ids:
            self._report.first.append(Difference(sequence_id, planned, found, f"sequence {sequence_id}: {why}"))


def _entries(dataset: PreparedDataset, selection: _Selection) -> Iterator[NDArray[np.int64]]:
    """Yields the indices of a task's entries among the dataset's ids, at most `_ENTRIES_AT_ONCE` at a time."""
    if selection.kind == "entries":
        for first in range(selection.first, selection.end, _ENTRIES_AT_ONCE):
            yield np.arange(first, min(first + _ENTRIES_AT_ONCE, selection.end))
        return
    entries = selection.chosen
    if entries is None:
        entries = _entries_with_ids(dataset.ids, selection.first, selection.end)
    for first in range(0, len(entries), _ENTRIES_AT_ONCE):
        yield entries[first : first + _ENTRIES_AT_ONCE]


def _entries_with_ids(ids: NDArray[np.integer], first_id: int, end_id: int) -> NDArray[np.int64]:
    """Returns the indices of all ids in [first_id, end_id), ascending by id: int64 [n]."""
    found = []
    for first in range(0, len(ids), _ENTRIES_AT_ONCE):
        scanned = ids[first : first + _ENTRIES_AT_ONCE]
        found.append(first + np.flatnonzero((scanned >= first_id) & (scanned < end_id)))
    entries = np.concatenate(found)
    return entries[np.argsort(ids[entries], kind="stable")]


def _dropped(dataset: PreparedDataset) -> NDArray[np.int64]:
    """Returns (id, length) of over-long sequences that are not in the plan: int64 [n, 2]."""
    over_length = dataset.over_length()
    return over_length if dataset.manifest.options.over_length == "drop" else over_length[:0]


@lru_cache(maxsize=1)
def _opened(folder: Path) -> PreparedDataset:
    return open_prepared(folder, check_pool=False)


@lru_cache(maxsize=1)
def _opened_lengths(open_lengths: Callable[[], Any]) -> LengthsOf:
    return open_lengths()
