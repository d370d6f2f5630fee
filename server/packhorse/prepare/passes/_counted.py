"""What the first pass found in all tasks together.

Owns how tasks' counts add up, with those of the version before, and what they must come to: something to plan, and no
sequence too long where that is refused. Leaves counting itself to `passes.passes`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import OverLengthLedger, PlanOptions, PreparedDataset
from packhorse.prepare.append import added_ledgers, counts_of, id_range
from packhorse.prepare.groups.tables import Grouped
from packhorse.prepare.input.records import Skipped
from packhorse.prepare.passes.passes import CountTask, RoomCounts, TaskCounts, stored_dtype


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What the first pass found in all tasks, and with it what a version that is appended to has already."""

    tasks: list[CountTask]
    parts: list[TaskCounts]
    """What was found in each."""
    rooms: NDArray[np.int64]
    """Distinct rooms, ascending: int64 [D]."""
    counts: NDArray[np.int64]
    """Sequences, or pieces, of each: int64 [D]."""
    over_length: OverLengthLedger
    own_tokens: int
    """Tokens of what is planned, without `extra_tokens` and alignment."""
    id_range: tuple[int, int]
    """The smallest and the largest id."""
    id_dtype: Literal["uint32", "int64"]
    start_dtype: Literal["uint32", "int64"] | None
    """None where every first token is 0."""

    @property
    def by_room(self) -> dict[int, int]:
        """Room in tokens → number of sequences."""
        return dict(zip(self.rooms.tolist(), self.counts.tolist(), strict=True))

    @property
    def skipped(self) -> Skipped:
        """The rows that were skipped."""
        return [rows for part in self.parts for rows in part.skipped]

    @property
    def array_bytes(self) -> int:
        """What the arrays of the prepared folder take on disk."""
        entry = np.dtype(self.id_dtype).itemsize + (np.dtype(self.start_dtype).itemsize if self.start_dtype else 0)
        return int(self.counts.sum()) * entry + 16 * self.over_length.sequences

    def edges_of(self, runs: Sequence[RoomCounts]) -> NDArray[np.int64]:
        """Returns where each room's entries begin in each run, and where the last one's end: int64 [k, D + 1].

        Args:
            runs: what each holds, in order; together, all that was counted.
        """
        edges = np.zeros((len(runs), len(self.rooms) + 1), dtype=np.int64)
        for of_run, (rooms, counts) in zip(edges, runs, strict=True):
            of_run[1 + np.searchsorted(self.rooms, rooms)] = counts
        return np.cumsum(edges, axis=1, out=edges)

    @classmethod
    def of(
        cls,
        tasks: list[CountTask],
        parts: list[TaskCounts],
        options: PlanOptions,
        *,
        before: PreparedDataset | None,
        groups: Grouped | None,
    ) -> "Counted":
        """Adds up what was found in all tasks.

        Args:
            tasks: of the pass.
            parts: what was found in each.
            options: what shapes the plan.
            before: the version that the rows are added to.
            groups: where the rows are groups: their sequences.

        Raises:
            ValueError: a sequence is too long and the policy refuses it, or nothing is left to plan.
        """
        if groups is not None:
            ledger, own_tokens = groups.over_length, groups.own_tokens
        else:
            ledger, own_tokens = _over_length_ledger(parts, options), sum(part.own_tokens for part in parts)
            if before is not None:
                ledger = added_ledgers(before.manifest.over_length, ledger)
                own_tokens += before.manifest.own_tokens
        planned = [part for part in parts if len(part.rooms)]
        if not planned:
            raise ValueError(
                f"all {sum(task.num_rows for task in tasks):,} rows are bad, so nothing is left to prepare"
            )
        rooms, counts = _merged(counts_of(before), *((part.rooms, part.counts) for part in planned))
        low, high = min(part.id_low for part in planned), max(part.id_high for part in planned)
        if before is not None:
            low, high = min(low, id_range(before)[0]), max(high, id_range(before)[1])
        start_dtypes = {_start_dtype(parts, options), before.manifest.start_dtype if before else None}
        return cls(
            tasks=tasks,
            parts=parts,
            rooms=rooms,
            counts=counts,
            over_length=ledger,
            own_tokens=own_tokens,
            id_range=(low, high),
            id_dtype=stored_dtype(low, high),
            start_dtype="int64" if "int64" in start_dtypes else "uint32" if "uint32" in start_dtypes else None,
        )


def _over_length_ledger(found: Sequence[TaskCounts], options: PlanOptions) -> OverLengthLedger:
    limit = options.rooms.longest
    what = (
        f"max_seq_len {limit}"
        if options.rooms.is_plain
        else (
            f"the {limit} that fit max_seq_len {options.max_seq_len} with align {options.align} and extra_tokens "
            f"{options.extra_tokens}"
        )
    )
    num_over = sum(part.num_over for part in found)
    tokens_over = sum(part.tokens_over for part in found)
    first = next((part.first_over for part in found if part.first_over), None)
    if first is None:
        return OverLengthLedger()
    if options.over_length == "error":
        identity, length, path, row = first
        raise ValueError(
            f"sequence {identity} (row {row} of {path}) has {length} tokens, over {what}, and it is "
            f"{'the only one' if num_over == 1 else f'one of {num_over:,}'}; raise --max-seq-len, or cut "
            "such sequences into pieces by --over-length split, or choose drop or truncate, which lose tokens"
        )
    if not any(len(part.rooms) for part in found):
        raise ValueError(f"all {num_over:,} sequences are over {what} and dropped; raise --max-seq-len")
    is_split = options.over_length == "split"
    lost = {"drop": tokens_over, "truncate": tokens_over - num_over * limit, "split": 0}[options.over_length]
    pieces = sum(part.pieces_over for part in found) if is_split else 0
    return OverLengthLedger(sequences=num_over, source_tokens=tokens_over, tokens=lost, pieces=pieces)


def _start_dtype(found: Sequence[TaskCounts], options: PlanOptions) -> Literal["uint32", "int64"] | None:
    """How first tokens are stored; None where every entry's is 0."""
    longest, limit = max(part.longest_over for part in found), options.rooms.longest
    if not longest or (options.over_length, options.keep) not in (("split", "head"), ("truncate", "tail")):
        return None
    last = (longest - 1) // limit * limit if options.over_length == "split" else longest - limit
    return stored_dtype(0, last)


def _merged(*parts: RoomCounts) -> RoomCounts:
    histogram = np.zeros(max(int(rooms[-1]) for rooms, _ in parts if len(rooms)) + 1, dtype=np.int64)
    for rooms, counts in parts:
        histogram[rooms] += counts
    rooms = np.flatnonzero(histogram)
    return rooms, histogram[rooms]
