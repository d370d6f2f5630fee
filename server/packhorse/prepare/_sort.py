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
from packhorse.packing import pack_histogram
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
from packhorse.prepare._sources import Span

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class Sort:
    """The passes over one dataset."""

    engine: Engine
    """Runs a pass's tasks."""
    progress: Progress
    """Shows how far each pass is."""
    workers: int
    """Processes that the engine has."""
    spans: list[Span]
    """The rows to prepare, in order."""
    options: PrepareOptions
    """What shapes the plan."""
    id_column: str | None
    """The column that ids come from; None where an id is a row number."""
    time_limit_seconds: float
    """Ends planning early."""

    def write(self, folder: Path, source: str) -> Manifest:
        """Fills `folder` and returns its manifest."""
        options = self.options
        tasks = make_tasks(self.spans, options, self.workers)
        sizes = [task.num_rows for task in tasks]
        found = list(self._run("counting lengths", count_task, tasks, sizes))
        ledger = _over_length_ledger(found, options)
        rooms, counts = _merged(found)
        by_room = dict(zip(rooms.tolist(), counts.tolist(), strict=True))
        low, high = min(part.id_low for part in found), max(part.id_high for part in found)
        id_dtype: Literal["uint32", "int64"] = "uint32" if low >= 0 and high < 2**32 else "int64"
        start_dtype = _start_dtype(found, options)
        edges = np.concatenate(([0], np.cumsum(counts)))
        shape = (int(edges[-1]),)
        pool = _created(folder / POOLS, id_dtype, shape)
        first_tokens = _created(folder / STARTS, start_dtype, shape) if start_dtype else None
        over = _created(folder / OVER_LENGTH, "int64", (ledger.sequences, 2)) if ledger.sequences else None
        with self.progress.task("planning"):
            plan = pack_histogram(
                by_room,
                options.max_seq_len,
                algorithm=options.algorithm,
                max_sequences_per_bin=options.max_sequences_per_bin,
                time_limit_seconds=self.time_limit_seconds,
            )
        fills = _fill_tasks(tasks, found, pool, first_tokens, over, rooms, edges)
        for _ in self._run("filling the pool", fill_task, fills, sizes):
            pass
        sums = self._finish(pool, first_tokens, edges)
        if self.id_column is not None:
            of_pieces = first_tokens if options.over_length == "split" else None
            self._check_unique(pool, of_pieces, edges, low, high, tasks)
            if over:
                list(self._run("sorting ids of long sequences", sort_over_length, [over], [ledger.sequences]))
        return seal(
            folder,
            counts=by_room,
            plan=plan,
            options=options,
            over_length=ledger,
            own_tokens=sum(part.own_tokens for part in found),
            id_dtype=id_dtype,
            start_dtype=start_dtype,
            ids_sum=sums,
            source=source,
            id_column=self.id_column,
        )

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
        low: int,
        high: int,
        sources: Sequence[CountTask],
    ) -> None:
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
