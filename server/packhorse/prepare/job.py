"""A job: the arguments of `prepare`, checked, with its input found, and how many workers it gets.

Owns the checks of arguments together, which need no row to be read. Leaves the plan's options to `options`, names of
inputs in the manifest to `records/names`, what may be appended to `append/continuing`, and carrying the job out to
`pipeline`.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from packhorse.dataset import PlanOptions, PreparedDataset, open_prepared, refuse_holding, refuse_output
from packhorse.formats.object_store import is_url
from packhorse.jobs import Execution, available_cores, open_engine, show_progress
from packhorse.packing import DEFAULT_TIME_LIMIT_SECONDS
from packhorse.parameters import parameter
from packhorse.prepare._sort import Sort
from packhorse.prepare._work import record_of
from packhorse.prepare.append.continuing import continued, refuse_other_input
from packhorse.prepare.groups.gathering import gather_groups
from packhorse.prepare.groups.grouping import Grouping
from packhorse.prepare.input import InputColumns, Opened, Source, find_inputs, open_held, paths_of_inputs
from packhorse.prepare.options import (
    refuse_cutting_groups,
    refuse_with_groups,
    refuse_with_prefixes,
    refuse_with_resources,
)
from packhorse.prepare.records.names import joined_names, name_of_inputs
from packhorse.storage import JobRecord, refuse_url

Layout = Literal["packhorse", "seqpack"]
"""Layout of the folder."""

_WORKER_ROWS = 250_000
"""Rows for each worker, so that its start is worth the time."""
_MOST_WORKERS = 16
"""Most workers, unless the caller gives a number."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The arguments of `prepare`, checked, with the input found and nothing counted yet."""

    folder: Path
    """The folder to write."""
    opened: Opened
    """The input: its rows and files."""
    source: str
    """Names of the inputs, for the manifest."""
    options: PlanOptions
    """Options of the plan."""
    execution: Execution
    """Engine, workers and progress, as the caller gave them."""
    overwrite: bool = False
    """Whether a dataset at `folder` may be replaced."""
    before: PreparedDataset | None = None
    """The version to append to; None for a new dataset."""
    grouping: Grouping | None = None
    """Which rows are a group; None for none. With resources every row is a group of its own, unless the user groups."""
    adds: bool = True
    """When appending, whether the input holds new sequences only; if not, it holds those of the version before too."""
    record: JobRecord | None = None
    """Description by which interrupted work is recognised; None if it cannot be, for lengths in memory."""
    workers: int = 1
    """Number of workers, after the default was applied."""
    format: Layout = "packhorse"
    """Layout of the folder."""
    tokens_folder: Path | None = None
    """The folder of token files that go into the dataset's folder; None to leave the tokens where they are."""

    @contextmanager
    def started(self, folder: Path) -> Iterator[Sort]:
        """Yields the passes over the input, with an engine and a display of progress that stop afterwards.

        Groups are read here, before the passes: their tables are written into `folder`.
        """
        execution = self.execution
        before = self.before if self.adds else None  # an input that repeats its rows is counted anew
        starting = open_engine(self.workers, execution.engine or "threads", ray_address=execution.ray_address)
        with starting as engine, show_progress(quiet=not execution.progress) as progress:
            grouped = None
            if self.grouping is not None:
                grouped = gather_groups(self.opened, self.grouping, self.options, folder, progress, before)
            yield Sort(
                engine=engine,
                progress=progress,
                rows=grouped.rows if grouped else self.opened,
                options=grouped.sort_options if grouped else self.options,
                groups=grouped,
                output=self.folder,
                tokens_folder=self.tokens_folder,
                time_limit_seconds=(
                    DEFAULT_TIME_LIMIT_SECONDS if execution.time_limit_seconds is None else execution.time_limit_seconds
                ),
                before=before,
                version=self.before.manifest.version + 1 if self.before else 1,
            )


def checked_job(
    input: Source | Iterable[Source] | None,
    lengths: Any,
    output: str | os.PathLike[str],
    *,
    plan: PlanOptions,
    columns: InputColumns,
    grouping: Grouping | None,
    execution: Execution,
    overwrite: bool,
    append: bool,
    format: Layout,
) -> Job:
    """Checks the arguments of `prepare`, each and together, finds the input, and returns the job.

    What needs no look at the input is checked first.
    """
    _check_output(plan, output, format, append=append, overwrite=overwrite)
    _check_input(input, lengths, grouping, execution)
    grouping = _checked_grouping(grouping, plan, columns, format)
    folder = Path(output)
    before = _version_before(folder) if append else None
    if not append:
        refuse_output(folder, overwrite=overwrite)  # before hours of reading; written_whole checks it again
    columns = replace(columns, group=grouping.column if grouping else None)
    record, adds = None, True
    sources = [] if input is None else _sources(input, execution)
    grouping = grouping.with_tokens_of(sources) if grouping else None
    if input is None:
        opened = open_held(lengths, columns)
        source = opened.kind
    else:
        found = find_inputs(sources)
        named = [*sources, *(file.path for file in (grouping.files if grouping else ()))]
        refuse_holding(folder, [*(Path(path) for path in named if not is_url(path)), *found.files_read()])
        opened, source = found.open(columns), name_of_inputs(sources)
        adds = not found.reader.is_alone  # an index that has grown holds its old entries too
        record = record_of(opened, plan, grouping, appended_to=before.manifest.digest if before else None)
    _check_opened(opened, source, format)
    if before is not None:
        refuse_other_input(before, opened, plan, groups_by=grouping.said if grouping else None, adds=adds)
        if adds:
            opened, source = continued(before, opened), joined_names(before.manifest.source, source)
    return Job(
        folder=folder,
        opened=opened,
        source=source,
        options=plan,
        execution=execution,
        overwrite=overwrite,
        before=before,
        grouping=grouping,
        adds=adds,
        record=record,
        workers=execution.workers or default_workers(opened.num_rows),
        format=format,
    )


def _check_output(
    plan: PlanOptions, output: str | os.PathLike[str], format: Layout, *, append: bool, overwrite: bool
) -> None:
    """Refuses an output that is no folder's path, and a layout that does not go with other arguments."""
    if not isinstance(output, str | os.PathLike):
        raise ValueError(parameter("output") + f" must be the folder to write, got {output!r:.60}")
    refuse_url(output, "output")
    if format not in get_args(Layout):
        raise ValueError(parameter("format") + f" must be one of {', '.join(get_args(Layout))}, got {format!r}")
    if format == "seqpack" and (plan.over_length == "split" or plan.keep == "tail"):
        raise ValueError(
            "seqpack's layout cannot say where a piece begins: use "
            + parameter("format", "packhorse")
            + ", or neither "
            + parameter("over_length", "split")
            + " nor "
            + parameter("keep", "tail")
        )
    if append and (overwrite or format == "seqpack"):
        raise ValueError(
            parameter("append")
            + " goes neither with "
            + parameter("overwrite", True)
            + ", which keeps no earlier version, nor with seqpack's layout"
        )


def _check_input(
    input: Source | Iterable[Source] | None, lengths: Any, grouping: Grouping | None, execution: Execution
) -> None:
    """Refuses input that is given twice or not at all, and arguments that do not go with its kind (files or memory)."""
    if (input is None) == (lengths is None):
        raise ValueError("give either input, for files, or lengths, for data in memory")
    if lengths is not None and execution.resume:
        raise ValueError(
            parameter("resume")
            + " needs files: lengths in memory cannot be compared with those of the interrupted call"
        )
    if lengths is None and grouping is not None and grouping.numbers is not None and grouping.file is None:
        raise ValueError(
            "groups in memory need lengths in memory: for files give a column, a size, or a file of numbers"
        )


def _checked_grouping(
    grouping: Grouping | None, plan: PlanOptions, columns: InputColumns, format: Layout
) -> Grouping | None:
    """Returns which rows are a group, after comparing it with the other options; None for no groups."""
    is_seqpack, skips = format == "seqpack", columns.on_bad_row == "skip"
    if columns.resources:
        refuse_with_resources(plan, seqpack=is_seqpack, skips=skips)
        if grouping is not None:
            refuse_cutting_groups(plan)
        grouping = grouping or Grouping(size=1)
    elif grouping is not None:
        refuse_with_groups(plan, seqpack=is_seqpack, skips=skips)
    refuse_with_prefixes(plan, columns, grouping)
    return grouping


def _check_opened(opened: Opened, source: str, format: Layout) -> None:
    """Refuses an input without rows, and keys in a layout that has none."""
    if format == "seqpack" and opened.keys is not None:
        raise ValueError(
            f"seqpack's layout has no keys, and {opened.keys.name!r} holds some: use "
            + parameter("format", "packhorse")
            + ", or leave the id column out"
        )
    if not opened.num_rows:
        where = f"{len(opened.files):,} files" if len(opened.files) > 1 else source
        raise ValueError(f"the input holds no rows in {where}, so there is nothing to prepare")


def _version_before(folder: Path) -> PreparedDataset:
    """Opens the dataset to append to; raises a FileNotFoundError if there is none."""
    if not folder.exists():
        raise FileNotFoundError(
            f"{folder} is not there to append to; leave " + parameter("append", True) + " out to begin a dataset"
        )
    return open_prepared(folder)


def _sources(input: Source | Iterable[Source], execution: Execution) -> list[str]:
    """Returns the paths and URLs of the input, as the engine's processes can open them."""
    sources = paths_of_inputs(input)
    if execution.engine == "ray":  # Ray's processes have another working directory
        return [source if is_url(source) else os.path.abspath(source) for source in sources]
    return sources


def default_workers(num_rows: int) -> int:
    """Returns how many threads or processes are worth their start."""
    return max(1, min(available_cores(), num_rows // _WORKER_ROWS, _MOST_WORKERS))
