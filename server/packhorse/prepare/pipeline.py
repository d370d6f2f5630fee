"""`prepare` turns raw data into a prepared folder; `prepare_with_tokens` puts the tokens into it too.

Owns these entry points, the steps from a checked job to a folder under its final name, and the warnings about its
alignment. Leaves checking arguments to `job`, the passes over the data to `_sort`, what a folder would cost to
`dry_run`, and cutting a corpus into several datasets to `shard`.
"""

import os
import shutil
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from packhorse.dataset import (
    Manifest,
    PlanOptions,
    link_tokens,
    link_versions,
    open_prepared,
    versions_of,
    write_seqpack_layout,
    written_whole,
)
from packhorse.jobs import Execution
from packhorse.parameters import parameter
from packhorse.prepare._work import working
from packhorse.prepare.append.rewritten import refuse_rewritten
from packhorse.prepare.groups.grouping import Grouping
from packhorse.prepare.input import InputColumns, Source, changed
from packhorse.prepare.job import Job, Layout, checked_job
from packhorse.prepare.options import plan_and_columns

_OURS = ".packhorse"
"""The subfolder in which Packhorse's own layout is written before it is converted to seqpack's."""
_LARGE_ALIGN = 16
"""The smallest `align` that is worth a warning, the multiple that FP8 needs."""
_MUCH_PADDING = 0.02
"""The share of padding, in the sequences' own tokens, from which on `prepare` warns."""


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
    """Plans a dataset and writes its prepared folder. After a failure there is no partial folder.

    Reads the lengths twice, in batches: once to count them, once to sort every id by its length. Memory depends on
    max_seq_len and the number of files and row groups, not on the number of sequences. The folder is the same, byte by
    byte, for any engine and number of workers. While it is written, a hidden work folder beside it takes as much disk
    again.

    Example:
        >>> manifest = prepare("corpus.idx", max_seq_len=8, output="datasets/packed")  # 5, 3, 3 and 5 tokens
        >>> manifest.num_bins, manifest.efficiency
        (2, 1.0)
        >>> prepare(lengths=[5, 3, 3, 5], output="datasets/held", plan=PlanOptions(max_seq_len=8, align=2)).num_bins
        3

    Args:
        input: tokens or lengths; the kind is recognised by names and first bytes. Parquet or Arrow files, folders of
            them, glob patterns, or a list of these, read in order; a folder written by Hugging Face's `save_to_disk`;
            one Megatron `X.idx`, flat `x.bin.boundaries` or folder of MDS shards, whose entries are the ids; NumPy
            files of lengths. `packhorse prepare --help` lists them. Each may be a URL that fsspec knows, such as
            s3://bucket/corpus/*.parquet.
        lengths: instead of `input`, an object: a NumPy array of lengths or of records, a `datasets.Dataset`, or
            anything with `__arrow_c_stream__` (Polars, DuckDB, pandas, pyarrow), which is read once. It takes 16 bytes
            of memory a sequence.
        output: the folder to write.
        max_seq_len: a bin's capacity in tokens, in [1, 2^31); instead of `plan`.
        length_column: the column of lengths or tokens; instead of `columns`.
        plan: what shapes the plan: max_seq_len, packer, over-length policy, alignment.
        columns: the columns of lengths, ids and resources, and what happens to bad rows.
        grouping: which rows are a group; the sequences of a group always share a bin. By default there are no groups.
        execution: engine, workers, progress, and whether to resume an interrupted call.
        overwrite: whether to replace a prepared dataset at `output`, in one step at the very end. Anything else is
            refused: a file, a folder with other files, or one that holds an input or the working directory.
        append: whether to add the sequences of the input to the dataset at `output`. Its folder then holds a new
            version with another digest; the previous version is kept in the subfolder `versions`. Give only new input,
            and the options that the dataset was prepared with. Row numbers continue, so the token source is all inputs
            in order. If ids are the entries of an index (Megatron, flat files, MDS), give the whole index, which now
            has more entries. Groups must be new: further sequences of a group that is already there, or was too long,
            are refused.
        format: "packhorse", or "seqpack" for the layout that `seqpack.load_prepared` reads.

    Returns:
        The manifest, complete also with format="seqpack", whose folder has only seqpack's fields.

    Raises:
        FileExistsError: `output` exists and may not be replaced.
        FileNotFoundError: nothing is at `input`.
        BlockingIOError: another process prepares the same output; the message says which.
        PermissionError: a store refuses access, or no credentials are found.
        OSError: the disk is full (partial files are removed), or an object store does not answer.
        ChildProcessError: workers died, for example because memory ran out. Their finished work stays for `resume`.
        ValueError: an argument, file, column, length or id is wrong; the message names it, with file, row, row group
            and column.
        TypeError: `lengths` holds no lengths.
        ImportError: pyarrow, Ray, or fsspec's file system for a URL is not installed.
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
    manifest = write_job(job)
    _warn_of_alignment(manifest)
    return manifest


def prepare_with_tokens(
    input: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str],
    plan: PlanOptions,
    columns: InputColumns | None = None,
    grouping: Grouping | None = None,
    execution: Execution | None = None,
    overwrite: bool = False,
    append: bool = False,
) -> Manifest:
    """Plans a dataset as `prepare` does, and puts its tokens into the same folder, so that it can be moved as a whole.

    Example:
        >>> import tempfile
        >>> tokens = Path(tempfile.mkdtemp())
        >>> _ = [shutil.copy(f"corpus.{name}", tokens) for name in ("bin", "idx")]
        >>> plan = PlanOptions(max_seq_len=8)
        >>> manifest = prepare_with_tokens(tokens / "corpus.idx", output="datasets/own", plan=plan)
        >>> manifest.inputs.tokens.path, sorted(path.name for path in Path("datasets/own/tokens").iterdir())
        ('tokens/corpus.idx', ['corpus.bin', 'corpus.idx'])

    Args:
        input: one Megatron `X.idx`, in a folder that has nothing but its tokens, loss mask, keys and tokenizer. All of
            these files go into the subfolder `tokens` of the dataset; they are linked if the file system can.
        output: as in `prepare`.
        plan: as in `prepare`.
        columns: as in `prepare`.
        grouping: as in `prepare`.
        execution: as in `prepare`.
        overwrite: as in `prepare`.
        append: as in `prepare`; `input` is then the whole index, which has more entries than before.

    Raises:
        ValueError: the input is not a single Megatron index on disk. Other errors are those of `prepare`.
    """
    plan, columns = plan_and_columns(None, None, plan, columns)
    job = checked_job(
        input,
        None,
        output,
        plan=plan,
        columns=columns,
        grouping=grouping,
        execution=execution or Execution(),
        overwrite=overwrite,
        append=append,
        format="packhorse",
    )
    folder = Path(input).parent
    folders = {Path(file.path).parent.resolve() for file in job.opened.files}
    if job.opened.kind != "Megatron" or folders != {folder.resolve()}:
        raise ValueError(
            f"{input} is no single Megatron index in a folder of its own, so no tokens can go into the dataset: leave "
            "them where they are, with `prepare`"
        )
    manifest = write_job(replace(job, tokens_folder=folder))
    _warn_of_alignment(manifest)
    return manifest


def _warn_of_alignment(manifest: Manifest) -> None:
    """Warns if `align` does not suit context parallelism, or pads much.

    The warnings are about the line that calls `prepare` or `prepare_with_tokens`.
    """
    for warning in (_unsuited_to_ranks(manifest), _much_padding(manifest)):
        if warning:
            warnings.warn(warning, stacklevel=3)


def _unsuited_to_ranks(manifest: Manifest) -> str:
    """Returns a warning if ranks that share bins cannot divide every sequence; empty if they can."""
    options = manifest.options
    ranks = options.context.max_context_parallel if options.context else 1
    if ranks == 1 or options.align % (2 * ranks) == 0:
        return ""
    return (
        parameter("align", options.align)
        + f" is not a multiple of {2 * ranks}, so zigzag, the default layout of context_batch, cannot "
        f"divide every sequence over {ranks} ranks: prepare with "
        + parameter("align", 2 * ranks)
        + ", or train with another layout"
    )


def _much_padding(manifest: Manifest) -> str:
    """Returns a warning if a large `align` adds much padding; empty if not."""
    options = manifest.options
    unaligned_tokens = manifest.own_tokens + options.extra_tokens * manifest.num_sequences
    padding = manifest.total_tokens - unaligned_tokens  # total_tokens is the sum of rooms
    if options.align < _LARGE_ALIGN or padding <= _MUCH_PADDING * manifest.own_tokens:
        return ""
    return (
        parameter("align", options.align)
        + f" adds {padding / manifest.own_tokens:.1%} of padding: each sequence is filled up to a "
        "multiple. Context parallelism needs that of each sequence, in multiples of 2·CP and of "
        "CP·TP. FP8 needs it of a batch's total only: if that is what it is for, leave align out, "
        f"and let the trainer's batches have total_multiple_of={options.align}"
    )


def write_job(job: Job) -> Manifest:
    """Carries out a job: runs the passes in a work folder, and gives the folder its name at the end."""
    with (
        working(job.folder, job.record, resume=job.execution.resume) as work,
        written_whole(
            job.folder,
            overwrite=job.overwrite or job.before is not None,
            keeps_versions=job.before is not None,
            partial=work.partial,
            meanwhile=work.spills,  # counted in the message of a full disk
        ) as partial,
        job.started(partial) as passes,
    ):
        if job.before is not None:
            current, *_ = versions_of(job.folder)
            if current.manifest != job.before.manifest:  # another call replaced it before this one had the lock
                raise changed(str(job.folder))
            link_versions(job.folder, partial)
        if job.tokens_folder is not None:
            link_tokens(job.tokens_folder, partial)
        if job.format == "packhorse":
            manifest = passes.write(partial, job.source, work)
            if job.before is not None and not job.adds:  # the input holds old and new rows together
                refuse_rewritten(job.before, open_prepared(partial, check_pool=False))
            return manifest
        ours = partial / _OURS
        ours.mkdir()
        manifest = passes.write(ours, job.source, work)
        write_seqpack_layout(open_prepared(ours, check_pool=False), partial)
        shutil.rmtree(ours)
        return manifest
