"""The counts of all tasks of the first pass, added up, with those of the version before.

Owns `Counted`, which later passes take; the ledger of over-long sequences, or their refusal; and the types in which ids
and first tokens are stored. Leaves the counts of one task to `counting`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import OverLengthLedger, PlanOptions, PreparedDataset, SequenceFacts
from packhorse.parameters import parameter
from packhorse.prepare.counting import CountTask, LengthFacts, RoomCounts, SkippedInFile, TaskCounts, added

IdType = Literal["uint32", "int64"]
"""Type in which ids, or numbers of first tokens, are stored."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The counts of all tasks together, with those of the version before, if rows are appended to one."""

    tasks: list[CountTask]
    """The tasks of the first pass."""
    task_counts: list[TaskCounts]
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
    def skipped(self) -> list[SkippedInFile]:
        """The skipped rows of all tasks, in order."""
        return [of_batch for of_task in self.task_counts for of_batch in of_task.skipped]

    @property
    def array_bytes(self) -> int:
        """Bytes of pools.npy, starts.npy and over_length.npy."""
        start_dtype = self.start_dtype
        entry_bytes = np.dtype(self.id_dtype).itemsize + (np.dtype(start_dtype).itemsize if start_dtype else 0)
        over_long_bytes = 16  # (id, length), int64 both
        return int(self.counts.sum()) * entry_bytes + over_long_bytes * self.facts.over_length.sequences

    def edges_of(self, spills: Sequence[RoomCounts]) -> NDArray[np.int64]:
        """Returns where each room's entries begin in each of k spills, and where the last room's end: int64 [k, D + 1].

        Args:
            spills: for each spill, in order, its rooms and counts; together they hold all that was counted.
        """
        edges = np.zeros((len(spills), len(self.rooms) + 1), dtype=np.int64)
        for of_spill, (rooms, counts) in zip(edges, spills, strict=True):
            # Of rooms [3, 5, 8] a spill has 2 sequences of room 3 and 1 of room 8: [0, 2, 0, 1] -> [0, 2, 2, 3]
            of_spill[1 + np.searchsorted(self.rooms, rooms)] = counts
        return np.cumsum(edges, axis=1, out=edges)

    @classmethod
    def of(
        cls,
        tasks: list[CountTask],
        task_counts: list[TaskCounts],
        options: PlanOptions,
        *,
        before: PreparedDataset | None,
        groups: SequenceFacts | None,
    ) -> "Counted":
        """Adds up the counts of all tasks.

        Args:
            tasks: the tasks.
            task_counts: the counts of each task.
            options: options of the plan.
            before: the version to which the rows are added; None for a new dataset.
            groups: facts of the groups' sequences; None if rows are sequences.

        Raises:
            ValueError: a sequence is too long and the policy refuses it, or nothing is left to plan.
        """
        _refuse_over_long(task_counts, options)
        ledger = _over_length_ledger(task_counts, options)
        with_rows = [of_task for of_task in task_counts if len(of_task.rooms)]
        if not with_rows:  # not because they are too long: `_refuse_over_long` raises then
            raise ValueError(
                f"all {sum(task.num_rows for task in tasks):,} rows are bad, so nothing is left to prepare"
            )
        rooms, counts = added(counts_of(before), *(of_task.by_room for of_task in with_rows))
        low, high = min(of_task.id_low for of_task in with_rows), max(of_task.id_high for of_task in with_rows)
        sums = sum((of_task.facts for of_task in task_counts), LengthFacts())
        start_dtypes = [_start_dtype(task_counts, options)]
        if before is not None:
            low_before, high_before = _id_range(before)
            low, high = min(low, low_before), max(high, high_before)
            sums += LengthFacts.of_version(before.manifest)
            ledger += before.manifest.over_length
            start_dtypes.append(before.manifest.start_dtype)
        facts = groups or SequenceFacts(
            **asdict(sums),
            num_sequences=int(counts.sum()),
            id_dtype=stored_dtype(low, high),
            start_dtype=_widest(start_dtypes),
            over_length=ledger,
        )
        return cls(
            tasks=tasks,
            task_counts=task_counts,
            rooms=rooms,
            counts=counts,
            id_range=(low, high),
            id_dtype=stored_dtype(low, high),
            start_dtype=None if groups else facts.start_dtype,
            facts=facts,
        )


def _refuse_over_long(task_counts: Sequence[TaskCounts], options: PlanOptions) -> None:
    """Raises a ValueError if a sequence is over-long and the policy is "error", or if dropping leaves none."""
    num_over = sum(of_task.num_over for of_task in task_counts)
    if not num_over:
        return
    limit = options.rooms.longest
    named_limit = (
        parameter("max_seq_len") + f" {limit}"
        if options.rooms.is_plain
        else (
            f"the {limit} that fit "
            + parameter("max_seq_len")
            + f" {options.max_seq_len} with align {options.align} and "
            + parameter("extra_tokens")
            + f" {options.extra_tokens}"
        )
    )
    if options.over_length == "error":
        first = next(of_task.first_over for of_task in task_counts if of_task.first_over)
        raise ValueError(
            f"sequence {first.id} (row {first.row} of {first.file}) has {first.length} tokens, over "
            + named_limit
            + f", and it is {'the only one' if num_over == 1 else f'one of {num_over:,}'}; raise "
            + parameter("max_seq_len")
            + ", or cut such sequences into pieces by "
            + parameter("over_length", "split")
            + ", or choose drop or truncate, which lose tokens"
        )
    if not any(len(of_task.rooms) for of_task in task_counts):
        raise ValueError(
            f"all {num_over:,} sequences are over " + named_limit + " and dropped; raise " + parameter("max_seq_len")
        )


def _over_length_ledger(task_counts: Sequence[TaskCounts], options: PlanOptions) -> OverLengthLedger:
    """Returns the ledger of over-long sequences in all tasks; the policy is not "error" if there are any."""
    num_over = sum(of_task.num_over for of_task in task_counts)
    if not num_over:
        return OverLengthLedger()
    tokens_over = sum(of_task.tokens_over for of_task in task_counts)
    tokens_kept = num_over * options.rooms.longest  # by truncation
    lost = {"drop": tokens_over, "truncate": tokens_over - tokens_kept, "split": 0}[options.over_length]
    is_split = options.over_length == "split"
    pieces = sum(of_task.pieces_over for of_task in task_counts) if is_split else 0
    return OverLengthLedger(sequences=num_over, source_tokens=tokens_over, tokens=lost, pieces=pieces)


def _start_dtype(task_counts: Sequence[TaskCounts], options: PlanOptions) -> IdType | None:
    """Returns the type of first tokens, from the greatest that the policy makes; None if all are 0."""
    longest, limit = max(of_task.longest_over for of_task in task_counts), options.rooms.longest
    if not longest:  # no sequence is over-long
        return None
    if options.over_length == "split":
        return stored_dtype(0, (longest - 1) // limit * limit)  # where the last piece of the longest begins
    if options.over_length == "truncate" and options.keep == "tail":
        return stored_dtype(0, longest - limit)
    return None


def _widest(dtypes: Sequence[IdType | None]) -> IdType | None:
    """Returns the type that holds the numbers of all these types; None if there is no type but None."""
    if "int64" in dtypes:
        return "int64"
    return "uint32" if "uint32" in dtypes else None


def counts_of(before: PreparedDataset | None) -> RoomCounts:
    """Returns the rooms and counts of a version's entries; empty arrays if there is no version."""
    if before is None:
        return RoomCounts(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    return RoomCounts(before.plan.lengths.astype(np.int64), before.plan.counts.astype(np.int64))


def _id_range(before: PreparedDataset) -> tuple[int, int]:
    """Returns the smallest and the largest entry of a version's pool: ids, or numbers of groups."""
    ends = np.cumsum(before.plan.counts)
    # The entries of a room ascend, so its first is its smallest, and its last its largest.
    return int(before.pool[before.plan.pool_starts].min()), int(before.pool[ends - 1].max())


def stored_dtype(low: int, high: int) -> IdType:
    """Returns the type in which integers from `low` to `high` are stored."""
    return "uint32" if low >= 0 and high < 2**32 else "int64"
