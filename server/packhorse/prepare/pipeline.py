"""`prepare`: raw data becomes a prepared folder.

Owns the way from a job to a folder in its place. Leaves what the arguments must fulfil to `job`, reading and sorting to
`passes.sort`.
"""

import os
import shutil
from collections.abc import Iterable
from typing import Any

from packhorse.dataset import (
    Manifest,
    PlanOptions,
    link_versions,
    open_prepared,
    versions_of,
    write_seqpack_layout,
    written_whole,
)
from packhorse.jobs import Execution
from packhorse.prepare.append import refuse_rewritten
from packhorse.prepare.groups.grouping import Grouping
from packhorse.prepare.input import InputColumns, changed
from packhorse.prepare.input.records import Source
from packhorse.prepare.job import Job, Layout, checked_job, plan_and_columns
from packhorse.prepare.work import working

_OURS = ".packhorse"


def prepare(
    input: Source | Iterable[Source] | None = None,
    *,
    lengths: Any = None,
    output: str | os.PathLike[str],
    max_seq_len: int | None = None,
    length_column: str | None = None,
    plan: PlanOptions | None = None,
    columns: InputColumns | None = None,
    grouping: Grouping | None = None,
    execution: Execution | None = None,
    overwrite: bool = False,
    append: bool = False,
    format: Layout = "packhorse",
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
        >>> prepare(lengths=[5, 3, 3, 5], output="datasets/held", plan=PlanOptions(max_seq_len=8, align=2)).n_bins
        3

    Args:
        input: what serves as tokens, or lengths, told apart by a look at it. Parquet or Arrow files, folders of them,
            glob patterns, or several of these, read in the order given; a folder that Hugging Face's `save_to_disk`
            wrote; one Megatron `X.idx`, flat `x.bin.boundaries` or folder of MDS shards, whose entries are the ids;
            NumPy files of lengths. `packhorse prepare --help` lists them. Each may lie in an object store, and be given
            as a URL that fsspec knows, such as s3://bucket/corpus/*.parquet.
        lengths: instead of `input`, what Python holds: a NumPy array of lengths or of records, a `datasets.Dataset`, or
            anything with `__arrow_c_stream__` (Polars, DuckDB, pandas, pyarrow), which is read once. 16 bytes a
            sequence are held in memory.
        output: the folder to write.
        max_seq_len: a bin's capacity in tokens, in [1, 2^31); instead of `plan`.
        length_column: the column of lengths or tokens; instead of `columns`.
        plan: what shapes the plan: max_seq_len, packer, over-length policy, alignment.
        columns: which columns hold lengths and ids, and what becomes of bad rows.
        grouping: which rows are a group, whose sequences always share a bin; None for none.
        execution: engine, workers, progress, and whether an interrupted call is gone on with.
        overwrite: whether a prepared dataset at `output` is replaced, in one step at the very end. Nothing else ever
            is: no file, no folder with other files in it, and none that holds an input or the working directory.
        append: whether the sequences of the input are added to the dataset at `output`. Its folder then holds a new
            version, with a digest of its own; the version before is kept in its subfolder `versions`. Give new input
            only, and the options that the dataset was prepared with. Ids by row continue its rows, so that the token
            source is all inputs in order. Where ids are the entries of one index (Megatron, flat files, MDS), give that
            index as it is now, with entries more than then. To groups only whole ones are added: one of which some
            sequences are there already, or were left out as too long, is refused.
        format: "packhorse", or "seqpack" for the layout that `seqpack.load_prepared` reads.

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
    options, columns = plan_and_columns(max_seq_len, length_column, plan, columns)
    job = checked_job(
        input,
        lengths,
        output,
        plan=options,
        columns=columns,
        grouping=grouping,
        execution=execution or Execution(),
        overwrite=overwrite,
        append=append,
        format=format,
    )
    return write_job(job)


def write_job(job: Job) -> Manifest:
    """Does what a job asks for; see `prepare`."""
    with (
        working(job.folder, job.record, resume=job.execution.resume) as work,
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
