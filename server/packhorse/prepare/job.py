"""A job: the arguments of `prepare`, checked, with its input found.

Owns every check that needs no row to be read: of each argument, and of arguments together. Leaves names and paths of
inputs to `records/names`, what may be appended to `_append`, and carrying the job out to `pipeline`.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from packhorse.dataset import (
    Keep,
    OverLength,
    PlanOptions,
    PreparedDataset,
    open_prepared,
    refuse_holding,
    refuse_output,
)
from packhorse.formats.object_store import is_url
from packhorse.jobs import Execution, open_engine, show_progress
from packhorse.packing import DEFAULT_TIME_LIMIT_SECONDS, PACKERS, checked_rule
from packhorse.parameters import parameter
from packhorse.prepare._append import continued, refuse_growth, refuse_other_options
from packhorse.prepare._groups import gather_groups
from packhorse.prepare._sort import Sort
from packhorse.prepare._work import record_of
from packhorse.prepare.grouping import Grouping
from packhorse.prepare.input import Found, InputColumns, Opened, find_inputs, open_held
from packhorse.prepare.records.names import Source, joined_names, name_of_inputs, paths_of_inputs
from packhorse.storage import JobRecord, refuse_url
from packhorse.topology import ContextRule, checked_integer

Layout = Literal["packhorse", "seqpack"]
"""Layout of the folder."""

_WORKER_ROWS = 250_000
"""Rows from which on another worker is worth its start."""
_MOST_WORKERS = 16


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
        """Gives the passes over the input, with an engine and progress that stop afterwards.

        Groups are read here, before the passes: their tables are written into `folder`.
        """
        execution = self.execution
        opened = open_engine(self.workers, execution.engine or "threads", ray_address=execution.ray_address)
        with opened as engine, show_progress(quiet=not execution.progress) as shown:
            grouped = None
            if self.grouping is not None:
                before = self.before if self.adds else None
                grouped = gather_groups(self.opened, self.grouping, self.options, folder, shown, before)
            yield Sort(
                engine=engine,
                progress=shown,
                opened=grouped.opened if grouped else self.opened,
                options=grouped.sort_options if grouped else self.options,
                groups=grouped,
                output=self.folder,
                tokens_folder=self.tokens_folder,
                time_limit_seconds=(
                    DEFAULT_TIME_LIMIT_SECONDS if execution.time_limit_seconds is None else execution.time_limit_seconds
                ),
                before=self.before if self.adds else None,
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
    """Checks the arguments of `prepare`, each and together, finds the input, and returns the job."""
    _check_output(plan, output, format)
    if append and (overwrite or format == "seqpack"):
        raise _cannot_append()
    _check_input(input, lengths, grouping, execution)
    if columns.resources:
        _refuse_with_resources(plan, seqpack=format == "seqpack", skips=columns.on_bad_row == "skip")
        if grouping is not None:
            _refuse_cutting_groups(plan)
        grouping = grouping or Grouping(size=1)
    elif grouping is not None:
        _refuse_with_groups(plan, seqpack=format == "seqpack", skips=columns.on_bad_row == "skip")
    _refuse_with_prefixes(plan, columns, grouping)
    folder = Path(output)
    before = _version_before(folder) if append else None
    if not append:
        refuse_output(folder, overwrite=overwrite)  # before hours of reading; written_whole checks it again
    columns = replace(columns, group=grouping.column if grouping else None)
    record, adds = None, True
    sources = [] if input is None else _sources(input, execution)
    grouping = grouping and grouping.with_tokens_of(sources)
    if input is None:
        opened = open_held(lengths, columns)
        source = opened.kind
    else:
        found = find_inputs(sources)
        _refuse_holding(folder, [*sources, *(file.path for file in grouping.files)] if grouping else sources, found)
        opened, source, adds = found.open(columns), name_of_inputs(sources), not found.reader.is_alone
        record = record_of(opened, plan, grouping, appended_to=before.manifest.digest if before else None)
    _check_opened(opened, source, format)
    if before is not None:
        refuse_growth(before, opened, plan, groups_by=grouping.said if grouping else None, adds=adds)
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


def _check_output(plan: PlanOptions, output: str | os.PathLike[str], format: Layout) -> None:
    """Refuses an output or a format that cannot be written."""
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


def _cannot_append() -> ValueError:
    said = ", which keeps no earlier version, nor with seqpack's layout"
    return ValueError(parameter("append") + " goes neither with " + parameter("overwrite", True) + said)


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


def _check_opened(opened: Opened, source: str, format: Layout) -> None:
    """Refuses an input without rows, or with keys that the format cannot hold."""
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
    if not folder.exists():
        raise FileNotFoundError(
            f"{folder} is not there to append to; leave " + parameter("append", True) + " out to begin a dataset"
        )
    return open_prepared(folder)


def _sources(input: Source | Iterable[Source], execution: Execution) -> list[str]:
    sources = paths_of_inputs(input)
    if execution.engine == "ray":  # Ray's processes have another working directory
        return [source if is_url(source) else os.path.abspath(source) for source in sources]
    return sources


def _refuse_holding(folder: Path, named: list[str], found: Found) -> None:
    """Refuses an output that is, or contains, an input."""
    refuse_holding(folder, [*(Path(path) for path in named if not is_url(path)), *found.files_read()])


def _refuse_with_groups(options: PlanOptions, *, seqpack: bool, skips: bool) -> None:
    """Refuses options that do not go with groups; raises a ValueError."""
    _refuse_cutting_groups(options)
    for name in ("max_sequences_per_bin", "tokens_per_rank"):
        if getattr(options, name) is not None:
            raise ValueError(f"{name} does not go with groups: leave it out")
    if seqpack:
        raise ValueError(
            "seqpack's layout cannot say which sequences are a group: use " + parameter("format", "packhorse")
        )
    if skips:
        raise ValueError(
            parameter("on_bad_row", "skip")
            + " would leave a group without one of its sequences: repair the rows, or leave out their "
            "groups"
        )


def _refuse_with_prefixes(options: PlanOptions, columns: InputColumns, grouping: Grouping | None) -> None:
    """Refuses options that do not go with groups that share prefixes; raises a ValueError."""
    if grouping is None or grouping.share_prefixes is None:
        return
    if not options.rooms.is_plain or columns.resources:
        raise ValueError(
            parameter("share_prefixes")
            + " goes without align, extra_tokens and resources, which count for each sequence: leave them out"
        )


def _refuse_cutting_groups(options: PlanOptions) -> None:
    """Refuses over-length policies that would cut a group."""
    if options.over_length in ("truncate", "split"):
        raise ValueError(
            parameter("over_length", options.over_length)
            + " would cut sequences out of their group: choose "
            + parameter("over_length", "error")
            + ", or 'drop', which leaves out whole groups"
        )


def _refuse_with_resources(options: PlanOptions, *, seqpack: bool, skips: bool) -> None:
    """Refuses options that do not go with resources; raises a ValueError."""
    if options.over_length == "truncate":
        raise ValueError(
            parameter("over_length", "truncate")
            + " would cut a sequence and not what it takes of a resource: choose "
            + parameter("over_length", "split")
            + ", which splits those that take nothing, or 'drop', which leaves out those that do not fit a "
            "bin"
        )
    if options.algorithm not in ("auto", "best-fit"):
        raise ValueError("resources have a packer of their own: leave algorithm out")
    for name in ("max_sequences_per_bin", "tokens_per_rank"):
        if getattr(options, name) is not None:
            raise ValueError(parameter(name) + " does not go with resources: leave it out")
    for is_there, what in (
        (seqpack, ("seqpack's layout does not know resources: use " + parameter("format", "packhorse"))),
        (
            skips,
            (
                parameter("on_bad_row", "skip")
                + " does not go with resources: repair the rows, or leave them out of the input"
            ),
        ),
    ):
        if is_there:
            raise ValueError(what)


def default_workers(num_rows: int) -> int:
    """Returns how many threads or processes are worth their start."""
    return max(1, min(os.cpu_count() or 1, num_rows // _WORKER_ROWS, _MOST_WORKERS))


def check_plan(
    options: PlanOptions, grouping: Grouping | None = None, *, appends_to: PreparedDataset | None = None
) -> None:
    """Refuses options that `prepare` would refuse for any input, so that an error comes before hours of tokenizing.

    Example:
        >>> check_plan(PlanOptions(max_seq_len=8, over_length="drop"), Grouping(size=2))

    Args:
        options: options of the plan.
        grouping: which rows are a group; None for no groups.
        appends_to: the dataset to append to; None for a new dataset.

    Raises:
        ValueError: an option is out of range, options do not go together, or they differ from those of `appends_to`;
            the message names them.
    """
    options = checked_options(options)
    if appends_to is not None:
        refuse_other_options(appends_to, options)
    if grouping is not None:
        _refuse_with_groups(options, seqpack=False, skips=False)
    _refuse_with_prefixes(options, InputColumns(), grouping)


def checked_options(options: PlanOptions) -> PlanOptions:
    """Returns the options of a plan with integers of Python; a ValueError if one is wrong."""
    if options.over_length not in get_args(OverLength):
        raise ValueError(
            parameter("over_length") + f" must be one of {', '.join(get_args(OverLength))}, got {options.over_length!r}"
        )
    if options.keep not in get_args(Keep):
        raise ValueError(parameter("keep") + f" must be one of {', '.join(get_args(Keep))}, got {options.keep!r}")
    if options.keep == "tail" and options.over_length != "truncate":
        raise ValueError(
            parameter("keep", "tail")
            + " is for "
            + parameter("over_length", "truncate")
            + f"; with {options.over_length!r} nothing is cut off"
        )
    if options.algorithm != "auto" and options.algorithm not in PACKERS:
        raise ValueError(
            "unknown " + parameter("algorithm", options.algorithm) + f"; there are: auto, {', '.join(sorted(PACKERS))}"
        )
    if options.max_seq_len is None:  # a command's flag without a value
        raise ValueError("give " + parameter("max_seq_len") + ": the tokens of a bin, as many as the model's context")
    context = _checked_context(options)
    most = options.max_sequences_per_bin
    rooms = checked_rule(options.max_seq_len, options.align, options.extra_tokens)
    if rooms.longest < 1:
        raise ValueError(
            "no sequence fits "
            + parameter("max_seq_len")
            + f" {rooms.max_seq_len} with align {rooms.align} and "
            + parameter("extra_tokens")
            + f" {rooms.extra_tokens}: not one token of its own is left; raise "
            + parameter("max_seq_len")
        )
    return replace(
        options,
        max_seq_len=rooms.max_seq_len,
        align=rooms.align,
        extra_tokens=rooms.extra_tokens,
        max_sequences_per_bin=None if most is None else checked_integer("max_sequences_per_bin", most, 1),
        cost_cap_percent=None if context is None else context.cost_cap_percent,  # whatever a later default is
    )


def _checked_context(options: PlanOptions) -> ContextRule | None:
    """Returns the rule of a plan with `tokens_per_rank`, None for any other plan; a ValueError if options conflict."""
    if options.tokens_per_rank is None:
        if options.cost_cap_percent is not None:
            raise ValueError(
                parameter("cost_cap_percent")
                + " is for plans with "
                + parameter("tokens_per_rank")
                + ": give that too, or leave it out"
            )
        return None
    checked_integer("tokens_per_rank", options.tokens_per_rank, 1)
    if options.algorithm != "auto":
        raise ValueError(parameter("tokens_per_rank") + " has a packer of its own: leave algorithm out")
    if options.max_sequences_per_bin is not None:
        raise ValueError(
            parameter("max_sequences_per_bin") + " does not go with " + parameter("tokens_per_rank") + ": leave it out"
        )
    return options.context


def plan_and_columns(
    max_seq_len: int | None, length_column: str | None, plan: PlanOptions | None, columns: InputColumns | None
) -> tuple[PlanOptions, InputColumns]:
    """Returns the plan's options, checked, and the columns; a ValueError if one is given twice or not at all."""
    if (max_seq_len is None) == (plan is None):
        raise ValueError("give either " + parameter("max_seq_len") + " or plan=PlanOptions(max_seq_len=…)")
    if length_column is not None and columns is not None:
        raise ValueError(parameter("length_column") + " is given twice: write InputColumns(length=…)")
    options = PlanOptions(max_seq_len=max_seq_len) if max_seq_len is not None else plan
    assert options is not None
    return checked_options(options), columns or InputColumns(length=length_column)
