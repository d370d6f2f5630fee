"""A job: what the arguments of `prepare` ask for, checked, and its input found.

Owns what the arguments must fulfil, alone and together. Leaves what names an
input to `input.records`, and doing the job to `pipeline`.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from packhorse.dataset import (
    Keep,
    OverLength,
    PreparedDataset,
    PrepareOptions,
    open_prepared,
    refuse_holding,
    refuse_output,
)
from packhorse.formats.atomic import refuse_url
from packhorse.formats.object_store import is_url
from packhorse.jobs import AnyEngineKind, check_engine, open_chosen_engine, show_progress
from packhorse.packing import PACKERS, checked_rule
from packhorse.prepare.append import continued, refuse_growth
from packhorse.prepare.groups.grouping import Grouping
from packhorse.prepare.groups.tables import gather_groups, options_of_groups
from packhorse.prepare.input import Columns, Opened, find_inputs, open_held
from packhorse.prepare.input.records import Source, joined_names, name_of_inputs, paths_of_inputs
from packhorse.prepare.passes.sort import Sort
from packhorse.prepare.work import JobRecord
from packhorse.topology import checked_integer

Layout = Literal["packhorse", "seqpack"]
"""How the folder is laid out."""

OnBadRow = Literal["error", "skip"]
"""What is done with a row that cannot be planned."""

_WORKER_ROWS = 250_000
_MOST_WORKERS = 16


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the arguments of `prepare` ask for, checked, with its input found and nothing of it counted."""

    folder: Path
    """To write."""
    opened: Opened
    source: str
    """What the manifest calls the inputs."""
    options: PrepareOptions
    time_limit_seconds: float
    progress: bool
    overwrite: bool = False
    before: PreparedDataset | None = None
    """The version that is appended to."""
    grouping: Grouping | None = None
    """Which sequences are a group."""
    adds: bool = True
    """Whether the input holds new sequences only; else it holds those of the version before, too."""
    record: JobRecord | None = None
    """By which interrupted work is recognised; None where it cannot be."""
    resume: bool = False
    engine: AnyEngineKind = "threads"
    workers: int = 1
    ray_address: str | None = None
    format: Layout = "packhorse"

    @contextmanager
    def started(self, folder: Path) -> Iterator[Sort]:
        """Gives the passes, with what runs them and progress to show; both end afterwards.

        Args:
            folder: where tables of groups are written.
        """
        opened = open_chosen_engine(self.engine, workers=self.workers, ray_address=self.ray_address)
        with opened as engine, show_progress(quiet=not self.progress) as shown:
            grouped = None
            if self.grouping is not None:
                before = self.before if self.adds else None
                grouped = gather_groups(self.opened, self.grouping, self.options, folder, shown, before)
            yield Sort(
                engine=engine,
                progress=shown,
                opened=grouped.opened if grouped else self.opened,
                options=options_of_groups(self.options) if grouped else self.options,
                groups=grouped,
                time_limit_seconds=self.time_limit_seconds,
                before=self.before if self.adds else None,
                version=self.before.manifest.version + 1 if self.before else 1,
            )


def checked_job(
    options: PrepareOptions,
    *,
    input: Source | Iterable[Source] | None,
    lengths: Any,
    length_column: str | None,
    id_column: str | None,
    group_column: str | None,
    group_size: int | None,
    groups: Any,
    output: str | os.PathLike[str],
    time_limit_seconds: float,
    overwrite: bool,
    append: bool,
    resume: bool,
    engine: AnyEngineKind,
    workers: int | None,
    ray_address: str | None,
    format: Layout,
    on_bad_row: OnBadRow,
    progress: bool,
) -> Job:
    """Checks the other arguments of `prepare`, which see, and finds the input; options are from `checked_options`."""
    if not isinstance(output, str | os.PathLike):
        raise ValueError(f"output must be the folder to write, got {output!r:.60}")
    refuse_url(output, "--output")
    for name, column in (("length_column", length_column), ("id_column", id_column)):
        if not isinstance(column, str | None):
            raise ValueError(f"{name} must be a column's name, got {column!r:.60}")
    folder = Path(output)
    if format not in get_args(Layout):
        raise ValueError(f"format must be one of {', '.join(get_args(Layout))}, got {format!r}")
    if format == "seqpack" and (options.over_length == "split" or options.keep == "tail"):
        raise ValueError(
            "seqpack's layout cannot say where a piece begins: use --format packhorse, or neither --over-length "
            "split nor --keep tail"
        )
    if on_bad_row not in get_args(OnBadRow):
        raise ValueError(f"on_bad_row must be one of {', '.join(get_args(OnBadRow))}, got {on_bad_row!r}")
    grouping = Grouping.of(group_column, group_size, groups)
    grouping_files = grouping.files if grouping else []
    if grouping is not None:
        _refuse_with_groups(options, seqpack=format == "seqpack", skips=on_bad_row == "skip")
    if append and (overwrite or format == "seqpack"):
        raise ValueError(
            "append goes neither with --overwrite, which keeps no earlier version, nor with seqpack's layout"
        )
    check_engine(engine, workers=workers, ray_address=ray_address, kinds=get_args(AnyEngineKind))
    if workers is not None:
        checked_integer("workers", workers, 1)
    if (input is None) == (lengths is None):
        raise ValueError("give either input, for files, or lengths, for what Python holds")
    if groups is not None and lengths is None and not grouping_files:
        raise ValueError(
            "groups that Python holds are for lengths that it holds: files have a --group-column, a --group-size, or a "
            "file of --groups"
        )
    if resume and lengths is not None:
        raise ValueError("resume is for files: nobody can tell whether lengths that Python holds are the same")
    if not append:
        refuse_output(folder, overwrite=overwrite)  # said before hours of reading, and again by written_whole
    elif not folder.exists():
        raise FileNotFoundError(f"{folder} is not there to append to; leave out --append to begin a dataset")
    before = open_prepared(folder) if append else None
    columns = Columns(length=length_column, id=id_column, group=group_column)
    skips, adds, record = on_bad_row == "skip", True, None
    if input is None:
        opened = open_held(lengths, columns, skips_bad_rows=skips)
        source = opened.kind
    else:
        sources = paths_of_inputs(input)
        if engine == "ray":
            sources = [
                source if is_url(source) else os.path.abspath(source) for source in sources
            ]  # its processes have another working directory
        found = find_inputs(sources)
        named = [*sources, *(file.path for file in grouping_files)]
        refuse_holding(folder, [*(Path(path) for path in named if not is_url(path)), *found.files_read()])
        opened = found.reader.open(found.paths, columns, skips_bad_rows=skips)
        source = name_of_inputs(sources)
        adds = not found.reader.is_alone
        digest = before.manifest.digest if before else None
        record = JobRecord.of(
            opened, options, on_bad_row=on_bad_row, appended_to=digest, group_size=group_size, groups=grouping_files
        )
    if format == "seqpack" and opened.keys is not None:
        raise ValueError(
            f"seqpack's layout has no keys, and {opened.keys.name!r} holds some: use --format packhorse, or leave out "
            "--id-column"
        )
    num_rows = sum(span.num_rows for span in opened.spans)
    if before is not None:
        groups_by = grouping.said if grouping else None
        refuse_growth(before, opened, options, groups_by=groups_by, adds=adds)
        if adds:
            opened = continued(before, opened)
            source = joined_names(before.manifest.source, source)
    if not num_rows:
        where = f"{len(opened.files):,} files" if len(opened.files) > 1 else source
        raise ValueError(f"--input holds no rows in {where}, so there is nothing to prepare")
    return Job(
        folder=folder,
        opened=opened,
        source=source,
        options=options,
        time_limit_seconds=time_limit_seconds,
        progress=progress,
        overwrite=overwrite,
        before=before,
        grouping=grouping,
        adds=adds,
        record=record,
        resume=resume,
        engine=engine,
        workers=workers or default_workers(num_rows),
        ray_address=ray_address,
        format=format,
    )


def _refuse_with_groups(options: PrepareOptions, *, seqpack: bool, skips: bool) -> None:
    """Refuses what makes no sense where sequences are planned in groups; a ValueError."""
    if options.over_length in ("truncate", "split"):
        raise ValueError(
            f"over_length {options.over_length!r} would cut sequences out of their group: choose --over-length error, "
            "or drop, which leaves out whole groups"
        )
    if options.max_sequences_per_bin is not None:
        raise ValueError("max_sequences_per_bin cannot be kept where bins are made of groups: leave it out")
    if seqpack:
        raise ValueError("seqpack's layout cannot say which sequences are a group: use --format packhorse")
    if skips:
        raise ValueError(
            "on_bad_row 'skip' would leave a group without one of its sequences: repair the rows, or leave out their "
            "groups"
        )


def default_workers(num_rows: int) -> int:
    """Returns how many threads or processes are worth their start."""
    return max(1, min(os.cpu_count() or 1, num_rows // _WORKER_ROWS, _MOST_WORKERS))


def checked_options(
    *,
    max_seq_len: int,
    algorithm: str = "auto",
    max_sequences_per_bin: int | None = None,
    over_length: OverLength = "error",
    keep: Keep = "head",
    align: int = 1,
    extra_tokens: int = 0,
) -> PrepareOptions:
    """Checks those arguments of `prepare` that shape the plan, which see."""
    if over_length not in get_args(OverLength):
        raise ValueError(f"over_length must be one of {', '.join(get_args(OverLength))}, got {over_length!r}")
    if keep not in get_args(Keep):
        raise ValueError(f"keep must be one of {', '.join(get_args(Keep))}, got {keep!r}")
    if keep == "tail" and over_length != "truncate":
        raise ValueError(f"keep 'tail' is for over_length 'truncate'; with {over_length!r} nothing is cut off")
    if algorithm != "auto" and algorithm not in PACKERS:
        raise ValueError(f"unknown algorithm {algorithm!r}; there are: auto, {', '.join(sorted(PACKERS))}")
    if max_sequences_per_bin is not None:
        max_sequences_per_bin = checked_integer("max_sequences_per_bin", max_sequences_per_bin, 1)
    rooms = checked_rule(max_seq_len, align, extra_tokens)
    if rooms.longest < 1:
        raise ValueError(
            f"no sequence fits max_seq_len {max_seq_len} with align {align} and extra_tokens {extra_tokens}: not one "
            "token of its own is left; raise --max-seq-len"
        )
    return PrepareOptions(
        max_seq_len=rooms.max_seq_len,
        algorithm=algorithm,
        max_sequences_per_bin=max_sequences_per_bin,
        over_length=over_length,
        keep=keep,
        align=rooms.align,
        extra_tokens=rooms.extra_tokens,
    )
