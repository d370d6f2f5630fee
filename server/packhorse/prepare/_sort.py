"""The sort of a dataset by length: every pass over the rows, in order, from counting to the finished folder.

Owns the order of passes, and running a pass so that finished tasks are not run again. Leaves the passes' tasks to
`counting`, `_spills` and `_merging`, groups to `groups/gathering`, and where finished tasks are recorded to `_work`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from packhorse.dataset import Facts, Manifest, PlanOptions, PreparedDataset, seal
from packhorse.jobs import Engine, Progress
from packhorse.packing import PackingPlan, PackingStats, pack_context, pack_histogram
from packhorse.prepare._merging import Arrays, Merged, is_merged, merge_task
from packhorse.prepare._spills import Spill, SpillTask, write_spill
from packhorse.prepare._work import WorkFolder
from packhorse.prepare.counting import TaskCounts, count_task, make_tasks, rows_of_task
from packhorse.prepare.duplicates import FindTask, cut_chunks, duplicate_error, find_duplicate, find_rows
from packhorse.prepare.groups.gathering import Grouped
from packhorse.prepare.input import Opened
from packhorse.prepare.records.inputs import write_inputs
from packhorse.prepare.records.keys import gather_keys
from packhorse.prepare.totals import Counted, counts_of
from packhorse.storage import Records

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class Sort:
    """The passes over one dataset. A row is a sequence, or a group if there are groups."""

    engine: Engine
    """The engine that runs tasks."""
    progress: Progress
    """The display of progress."""
    rows: Opened
    """The rows to prepare, and their files."""
    options: PlanOptions
    """Options of the plan over these rows."""
    time_limit_seconds: float
    """Time after which planning stops early."""
    before: PreparedDataset | None = None
    """The version to which the rows are added; None for a new dataset."""
    groups: Grouped | None = None
    """The sequences of the groups; None if rows are sequences."""
    output: Path | None = None
    """The final name of the folder; None if no folder is written."""
    tokens_folder: Path | None = None
    """The folder of token files that go into the dataset's folder; None to leave the tokens where they are."""
    version: int = 1
    """Number of the version that the passes make."""

    @property
    def sequences(self) -> Opened:
        """The sequences that were read, also if the rows are groups."""
        return self.groups.sequences if self.groups else self.rows

    @property
    def _merged_before(self) -> PreparedDataset | None:
        """The version whose counts and arrays are merged with the new ones.

        None with resources: the classes of all groups are computed again, so the earlier groups are among the rows.
        """
        return None if self.groups and self.groups.sizes else self.before

    @property
    def are_ids_given(self) -> bool:
        """Whether ids come from the input, in any order, so that an id may occur twice."""
        return self.rows.columns.id is not None or self.rows.gives_ids

    def count(self, work: WorkFolder | None = None) -> Counted:
        """Counts lengths: the first pass. It writes only records of finished tasks, and none without a work folder."""
        rows = rows_of_task(self.rows.num_rows, self.options, self.engine.workers)
        finished = None
        if work is not None:
            rows = work.as_begun("rows_of_task", rows)
            finished = work.records("counts", TaskCounts.content, TaskCounts.of)
        tasks = make_tasks(self.rows.ranges, self.options, rows)
        sizes = [task.num_rows for task in tasks]
        task_counts = list(self._run("counting lengths", count_task, tasks, sizes, finished))
        self.rows.check_files()
        groups = self.groups.facts if self.groups else None
        return Counted.of(tasks, task_counts, self.options, before=self._merged_before, groups=groups)

    def plan(self, counted: Counted) -> PackingPlan:
        """Plans the counts."""
        with self.progress.task("planning"):
            if self.groups and self.groups.sizes:
                return self.groups.sizes.plan()
            if (rule := self.options.context) is not None:
                return pack_context(counted.by_room, rule)
            return pack_histogram(
                counted.by_room,
                self.options.max_seq_len,
                algorithm=self.options.algorithm,
                max_sequences_per_bin=self.options.max_sequences_per_bin,
                time_limit_seconds=self.time_limit_seconds,
            )

    def stats(self, plan: PackingPlan) -> PackingStats:
        """Returns how full a plan's bins are."""
        if self.groups and self.groups.sizes:
            return self.groups.sizes.stats(plan)
        return PackingStats.from_templates(
            plan.templates,
            self.options.max_seq_len,
            max_sequences_per_bin=self.options.max_sequences_per_bin,
            proven_bound=plan.lower_bound,
        )

    def write(self, folder: Path, source: str, work: WorkFolder) -> Manifest:
        """Runs all passes, fills `folder` and returns its manifest.

        Args:
            folder: the folder to fill; empty, except for tables of groups.
            source: names of the input, for the manifest.
            work: the work folder, for spills and records of finished tasks.
        """
        groups = self.groups
        counted = self.count(work)
        keys = gather_keys(folder, self.sequences, self.progress, self.before)
        arrays = Arrays.claimed(work.spills, counted, lists_over=groups is None)
        finished = work.records("filled", str, str)
        tasks = self._claim_spills(counted, work, finished)
        written = self._run("writing ids", write_spill, tasks, [task.source.num_rows for task in tasks], finished)
        plan = self._recorded_plan(counted, work)  # tasks write spills in the meantime
        list(written)  # waits for them, and raises the error of one that failed
        self.rows.check_files()
        ids_sum_a, ids_sum_b = self._merge(arrays, counted, [task.spill for task in tasks], work)
        if self.are_ids_given:
            self._check_unique(arrays, counted)
        for file in arrays.files:
            Path(file).rename(folder / Path(file).name)
        sequence_facts = counted.facts
        if groups is None:  # else merged ids are numbers of groups, and `facts` has the sums of sequences' ids
            sequence_facts = replace(sequence_facts, ids_sum_a=ids_sum_a, ids_sum_b=ids_sum_b)
        sizes = groups.sizes if groups else None
        return seal(
            folder,
            counted.by_room,
            plan,
            groups.options if groups else self.options,
            Facts(
                **vars(sequence_facts),
                resources=sizes.records() if sizes else (),
                rounding_tokens=sizes.rounding_tokens() if sizes else 0,
                source=source,
                id_column=self.sequences.columns.id,
                inputs=write_inputs(
                    folder,
                    self.sequences,
                    counted.skipped,
                    self.before,
                    output=self.output,
                    tokens_folder=self.tokens_folder,
                ),
                groups=groups.record(plan) if groups else None,
                keys=keys,
                version=self.version,
            ),
        )

    def _recorded_plan(self, counted: Counted, work: WorkFolder) -> PackingPlan:
        """Returns the plan that an interrupted call recorded; else makes one and records it."""
        records = work.records("plan", _content_of_plan, _plan_of_content)
        plan = records.of(0)
        if plan is None:
            plan = self.plan(counted)
            if not plan.cut_off:  # if it was, a resumed call with more time may find a better one
                records.add(0, plan)
        return plan

    def _claim_spills(self, counted: Counted, work: WorkFolder, finished: Records[str]) -> list[SpillTask]:
        """Returns the tasks that write spills.

        Claims disk space for each spill that is not finished, and forgets the record of a spill that was damaged.
        """
        start_dtype = counted.start_dtype
        sort, flush = self.are_ids_given, self.engine.are_apart
        tasks = []
        for number, (task, task_counts) in enumerate(zip(counted.tasks, counted.task_counts, strict=True)):
            name = f"{number:06}"
            spill = Spill(
                ids=str(work.spills / f"{name}.ids.npy"),
                first_tokens=str(work.spills / f"{name}.first_tokens.npy") if start_dtype else None,
                over=str(work.spills / f"{name}.over.npy") if task_counts.num_over else None,
            )
            if not spill.is_whole(finished.of(number)):
                finished.remove(number)
                spill.claim(task_counts, counted.id_dtype, start_dtype)
            tasks.append(SpillTask(source=task, counted=task_counts, spill=spill, sort=sort, flush=flush))
        return tasks

    def _merge(self, arrays: Arrays, counted: Counted, spills: Sequence[Spill], work: WorkFolder) -> tuple[int, int]:
        """Merges spills into arrays, and returns the two halves of `ids_sum` of all ids and first tokens."""
        counts = [task_counts.by_room for task_counts in counted.task_counts]
        if (before := self._merged_before) is not None:
            spills = [Spill.of_version(before), *spills]
            counts = [counts_of(before), *counts]
        workers = work.as_begun("merging_workers", self.engine.workers)
        tasks = arrays.merges(spills, counted.edges_of(counts), sort=self.are_ids_given, workers=workers)
        finished = work.records("merged", list, Merged.of)
        for number, task in enumerate(tasks):
            if (merged := finished.of(number)) and not is_merged(task, merged):  # the range was damaged
                finished.remove(number)
        sizes = [task.num_entries for task in tasks]
        sums = [merged.sums for merged in self._run("merging ids", merge_task, tasks, sizes, finished)]
        return sum(sum_a for sum_a, _ in sums) % 2**64, sum(sum_b for _, sum_b in sums) % 2**64

    def _check_unique(self, arrays: Arrays, counted: Counted) -> None:
        """Refuses an id that occurs twice: finds it in the merged pool, then its rows in the input, for the message."""
        edges = np.concatenate(([0], np.cumsum(counted.counts)))  # counts [2, 3] -> [0, 2, 5]
        starts_of_pieces = arrays.first_tokens if self.options.over_length == "split" else None
        chunks = list(cut_chunks(arrays.pool, edges, *counted.id_range, first_tokens_path=starts_of_pieces))
        sizes = [chunk.num_ids for chunk in chunks]
        for duplicate in self._run("comparing ids", find_duplicate, chunks, sizes):
            if duplicate is not None:
                find_tasks = [FindTask(task.ranges, duplicate) for task in counted.tasks]
                sizes = [task.num_rows for task in counted.tasks]
                found = self._run("finding its rows", find_rows, find_tasks, sizes)
                raise duplicate_error(duplicate, [row for of_task in found for row in of_task], self.before)

    def _run(
        self,
        name: str,
        function: Callable[[_Task], _Result],
        tasks: Sequence[_Task],
        sizes: Sequence[int],
        finished: Records[_Result] | None = None,
    ) -> Iterator[_Result]:
        """Starts the tasks of one pass at once, and returns an iterator over their results, in order.

        Args:
            name: the pass's name in progress.
            function: a function of one task, at the top level of its module.
            tasks: the tasks.
            sizes: number of rows or ids in each task.
            finished: results of tasks that an interrupted call finished, which are not run again; gets the new results.
        """
        recorded = [finished.of(number) if finished else None for number in range(len(tasks))]
        unfinished = [task for task, result in zip(tasks, recorded, strict=True) if result is None]
        new_results = self.engine.map(function, unfinished)

        def all_results() -> Iterator[_Result]:
            """Yields each task's result, recorded or new; records new ones and shows progress."""
            with self.progress.task(name, sum(sizes), "sequences") as advance:
                for number, size in enumerate(sizes):
                    result = recorded[number]
                    if result is None:
                        result = next(new_results)
                        if finished:
                            finished.add(number, result)
                    advance(size)
                    yield result

        return all_results()


def _content_of_plan(plan: PackingPlan) -> dict[str, Any]:
    """Returns a plan as values that JSON can hold, without its certificate and seconds, which no folder has.

    A plan that was cut off is not recorded.
    """
    return {
        "templates": [[*template, multiplicity] for template, multiplicity in plan.templates.items()],
        "max_seq_len": plan.max_seq_len,
        "lower_bound": plan.lower_bound,
        "algorithm": plan.algorithm,
        "note": plan.note,
    }


def _plan_of_content(content: dict[str, Any]) -> PackingPlan:
    """Returns the plan of which `_content_of_plan` made its values."""
    templates = Counter({tuple(lengths): multiplicity for *lengths, multiplicity in content["templates"]})
    return PackingPlan(**{**content, "templates": templates})
