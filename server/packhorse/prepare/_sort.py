"""The counting sort of a dataset by length: every pass over it, in order, down to the sealed folder.

Owns the order of passes and what they must find together (something to plan, no sequence too long, no id twice). Leaves
what happens within a task to `_passes` and `_duplicates`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import (
    OVER_LENGTH,
    POOLS,
    STARTS,
    Manifest,
    OverLengthLedger,
    PrepareOptions,
    create_array,
    seal,
)
from packhorse.jobs import Progress
from packhorse.packing import PackingPlan, pack_histogram
from packhorse.prepare._duplicates import cut_windows, find_duplicate
from packhorse.prepare._engines import Engine
from packhorse.prepare._passes import (
    CountTask,
    FillTask,
    FinishTask,
    TaskCounts,
    count_task,
    fill_task,
    find_rows,
    finish_task,
    make_tasks,
    sort_over_length,
)
from packhorse.prepare._records import Skipped, write_inputs
from packhorse.prepare.readers import Opened

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What the first pass found in all tasks."""

    tasks: list[CountTask]
    parts: list[TaskCounts]
    """What was found in each."""
    rooms: NDArray[np.int64]
    """Distinct rooms, ascending: int64 [D]."""
    counts: NDArray[np.int64]
    """Sequences, or pieces, of each: int64 [D]."""
    over_length: OverLengthLedger
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


@dataclass(frozen=True, kw_only=True)
class Sort:
    """The passes over one dataset."""

    engine: Engine
    """Runs a pass's tasks."""
    progress: Progress
    """Shows how far each pass is."""
    workers: int
    """Processes that the engine has."""
    opened: Opened
    """The rows to prepare, and their files."""
    options: PrepareOptions
    """What shapes the plan."""
    time_limit_seconds: float
    """Ends planning early."""

    @property
    def id_column(self) -> str | None:
        """The column that ids come from; None where an id is a row number."""
        return self.opened.columns.id

    def count(self) -> Counted:
        """Counts lengths: the first pass, which changes nothing on disk."""
        options = self.options
        tasks = make_tasks(self.opened.spans, options, self.workers)
        parts = list(self._run("counting lengths", count_task, tasks, [task.num_rows for task in tasks]))
        self._check_files()
        ledger = _over_length_ledger(parts, options)
        if not any(len(part.rooms) for part in parts):
            raise ValueError(
                f"all {sum(task.num_rows for task in tasks):,} rows are bad, so nothing is left to prepare"
            )
        rooms, counts = _merged(parts)
        low, high = min(part.id_low for part in parts), max(part.id_high for part in parts)
        return Counted(
            tasks=tasks,
            parts=parts,
            rooms=rooms,
            counts=counts,
            over_length=ledger,
            id_dtype="uint32" if low >= 0 and high < 2**32 else "int64",
            start_dtype=_start_dtype(parts, options),
        )

    def plan(self, counted: Counted) -> PackingPlan:
        """Plans what was counted."""
        with self.progress.task("planning"):
            return pack_histogram(
                counted.by_room,
                self.options.max_seq_len,
                algorithm=self.options.algorithm,
                max_sequences_per_bin=self.options.max_sequences_per_bin,
                time_limit_seconds=self.time_limit_seconds,
            )

    def write(self, folder: Path, source: str) -> Manifest:
        """Fills `folder` and returns its manifest."""
        options = self.options
        counted = self.count()
        ledger, start_dtype = counted.over_length, counted.start_dtype
        edges = np.concatenate(([0], np.cumsum(counted.counts)))
        shape = (int(edges[-1]),)
        pool = _created(folder / POOLS, counted.id_dtype, shape)
        first_tokens = _created(folder / STARTS, start_dtype, shape) if start_dtype else None
        over = _created(folder / OVER_LENGTH, "int64", (ledger.sequences, 2)) if ledger.sequences else None
        plan = self.plan(counted)
        fills = _fill_tasks(counted.tasks, counted.parts, pool, first_tokens, over, counted.rooms, edges)
        sizes = [task.num_rows for task in counted.tasks]
        for _ in self._run("filling the pool", fill_task, fills, sizes):
            pass
        self._check_files()
        sums = self._finish(pool, first_tokens, edges)
        if self.id_column is not None:
            of_pieces = first_tokens if options.over_length == "split" else None
            self._check_unique(pool, of_pieces, edges, counted)
            if over:
                list(self._run("sorting ids of long sequences", sort_over_length, [over], [ledger.sequences]))
        return seal(
            folder,
            counts=counted.by_room,
            plan=plan,
            options=options,
            over_length=ledger,
            own_tokens=sum(part.own_tokens for part in counted.parts),
            id_dtype=counted.id_dtype,
            start_dtype=start_dtype,
            ids_sum=sums,
            source=source,
            id_column=self.id_column,
            inputs=write_inputs(folder, self.opened, counted.skipped),
        )

    def _check_files(self) -> None:
        """Refuses what was changed during a pass, be it behind the pass's back."""
        for file in self.opened.files:
            file.check()

    def _finish(self, pool: str, first_tokens: str | None, edges: NDArray[np.int64]) -> tuple[int, int]:
        rows = max(1, int(edges[-1]) // (8 * self.workers))
        tasks: list[FinishTask] = []
        begin = 0
        for segment in range(1, len(edges)):
            if edges[segment] - edges[begin] >= rows or segment == len(edges) - 1:
                tasks.append(
                    FinishTask(
                        pool=pool,
                        first_tokens_path=first_tokens,
                        edges=tuple(edges[begin : segment + 1].tolist()),
                        sort=self.id_column is not None,
                    )
                )
                begin = segment
        sizes = [task.edges[-1] - task.edges[0] for task in tasks]
        name = "sorting ids" if self.id_column is not None else "summing ids"
        sums = list(self._run(name, finish_task, tasks, sizes))
        return sum(a for a, _ in sums) % 2**64, sum(b for _, b in sums) % 2**64

    def _check_unique(
        self,
        pool: str,
        first_tokens: str | None,
        edges: NDArray[np.int64],
        counted: Counted,
    ) -> None:
        sources = counted.tasks
        low, high = min(part.id_low for part in counted.parts), max(part.id_high for part in counted.parts)
        windows = list(cut_windows(pool, edges, low, high, first_tokens_path=first_tokens))
        sizes = [window.num_ids for window in windows]
        for duplicate in self._run("comparing ids", find_duplicate, windows, sizes):
            if duplicate is not None:
                wanted = [(source, duplicate) for source in sources]
                rows = self._run("finding its rows", find_rows, wanted, [source.num_rows for source in sources])
                found = [row for part in rows for row in part]
                named = "; ".join(f"row {row} of {path}, length {length}" for path, row, length in found[:4])
                raise ValueError(
                    f"id {duplicate} occurs {len(found)} times ({named}{'; …' if len(found) > 4 else ''}); every id "
                    "must occur once: repair the id column, or leave out --id-column to use row numbers"
                )

    def _run(
        self, name: str, function: Callable[[_Task], _Result], tasks: Sequence[_Task], sizes: Sequence[int]
    ) -> Iterator[_Result]:
        """Runs one pass and yields its tasks' results in order.

        Args:
            name: what people are told.
            function: top-level, of one task.
            tasks: what it is called with.
            sizes: rows or ids of each.
        """
        with self.progress.task(name, sum(sizes), "sequences") as advance:
            for result, size in zip(self.engine.map(function, tasks), sizes, strict=True):
                advance(size)
                yield result


def _created(path: Path, dtype_name: str, shape: tuple[int, ...]) -> str:
    create_array(path, dtype_name, shape)
    return str(path)


def _over_length_ledger(found: Sequence[TaskCounts], options: PrepareOptions) -> OverLengthLedger:
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
            f"{'the only one' if num_over == 1 else f'one of {num_over:,}'}; raise --max-seq-len, or choose "
            "--over-length drop, truncate or split"
        )
    if not any(len(part.rooms) for part in found):
        raise ValueError(f"all {num_over:,} sequences are over {what} and dropped; raise --max-seq-len")
    is_split = options.over_length == "split"
    lost = {"drop": tokens_over, "truncate": tokens_over - num_over * limit, "split": 0}[options.over_length]
    pieces = sum(part.pieces_over for part in found) if is_split else 0
    return OverLengthLedger(sequences=num_over, source_tokens=tokens_over, tokens=lost, pieces=pieces)


def _start_dtype(found: Sequence[TaskCounts], options: PrepareOptions) -> Literal["uint32", "int64"] | None:
    """How first tokens are stored; None where every entry's is 0."""
    longest, limit = max(part.longest_over for part in found), options.rooms.longest
    if not longest or (options.over_length, options.keep) not in (("split", "head"), ("truncate", "tail")):
        return None
    last = (longest - 1) // limit * limit if options.over_length == "split" else longest - limit
    return "uint32" if last < 2**32 else "int64"


def _merged(found: Sequence[TaskCounts]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns all tasks' distinct rooms, ascending, and how many entries have each: int64 [D] both."""
    histogram = np.zeros(max(int(part.rooms[-1]) for part in found if len(part.rooms)) + 1, dtype=np.int64)
    for part in found:
        histogram[part.rooms] += part.counts
    rooms = np.flatnonzero(histogram)
    return rooms, histogram[rooms]


def _fill_tasks(
    tasks: Sequence[CountTask],
    found: Sequence[TaskCounts],
    pool: str,
    first_tokens: str | None,
    over: str | None,
    rooms: NDArray[np.int64],
    edges: NDArray[np.int64],
) -> list[FillTask]:
    """Gives each task the entries behind those of earlier tasks, room by room, so that row order is kept."""
    cursors = edges[:-1].copy()
    row = 0
    fills = []
    for task, part in zip(tasks, found, strict=True):
        at = np.searchsorted(rooms, part.rooms)
        fills.append(
            FillTask(
                source=task,
                pool=pool,
                first_tokens_path=first_tokens,
                over_path=over,
                over_rows=(row, row + part.num_over),
                rooms=part.rooms,
                first_entries=cursors[at],
                counts=part.counts,
                id_low=part.id_low,
                id_high=part.id_high,
            )
        )
        cursors[at] += part.counts
        row += part.num_over
    return fills
