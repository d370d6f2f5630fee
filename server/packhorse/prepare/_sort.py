"""The sort of a dataset by length: every pass over it, in order, down to the sealed folder.

Owns the order of passes and what they must find together (something to plan, no sequence too long, no id twice). Leaves
what happens within a task to `_passes`, `_merge` and `_duplicates`, and what is known of finished ones to `_work`.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import (
    OVER_LENGTH,
    POOLS,
    STARTS,
    Manifest,
    OverLengthLedger,
    PreparedDataset,
    PrepareOptions,
    create_array,
    seal,
)
from packhorse.jobs import Engine, Progress
from packhorse.packing import PackingPlan, pack_histogram
from packhorse.prepare._duplicates import cut_windows, find_duplicate
from packhorse.prepare._grouping import Grouped
from packhorse.prepare._growth import added_ledgers, id_range, run_of
from packhorse.prepare._merge import Merged, cut_merges, is_merged, merge_task
from packhorse.prepare._passes import (
    CountTask,
    Run,
    RunTask,
    TaskCounts,
    count_task,
    fill_run,
    find_rows,
    make_tasks,
    map_pool,
    rows_of_task,
    run_checksum,
)
from packhorse.prepare._records import Skipped, write_inputs
from packhorse.prepare._work import Records, WorkFolder
from packhorse.prepare.readers import Opened

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


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


@dataclass(frozen=True, kw_only=True)
class Sort:
    """The passes over one dataset."""

    engine: Engine
    """Runs a pass's tasks."""
    progress: Progress
    """Shows how far each pass is."""
    opened: Opened
    """The rows to prepare, and their files."""
    options: PrepareOptions
    """What shapes the plan."""
    time_limit_seconds: float
    """Ends planning early."""
    before: PreparedDataset | None = None
    """The version that the rows are added to."""
    groups: Grouped | None = None
    """Where the rows are groups: their sequences."""
    version: int = 1
    """Which version it makes."""

    @property
    def id_column(self) -> str | None:
        """The column that ids come from; None where an id is a row number."""
        return self.opened.columns.id

    @property
    def are_ids_given(self) -> bool:
        """Whether ids stand in the input, in any order, so that one may occur twice."""
        return self.id_column is not None or self.opened.gives_ids

    def count(self, work: WorkFolder | None = None) -> Counted:
        """Counts lengths: the first pass, which changes nothing on disk but the records of the work folder, if any."""
        options, before = self.options, self.before
        num_rows = sum(span.num_rows for span in self.opened.spans)
        rows = rows_of_task(num_rows, options, self.engine.workers)
        tasks = make_tasks(self.opened.spans, options, work.rows_of_task(rows) if work else rows)
        finished = work.records("counts", TaskCounts.content, TaskCounts.of) if work else None
        sizes = [task.num_rows for task in tasks]
        parts = list(self._run("counting lengths", count_task, tasks, sizes, finished))
        self._check_files()
        if self.groups is not None:
            ledger, own_tokens = self.groups.over_length, self.groups.own_tokens
        else:
            ledger, own_tokens = _over_length_ledger(parts, options), sum(part.own_tokens for part in parts)
            if before is not None:
                ledger = added_ledgers(before.manifest.over_length, ledger)
                own_tokens += before.manifest.own_tokens
        planned = [part for part in parts if len(part.rooms)]
        if not planned:
            raise ValueError(f"all {num_rows:,} rows are bad, so nothing is left to prepare")
        rooms, counts = _merged(_counts_of(before), *((part.rooms, part.counts) for part in planned))
        low, high = min(part.id_low for part in planned), max(part.id_high for part in planned)
        if before is not None:
            low, high = min(low, id_range(before)[0]), max(high, id_range(before)[1])
        start_dtypes = {_start_dtype(parts, options), before.manifest.start_dtype if before else None}
        return Counted(
            tasks=tasks,
            parts=parts,
            rooms=rooms,
            counts=counts,
            over_length=ledger,
            own_tokens=own_tokens,
            id_range=(low, high),
            id_dtype="uint32" if low >= 0 and high < 2**32 else "int64",
            start_dtype="int64" if "int64" in start_dtypes else "uint32" if "uint32" in start_dtypes else None,
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

    def write(self, folder: Path, source: str, work: WorkFolder) -> Manifest:
        """Fills `folder` and returns its manifest.

        Args:
            folder: the folder to be, empty.
            source: what the manifest calls the input.
            work: holds runs, and records of what is finished.
        """
        counted = self.count(work)
        arrays = _Arrays.claimed(work.runs, counted, lists_over=self.groups is None)
        finished = work.records("filled", str, str)
        run_tasks = self._claim_runs(counted, work, finished)
        sizes = [task.num_rows for task in counted.tasks]
        written = self._run("writing runs", fill_run, run_tasks, sizes, finished)
        plan = self._kept_plan(counted, work)  # while others write runs
        list(written)
        self._check_files()
        sums = self._merge(arrays, counted, [task.run for task in run_tasks], work)
        if self.are_ids_given:
            self._check_unique(arrays, counted)
        for file in arrays.files:
            Path(file).rename(folder / Path(file).name)
        groups = self.groups
        read = groups.read if groups else self.opened
        return seal(
            folder,
            counts=counted.by_room,
            plan=plan,
            options=groups.options if groups else self.options,
            over_length=counted.over_length,
            own_tokens=counted.own_tokens,
            id_dtype=groups.id_dtype if groups else counted.id_dtype,
            start_dtype=counted.start_dtype,
            ids_sum=groups.ids_sum if groups else sums,
            source=source,
            id_column=read.columns.id,
            inputs=write_inputs(folder, read, counted.skipped, self.before),
            n_sequences=groups.n_sequences if groups else None,
            groups=groups.record(plan) if groups else None,
            version=self.version,
        )

    def _kept_plan(self, counted: Counted, work: WorkFolder) -> PackingPlan:
        """Returns the plan that interrupted work had made, or makes and keeps one."""
        kept = work.records("plan", _plan_content, _plan_of)
        plan = kept.of(0)
        if plan is None:
            plan = self.plan(counted)
            if not plan.cut_off:  # another try, with more time, may do better
                kept.add(0, plan)
        return plan

    def _claim_runs(self, counted: Counted, work: WorkFolder, finished: Records[str]) -> list[RunTask]:
        """Claims disk space for every run that is not finished, and forgets records of those that are damaged."""
        tasks = []
        for number, (task, part) in enumerate(zip(counted.tasks, counted.parts, strict=True)):
            name = f"{number:06}"
            run = Run(
                ids=str(work.runs / f"{name}.ids.npy"),
                first_tokens=str(work.runs / f"{name}.first_tokens.npy") if counted.start_dtype else None,
                over=str(work.runs / f"{name}.over.npy") if part.num_over else None,
            )
            if not _is_whole(run, finished.of(number)):
                finished.remove(number)
                shape = (int(part.counts.sum()),)
                _create(run.ids, counted.id_dtype, shape)
                if run.first_tokens and counted.start_dtype:
                    _create(run.first_tokens, counted.start_dtype, shape)
                if run.over:
                    _create(run.over, "int64", (part.num_over, 2))
            tasks.append(
                RunTask(
                    source=task,
                    counted=part,
                    run=run,
                    sort=self.are_ids_given,
                    flush=self.engine.are_apart,
                )
            )
        return tasks

    def _check_files(self) -> None:
        """Refuses what was changed during a pass, be it behind the pass's back."""
        for file in self.opened.files:
            file.check()

    def _merge(self, arrays: "_Arrays", counted: Counted, runs: Sequence[Run], work: WorkFolder) -> tuple[int, int]:
        """Merges runs into arrays, and returns `ids_sum` of all ids and first tokens."""
        found = [(part.rooms, part.counts) for part in counted.parts]
        if self.before is not None:
            runs = [run_of(self.before), *runs]
            found = [_counts_of(self.before), *found]
        edges = np.zeros((len(runs), len(counted.rooms) + 1), dtype=np.int64)
        for of_run, (rooms, counts) in zip(edges, found, strict=True):
            of_run[1 + np.searchsorted(counted.rooms, rooms)] = counts
        np.cumsum(edges, axis=1, out=edges)
        workers = work.merging_workers(self.engine.workers)
        cut = partial(cut_merges, sort=self.are_ids_given, workers=workers)
        files = [(run.ids, run.first_tokens) for run in runs]
        tasks = [*cut(files, edges, arrays.pool, writes="ids")]
        if arrays.first_tokens:
            tasks += cut(files, edges, arrays.first_tokens, writes="first_tokens")
        if arrays.over:
            lists = [run.over for run in runs if run.over]
            over_edges = np.array([[0, len(map_pool(path))] for path in lists])
            tasks += cut([(path, None) for path in lists], over_edges, arrays.over, writes="over")
        finished = work.records("merged", list, Merged.of)
        for number, task in enumerate(tasks):
            if (merged := finished.of(number)) and not is_merged(task, merged):
                finished.remove(number)
        sizes = [task.num_entries for task in tasks]
        sums = [merged.sums for merged in self._run("merging runs", merge_task, tasks, sizes, finished)]
        return sum(a for a, _ in sums) % 2**64, sum(b for _, b in sums) % 2**64

    def _check_unique(self, arrays: "_Arrays", counted: Counted) -> None:
        """Refuses an id that occurs twice."""
        edges = np.concatenate(([0], np.cumsum(counted.counts)))
        of_pieces = arrays.first_tokens if self.options.over_length == "split" else None
        windows = list(cut_windows(arrays.pool, edges, *counted.id_range, first_tokens_path=of_pieces))
        sizes = [window.num_ids for window in windows]
        for duplicate in self._run("comparing ids", find_duplicate, windows, sizes):
            if duplicate is not None:
                wanted = [(source, duplicate) for source in counted.tasks]
                rows = self._run("finding its rows", find_rows, wanted, [source.num_rows for source in counted.tasks])
                found = [row for part in rows for row in part]
                named = "; ".join(f"row {row} of {path}, length {length}" for path, row, length in found[:4])
                named += "; …" if len(found) > 4 else ""
                if self.before is not None and len(found) == 1:
                    raise ValueError(
                        f"id {duplicate} is in {self.before.name} already and comes again ({named}); every id must "
                        "occur once: repair the id column, or append new sequences only"
                    )
                raise ValueError(
                    f"id {duplicate} occurs {len(found)} times ({named}); every id must occur once: repair the id "
                    "column, or leave out --id-column to use row numbers"
                )

    def _run(
        self,
        name: str,
        function: Callable[[_Task], _Result],
        tasks: Sequence[_Task],
        sizes: Sequence[int],
        finished: Records[_Result] | None = None,
    ) -> Iterator[_Result]:
        """Begins one pass, and yields its tasks' results in order.

        Args:
            name: what people are told.
            function: top-level, of one task.
            tasks: what it is called with.
            sizes: rows or ids of each.
            finished: knows results of earlier work, and is told of new ones.
        """
        known = [finished.of(number) if finished else None for number in range(len(tasks))]
        left = [task for task, result in zip(tasks, known, strict=True) if result is None]
        results = self.engine.map(function, left)

        def followed() -> Iterator[_Result]:
            with self.progress.task(name, sum(sizes), "sequences") as advance:
                for number, size in enumerate(sizes):
                    result = known[number]
                    if result is None:
                        result = next(results)
                        if finished:
                            finished.add(number, result)
                    advance(size)
                    yield result

        return followed()


@dataclass(frozen=True, kw_only=True)
class _Arrays:
    """The array files of the folder to be, where they are merged."""

    pool: str
    first_tokens: str | None
    over: str | None

    @property
    def files(self) -> list[str]:
        """Those that there are."""
        return [file for file in (self.pool, self.first_tokens, self.over) if file is not None]

    @classmethod
    def claimed(cls, folder: Path, counted: Counted, *, lists_over: bool) -> "_Arrays":
        """Makes those that are not there, with their disk space; the list of what is too long only if `lists_over`."""
        shape = (int(counted.counts.sum()),)
        num_over = counted.over_length.sequences if lists_over else 0
        return cls(
            pool=_kept(folder / POOLS, counted.id_dtype, shape),
            first_tokens=_kept(folder / STARTS, counted.start_dtype, shape) if counted.start_dtype else None,
            over=_kept(folder / OVER_LENGTH, "int64", (num_over, 2)) if num_over else None,
        )


def _kept(path: Path, dtype_name: str, shape: tuple[int, ...]) -> str:
    """Returns the file of an array that interrupted work made, or makes it."""
    try:
        found = map_pool(str(path))
        if (found.dtype.name, found.shape) == (dtype_name, shape):
            return str(path)
    except (OSError, ValueError):  # missing, or cut
        pass
    return _create(path, dtype_name, shape)


def _create(path: Path | str, dtype_name: str, shape: tuple[int, ...]) -> str:
    Path(path).unlink(missing_ok=True)
    create_array(Path(path), dtype_name, shape)
    return str(path)


def _plan_content(plan: PackingPlan) -> dict[str, Any]:
    """Returns what a manifest and its files need of a plan, as JSON can hold it."""
    return {
        "templates": [[*template, multiplicity] for template, multiplicity in plan.templates.items()],
        "max_seq_len": plan.max_seq_len,
        "lower_bound": plan.lower_bound,
        "algorithm": plan.algorithm,
        "note": plan.note,
    }


def _plan_of(content: dict[str, Any]) -> PackingPlan:
    """Returns what `_plan_content` was made of."""
    templates = Counter({tuple(lengths): multiplicity for *lengths, multiplicity in content["templates"]})
    return PackingPlan(**{**content, "templates": templates})


def _is_whole(run: Run, checksum: str | None) -> bool:
    """Whether a run that was finished is as it was then."""
    return checksum is not None and all(map(os.path.exists, run.files)) and run_checksum(run) == checksum


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


_Counts = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Distinct rooms, ascending, and how many entries have each: int64 [D] both."""


def _counts_of(dataset: PreparedDataset | None) -> _Counts:
    by_room = sorted(dataset.counts.items()) if dataset else []
    return (
        np.array([room for room, _ in by_room], dtype=np.int64),
        np.array([count for _, count in by_room], dtype=np.int64),
    )


def _merged(*parts: _Counts) -> _Counts:
    histogram = np.zeros(max(int(rooms[-1]) for rooms, _ in parts if len(rooms)) + 1, dtype=np.int64)
    for rooms, counts in parts:
        histogram[rooms] += counts
    rooms = np.flatnonzero(histogram)
    return rooms, histogram[rooms]
