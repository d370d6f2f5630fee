"""`prepare`: raw data becomes a prepared folder.

Owns the way from a job to a folder in its place. Leaves what the arguments must fulfil to `job`, reading and sorting to
`passes.sort`.
"""

import os
import shutil
from collections.abc import Iterable
from typing import Any

from packhorse.dataset import (
    Keep,
    Manifest,
    OverLength,
    link_versions,
    open_prepared,
    versions_of,
    write_seqpack_layout,
    written_whole,
)
from packhorse.jobs import AnyEngineKind
from packhorse.packing import DEFAULT_TIME_LIMIT_SECONDS
from packhorse.prepare.append import refuse_rewritten
from packhorse.prepare.input import changed
from packhorse.prepare.input.records import Source
from packhorse.prepare.job import Job, Layout, OnBadRow, checked_job, checked_options
from packhorse.prepare.work import working

_OURS = ".packhorse"


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
        id_column: the column that names sequences, each value once in the dataset. Integers are ids. Text, UUIDs and
            decimals without a fraction are keys: ids are rows then, and a table leads from key to id and back. None
            takes the row over all files of all inputs in order, counted from 0. Keys of a Megatron index stand beside
            it, in `X.keys.arrow`.
        group_column: the integer column that says which rows are a group: those with equal numbers, from 0 on, which
            must follow each other. A group's sequences always share a bin, in their order. One that does not fit a bin
            is refused, or with over_length "drop" left out as a whole; nothing cuts a group. 8 bytes a group are held
            in memory, and 17 a sequence where ids do not ascend.
        group_size: this many consecutive rows are a group, counted from the first: 2 for pairs that follow each
            other.
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
        align: a sequence's room in its bin is a multiple of this many tokens, as context and tensor parallelism need.
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
            sequences are there already, or were left out as too long, is refused.
        resume: whether to go on with what an interrupted call finished, in the work folder. It is refused where input
            or options are others than then. Without it, prepare starts over.
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
    return write_job(job)


def write_job(job: Job) -> Manifest:
    """Does what a job asks for; see `prepare`."""
    with (
        working(job.folder, job.record, resume=job.resume) as work,
        written_whole(
            job.folder,
            overwrite=job.overwrite or job.before is not None,
            keeps_versions=job.before is not None,
            partial=work.partial,
            meanwhile=work.runs,
        ) as partial,
        job.started(partial) as sort,
    ):
        if job.before is not None:
            if versions_of(job.folder)[0].manifest != job.before.manifest:
                raise changed(str(job.folder))
            link_versions(job.folder, partial)
        if job.format == "packhorse":
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
