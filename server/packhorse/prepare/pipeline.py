"""`prepare`: raw data becomes a prepared folder.

Owns the arguments, what they must fulfil, and the way from finding files to a folder in its place. Leaves reading and
sorting to `_sort`.
"""

import glob
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from packhorse.dataset import (
    Keep,
    Manifest,
    OverLength,
    PreparedDataset,
    PrepareOptions,
    link_versions,
    open_prepared,
    refuse_holding,
    refuse_output,
    versions_of,
    write_seqpack_layout,
    written_whole,
)
from packhorse.formats.files import as_path
from packhorse.formats.object_store import is_url, without_secrets
from packhorse.jobs import AnyEngineKind, check_engine, open_chosen_engine, show_progress
from packhorse.packing import DEFAULT_TIME_LIMIT_SECONDS, PACKERS, checked_rule
from packhorse.prepare._grouping import Grouping, gather_groups, options_of_groups
from packhorse.prepare._growth import continued, refuse_growth, refuse_rewritten
from packhorse.prepare._sort import Sort
from packhorse.prepare._work import JobRecord, working
from packhorse.prepare.readers import Columns, Opened, changed, find_inputs, open_held
from packhorse.topology import checked_integer

Layout = Literal["packhorse", "seqpack"]
"""How the folder is laid out."""

OnBadRow = Literal["error", "skip"]
"""What is done with a row that cannot be planned."""

Source = str | os.PathLike[str]
"""A file, a folder, a pattern, or the URL of one in an object store, to read."""

_WORKER_ROWS = 250_000
_MOST_WORKERS = 16
_OURS = ".packhorse"
_MOST_NAMES = 8


def prepare(
    input: Source | Iterable[Source] | None = None,
    *,
    lengths: Any = None,
    length_column: str | None = None,
    id_column: str | None = None,
    group_column: str | None = None,
    group_size: int | None = None,
    groups: Any = None,
    max_seq_len: int,
    output: str | os.PathLike[str],
    algorithm: str = "auto",
    over_length: OverLength = "error",
    keep: Keep = "head",
    max_sequences_per_bin: int | None = None,
    align: int = 1,
    extra_tokens: int = 0,
    time_limit_seconds: float = DEFAULT_TIME_LIMIT_SECONDS,
    overwrite: bool = False,
    append: bool = False,
    resume: bool = False,
    engine: AnyEngineKind = "threads",
    workers: int | None = None,
    ray_address: str | None = None,
    format: Layout = "packhorse",
    on_bad_row: OnBadRow = "error",
    progress: bool = True,
) -> Manifest:
    """Plans a dataset and writes its prepared folder, whole or not at all.

    Reads the lengths twice, in batches: once to count them, once to sort every id by its length. Memory depends on
    max_seq_len and the number of files and row groups, not on the number of sequences. The folder is the same, byte by
    byte, for any engine and number of workers. Meanwhile as much disk again is taken by a hidden work folder
    beside it.

    Example:
        >>> manifest = prepare("corpus.idx", max_seq_len=8, output="datasets/packed")  # 5, 3, 3 and 5 tokens
        >>> manifest.n_bins, manifest.efficiency
        (2, 1.0)
        >>> prepare(lengths=[5, 3, 3, 5], max_seq_len=8, output="datasets/held", progress=False).n_bins
        2

    Args:
        input: what serves as tokens, or lengths, told apart by a look at it. Parquet or Arrow files, folders of them,
            glob patterns, or several of these, read in the order given; a folder that Hugging Face's `save_to_disk`
            wrote; one Megatron `X.idx`, flat `x.bin.boundaries` or folder of MDS shards, whose entries are the ids;
            NumPy files of lengths. `packhorse prepare --help` lists them. Each may lie in an object store, and be given
            as a URL that fsspec knows, such as s3://bucket/corpus/*.parquet.
        lengths: instead of `input`, what Python holds: a NumPy array of lengths or of records, a `datasets.Dataset`, or
            anything with `__arrow_c_stream__` (Polars, DuckDB, pandas, pyarrow), which is read once. 16 bytes a
            sequence are held in memory.
        length_column: the column of lengths in tokens, or of lists of tokens, whose lengths are then taken; None for
            the one that evidently holds tokens, as token sources choose it.
        id_column: the integer column of ids, each once in the dataset; None takes the row over all files of all
            inputs in order, counted from 0.
        group_column: the integer column that says which rows are a group: those with equal numbers, from 0 on, which
            must follow each other. A group's sequences always share a bin, in their order. One that does not fit a bin
            is refused, or with over_length "drop" left out as a whole; nothing cuts a group. 8 bytes a group are held
            in memory, and 24 a sequence where ids do not ascend.
        group_size: every so many rows are a group, counted from the first: 2 for pairs that stand one after the other.
        groups: one integer for each row, as in a group column: the path or URL of a .npy file of them, for token files
            that have no columns, or with `lengths` an array.
        max_seq_len: a bin's capacity in tokens, in [1, 2^31).
        output: the folder to write.
        algorithm: "auto" or a name of `packhorse.packing.PACKERS`.
        over_length: what is done with a sequence that is longer than max_seq_len or, with `align` and `extra_tokens`,
            does not fit it. "error" refuses it; "drop" leaves it out; "truncate" plans as many of its tokens as fit;
            "split" plans all of them in pieces, each as long as fits but for the last. The manifest's ledger says how
            many there were and how many tokens that cost, and over_length.npy which.
        keep: which end of a truncated sequence stays: "head", its first tokens, or "tail", its last.
        max_sequences_per_bin: the most sequences in a bin; None for no limit.
        align: a sequence's room in its bin is a multiple of so many tokens, as context and tensor parallelism need.
        extra_tokens: tokens kept free for each sequence beside its own, before rounding (BOS, EOS).
        time_limit_seconds: a safety net. A packer that improves its plan step by step ends after a fixed amount of
            work, so the same input gives the same plan; where the limit ends it before, the manifest says so by
            `plan_cut_off`, and the next run may plan otherwise.
        overwrite: whether a prepared dataset at `output` is replaced, in one step at the very end. Nothing else ever
            is: no file, no folder with other files in it, and none that holds an input or the working directory.
        append: whether the sequences of the input are added to the dataset at `output`. Its folder then holds a new
            version, with a digest of its own; the version before is kept in its subfolder `versions`. Give new input
            only, and the options that the dataset was prepared with. Ids by row continue its rows, so that the token
            source is all inputs in order. Where ids are the entries of one index (Megatron, flat files, MDS), give that
            index as it is now, with entries more than then. To groups only whole ones are added: one of which some
            sequences are there already is refused.
        resume: whether to go on with what an interrupted call finished, in the work folder. It is refused where input
            or options are others than then. Without, what is there is begun anew.
        engine: where the work is done: in "threads" of this process; in "processes" of this machine, which serve better
            where there are very many processors; or on "ray", a cluster whose machines share the file system of input
            and output.
        workers: threads or processes. None takes one for each processor and 250,000 rows, up to 16. A cluster has its
            own number.
        ray_address: of the cluster; None for the environment variable RAY_ADDRESS, or else a cluster of this machine
            for as long as the work takes.
        format: "packhorse", or "seqpack" for the layout that `seqpack.load_prepared` reads.
        on_bad_row: "error" refuses a row whose length or id is null, below 1 token or beyond int64; "skip" leaves it
            out, and the manifest names it. Ids that occur twice are refused in any case.
        progress: whether stderr shows how far it is: bars on a terminal, a line every few seconds elsewhere.

    Returns:
        The manifest (with format="seqpack" too, where the folder itself keeps seqpack's fields only).

    Raises:
        FileExistsError: `output` exists and `overwrite` is not set, or it is not what may be replaced.
        FileNotFoundError: nothing is at `input`.
        BlockingIOError: another process prepares the same output; the message says which.
        PermissionError: a store does not let us, or finds no credentials.
        OSError: the disk is full, and nothing is left behind; or an object store does not answer.
        ChildProcessError: workers died, for example for want of memory. What they finished stays for `resume`.
        ValueError: an argument, a file, a column, a length or an id is not as it must be; the message names it, with
            file, row, row group and column where there are.
        TypeError: `lengths` is no object that has any.
        ImportError: pyarrow, Ray, or fsspec's file system for a URL is needed and not installed.
    """
    options = checked_options(
        max_seq_len=max_seq_len,
        algorithm=algorithm,
        max_sequences_per_bin=max_sequences_per_bin,
        over_length=over_length,
        keep=keep,
        align=align,
        extra_tokens=extra_tokens,
    )
    job = checked_job(
        options,
        input=input,
        lengths=lengths,
        length_column=length_column,
        id_column=id_column,
        group_column=group_column,
        group_size=group_size,
        groups=groups,
        output=output,
        time_limit_seconds=time_limit_seconds,
        overwrite=overwrite,
        append=append,
        resume=resume,
        engine=engine,
        workers=workers,
        ray_address=ray_address,
        format=format,
        on_bad_row=on_bad_row,
        progress=progress,
    )
    return write_job(job, overwrite=overwrite, append=append, resume=resume, format=format)


def write_job(
    job: "Job", *, overwrite: bool = False, append: bool = False, resume: bool = False, format: Layout = "packhorse"
) -> Manifest:
    """Does what a job asks for; see `prepare`."""
    with (
        working(job.folder, job.record, resume=resume) as work,
        written_whole(
            job.folder,
            overwrite=overwrite or append,
            keeps_versions=append,
            partial=work.partial,
            meanwhile=work.runs,
        ) as partial,
        job.started(partial) as sort,
    ):
        if job.before is not None:
            if versions_of(job.folder)[0].manifest != job.before.manifest:
                raise changed(str(job.folder))
            link_versions(job.folder, partial)
        if format == "packhorse":
            manifest = sort.write(partial, job.source, work)
            if job.before is not None and not job.adds:
                refuse_rewritten(job.before, open_prepared(partial, check_pool=False))
            return manifest
        ours = partial / _OURS
        ours.mkdir()
        manifest = sort.write(ours, job.source, work)
        write_seqpack_layout(open_prepared(ours, check_pool=False), partial)
        shutil.rmtree(ours)
        return manifest


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the arguments of `prepare` ask for, checked, with its input found and nothing of it counted."""

    folder: Path
    opened: Opened
    source: str
    """What the manifest calls the inputs."""
    options: PrepareOptions
    before: PreparedDataset | None
    """The version that is appended to."""
    grouping: Grouping | None
    """Which sequences are a group."""
    adds: bool
    """Whether the input holds new sequences only; else it holds those of the version before, too."""
    record: JobRecord | None
    """By which interrupted work is recognised; None where it cannot be."""
    engine: AnyEngineKind
    workers: int
    ray_address: str | None
    time_limit_seconds: float
    progress: bool

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
    output: str | os.PathLike[str],
    input: Source | Iterable[Source] | None = None,
    lengths: Any = None,
    length_column: str | None = None,
    id_column: str | None = None,
    group_column: str | None = None,
    group_size: int | None = None,
    groups: Any = None,
    time_limit_seconds: float = DEFAULT_TIME_LIMIT_SECONDS,
    overwrite: bool = False,
    append: bool = False,
    resume: bool = False,
    engine: AnyEngineKind = "threads",
    workers: int | None = None,
    ray_address: str | None = None,
    format: Layout = "packhorse",
    on_bad_row: OnBadRow = "error",
    progress: bool = True,
) -> Job:
    """Checks the other arguments of `prepare`, which see, and finds the input; options are from `checked_options`."""
    if not isinstance(output, str | os.PathLike):
        raise ValueError(f"output must be the folder to write, got {output!r:.60}")
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
    num_rows = sum(span.num_rows for span in opened.spans)
    if before is not None:
        groups_by = grouping.said if grouping else None
        refuse_growth(before, opened, options, groups_by=groups_by, adds=adds)
        if adds:
            opened = continued(before, opened)
            source = _joined_names(before.manifest.source, source)
    if not num_rows:
        where = f"{len(opened.files):,} files" if len(opened.files) > 1 else source
        raise ValueError(f"--input holds no rows in {where}, so there is nothing to prepare")
    return Job(
        folder=folder,
        opened=opened,
        source=source,
        options=options,
        before=before,
        grouping=grouping,
        adds=adds,
        record=record,
        engine=engine,
        ray_address=ray_address,
        workers=workers or _default_workers(num_rows),
        time_limit_seconds=time_limit_seconds,
        progress=progress,
    )


def paths_of_inputs(input: Source | Iterable[Source]) -> list[str]:
    """Returns the inputs as they were named; a ValueError where that is no way to name one."""
    given = [input] if isinstance(input, str | os.PathLike) else list(input) if isinstance(input, Iterable) else [None]
    wanted = "--input must be a file, a folder, a pattern, a URL of one, or a list of these"
    paths = [as_path(one) for one in given if isinstance(one, str | os.PathLike) and str(one)]
    if len(paths) < len(given):
        raise ValueError(f"{wanted}, got {input!r:.60}")
    return paths


def name_of_inputs(sources: Sequence[str]) -> str:
    """What the manifest calls the inputs: last components, and of a pattern its folder too."""
    names = []
    for source in sources[:_MOST_NAMES]:
        path = Path(without_secrets(source).partition("://")[2] if is_url(source) else os.path.abspath(source))
        names.append("/".join(path.parts[-2:]).removeprefix("//") if glob.has_magic(path.name) else path.name)
    if len(sources) > _MOST_NAMES:
        names.append(f"{len(sources) - _MOST_NAMES:,} more")
    return os.fsencode(", ".join(names)).decode(errors="replace")


def _joined_names(before: str, more: str) -> str:
    """What the manifest calls the inputs of a dataset that grew."""
    names = f"{before}, {more}".split(", ")
    return ", ".join([*names[:_MOST_NAMES], *["…"] * (len(names) > _MOST_NAMES)])


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


def _default_workers(num_rows: int) -> int:
    return max(1, min(os.cpu_count() or 1, num_rows // _WORKER_ROWS, _MOST_WORKERS))
