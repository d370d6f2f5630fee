"""The sort of a dataset by length: every pass over it, in order, down to the sealed folder.

Owns the order of passes, and that no id comes twice. Leaves what happens within a task to `passes.passes`, `_merge` and
`passes.duplicates`, what counting must come to to `_counted`, the files to `_arrays`, and what is known of finished
tasks to `work`.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from packhorse.dataset import Facts, Manifest, PlanOptions, PreparedDataset, seal
from packhorse.jobs import Engine, Progress
from packhorse.packing import PackingPlan, pack_histogram
from packhorse.prepare.append import counts_of, run_of
from packhorse.prepare.groups.tables import Grouped
from packhorse.prepare.input import Opened
from packhorse.prepare.input.records import write_inputs
from packhorse.prepare.passes._arrays import Arrays, claim
from packhorse.prepare.passes._counted import Counted
from packhorse.prepare.passes._merge import Merged, is_merged, merge_task
from packhorse.prepare.passes.duplicates import cut_windows, duplicate_error, find_duplicate
from packhorse.prepare.passes.keys import gather_keys
from packhorse.prepare.passes.passes import (
    Run,
    RunTask,
    TaskCounts,
    count_task,
    fill_run,
    find_rows,
    make_tasks,
    rows_of_task,
    run_checksum,
)
from packhorse.prepare.work import Records, WorkFolder, plan_content, plan_of

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class Sort:
    """The passes over one dataset."""

    engine: Engine
    """Runs a pass's tasks."""
    progress: Progress
    """Shows how far each pass is."""
    opened: Opened
    """The rows to prepare, and their files."""
    options: PlanOptions
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
        options = self.options
        num_rows = sum(span.num_rows for span in self.opened.spans)
        rows = rows_of_task(num_rows, options, self.engine.workers)
        tasks = make_tasks(self.opened.spans, options, work.rows_of_task(rows) if work else rows)
        finished = work.records("counts", TaskCounts.content, TaskCounts.of) if work else None
        sizes = [task.num_rows for task in tasks]
        parts = list(self._run("counting lengths", count_task, tasks, sizes, finished))
        self._check_files()
        return Counted.of(tasks, parts, options, before=self.before, groups=self.groups)

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
        groups = self.groups
        read = groups.read if groups else self.opened
        counted = self.count(work)
        keys = gather_keys(folder, read, self.progress, self.before)
        arrays = Arrays.claimed(work.runs, counted, lists_over=self.groups is None)
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
        ids_sum = groups.ids_sum if groups else sums
        return seal(
            folder,
            counted.by_room,
            plan,
            groups.options if groups else self.options,
            Facts(
                n_sequences=groups.n_sequences if groups else plan.num_sequences,
                own_tokens=counted.own_tokens,
                id_dtype=groups.id_dtype if groups else counted.id_dtype,
                start_dtype=counted.start_dtype,
                ids_sum_a=ids_sum[0],
                ids_sum_b=ids_sum[1],
                over_length=counted.over_length,
                source=source,
                id_column=read.columns.id,
                inputs=write_inputs(folder, read, counted.skipped, self.before),
                groups=groups.record(plan) if groups else None,
                keys=keys,
                version=self.version,
            ),
        )

    def _kept_plan(self, counted: Counted, work: WorkFolder) -> PackingPlan:
        """Returns the plan that interrupted work had made, or makes and keeps one."""
        kept = work.records("plan", plan_content, plan_of)
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
                claim(run.ids, counted.id_dtype, shape)
                if run.first_tokens and counted.start_dtype:
                    claim(run.first_tokens, counted.start_dtype, shape)
                if run.over:
                    claim(run.over, "int64", (part.num_over, 2))
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

    def _merge(self, arrays: Arrays, counted: Counted, runs: Sequence[Run], work: WorkFolder) -> tuple[int, int]:
        """Merges runs into arrays, and returns `ids_sum` of all ids and first tokens."""
        found = [(part.rooms, part.counts) for part in counted.parts]
        if self.before is not None:
            runs = [run_of(self.before), *runs]
            found = [counts_of(self.before), *found]
        workers = work.merging_workers(self.engine.workers)
        tasks = arrays.merges(runs, counted.edges_of(found), sort=self.are_ids_given, workers=workers)
        finished = work.records("merged", list, Merged.of)
        for number, task in enumerate(tasks):
            if (merged := finished.of(number)) and not is_merged(task, merged):
                finished.remove(number)
        sizes = [task.num_entries for task in tasks]
        sums = [merged.sums for merged in self._run("merging runs", merge_task, tasks, sizes, finished)]
        return sum(a for a, _ in sums) % 2**64, sum(b for _, b in sums) % 2**64

    def _check_unique(self, arrays: Arrays, counted: Counted) -> None:
        """Refuses an id that occurs twice."""
        edges = np.concatenate(([0], np.cumsum(counted.counts)))
        of_pieces = arrays.first_tokens if self.options.over_length == "split" else None
        windows = list(cut_windows(arrays.pool, edges, *counted.id_range, first_tokens_path=of_pieces))
        sizes = [window.num_ids for window in windows]
        for duplicate in self._run("comparing ids", find_duplicate, windows, sizes):
            if duplicate is not None:
                wanted = [(source.spans, duplicate) for source in counted.tasks]
                rows = self._run("finding its rows", find_rows, wanted, [source.num_rows for source in counted.tasks])
                raise duplicate_error(duplicate, [row for part in rows for row in part], self.before)

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


def _is_whole(run: Run, checksum: str | None) -> bool:
    """Whether a run that was finished is as it was then."""
    return checksum is not None and all(map(os.path.exists, run.files)) and run_checksum(run) == checksum
