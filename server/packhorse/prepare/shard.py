"""Cutting a corpus into shards, each with a plan of its own, and a mixture that serves them as one.

Owns the order of work, and writing the mixture's file. Leaves which row goes into which shard to `_cuts`, reading rows
to `input`, and preparing each shard's folder to `pipeline`.
"""

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import (
    MIXTURE_SUFFIX,
    KeyRecord,
    Keys,
    Manifest,
    PlanOptions,
    StageEntry,
    open_prepared,
    refuse_output,
    render_stage,
)
from packhorse.jobs import Execution, Progress, open_engine, show_progress
from packhorse.parameters import parameter
from packhorse.prepare._cuts import by_size, by_value
from packhorse.prepare._work import record_of, working
from packhorse.prepare.input import Found, InputColumns, KeyColumn, Opened, find_inputs, open_held, paths_of_inputs
from packhorse.prepare.job import Job, default_workers
from packhorse.prepare.options import plan_and_columns
from packhorse.prepare.pipeline import write_job
from packhorse.prepare.records.keys import gather_keys
from packhorse.prepare.records.names import name_of_inputs
from packhorse.storage import Records, hold_lock, refuse_url, replace_bytes

_MIXTURE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
"""What may be the name of a mixture."""


def shard(
    input: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    name: str,
    data_root: str | os.PathLike[str],
    max_seq_len: int | None = None,
    length_column: str | None = None,
    by: str | None = None,
    sequences: int | None = None,
    plan: PlanOptions | None = None,
    columns: InputColumns | None = None,
    execution: Execution | None = None,
    overwrite: bool = False,
) -> dict[str, Manifest]:
    """Prepares a corpus in shards below a data root, and writes `NAME.mixture.toml`, which serves them as one.

    The mixture weighs shards by their numbers of bins, so that an epoch of it has each sequence once; edit the weights,
    or append a stage. Shards have the ids of the whole corpus, so they all use its token source. Memory holds 40 bytes
    for each sequence.

    Example:
        >>> manifests = shard("corpus.idx", name="cut", data_root="shards", sequences=2, max_seq_len=8)
        >>> {name: manifest.num_sequences for name, manifest in manifests.items()}
        {'cut-0000': 2, 'cut-0001': 2}

    Args:
        input: as `prepare` takes it.
        name: name of the mixture; shards are `NAME-VALUE`, or `NAME-0000` and so on.
        data_root: folder that a server serves; created if missing.
        max_seq_len: a bin's capacity in tokens; instead of `plan`.
        length_column: the column of lengths or tokens; instead of `columns`.
        by: a column of strings or integers, of Parquet or Arrow files: one shard for each value.
        sequences: instead of `by`, the number of sequences in each shard, in order; the last has the rest.
        plan: what shapes each shard's plan, as `prepare` takes it.
        columns: which columns hold lengths and ids; a bad row is an error here.
        execution: workers are processes, each of which prepares one shard at a time; the result is the same for any
            number. By default there is one for each processor and each 250,000 sequences, whichever are fewer, up to
            16; one means this process. With `resume`, shards that an interrupted call finished are kept, and only the
            others are prepared.
        overwrite: whether to replace shards and a mixture of these names.

    Returns:
        Shard → manifest, in the order of the mixture's components.

    Raises:
        FileExistsError: the mixture or a shard exists and `overwrite` is not set; or with `resume`, a shard exists that
            the interrupted call did not begin.
        ChildProcessError: workers died, for example because memory ran out.
        BlockingIOError: another process cuts shards of this name; the message says which.
        ValueError: an argument, a value of the column or an input is invalid; or as for `prepare`.
    """
    options, columns = plan_and_columns(max_seq_len, length_column, plan, columns)
    execution = execution or Execution()
    _check(name, data_root, by, sequences, columns, execution)
    root = Path(data_root)
    mixture = root / f"{name}{MIXTURE_SUFFIX}"
    if mixture.exists() and not overwrite:
        raise FileExistsError(
            f"{mixture} exists already; choose another name, or replace it by " + parameter("overwrite", True)
        )
    sources = paths_of_inputs(input)
    found = find_inputs(sources)
    opened = found.open(columns)
    shards = _shards_of(root / name, found, opened, by, sequences)
    there = [each.folder for each in shards if each.folder.exists()]
    if there and not (overwrite or execution.resume):
        ways_out = parameter("resume", True) + ", or replace them by " + parameter("overwrite", True)
        raise FileExistsError(f"{there[0]} exists already; continue interrupted shards by " + ways_out)
    record = record_of(opened, options, by=by, sequences=sequences)
    workers = min(execution.workers or default_workers(opened.num_rows), len(shards))
    root.mkdir(parents=True, exist_ok=True)
    manifests = {}
    with (
        working(root / name, record, resume=execution.resume) as work,
        open_engine(workers) as engine,
        show_progress(quiet=not execution.progress or workers == 1) as shown,
        shown.task("preparing shards", len(shards), "shards") as advance,
    ):
        cutting = _Cutting(
            kind=opened.kind,
            columns=opened.columns,
            source=name_of_inputs(sources),
            options=options,
            execution=replace(execution, engine=None, workers=1, progress=execution.progress and workers == 1),
            overwrite=overwrite,
            digests=work.records("shards", save=str, load=str),
            shard_names=work.shard_names,
            keys=_whole_keys(work.path / "keys", opened, shown),
        )
        for each, manifest in zip(shards, engine.map(cutting.write, shards), strict=True):
            manifests[each.folder.name] = manifest
            advance(1)
        stage = StageEntry(weights={shard_name: each.num_bins for shard_name, each in manifests.items()})
        with hold_lock(root):
            replace_bytes(mixture, f"# {len(manifests)} shards, weighed by their bins\n{render_stage(stage)}".encode())
    return manifests


def _check(
    name: str,
    data_root: str | os.PathLike[str],
    by: str | None,
    sequences: int | None,
    columns: InputColumns,
    execution: Execution,
) -> None:
    """Refuses arguments of `shard` that are out of range or do not go together."""
    if (by is None) == (sequences is None):
        raise ValueError(
            "give either "
            + parameter("by", "COLUMN")
            + ", for a shard for each value of a column, or "
            + parameter("sequences", "N")
            + ", for shards of a size"
        )
    if not _MIXTURE_NAME.fullmatch(name):
        raise ValueError(
            parameter("name") + f" must be letters, digits and ._-, as in a file's name, got {name!r:.100}"
        )
    if columns.on_bad_row != "error":
        raise ValueError(
            parameter("on_bad_row", "skip")
            + " has no effect on shards: repair the rows, or prepare each part by itself"
        )
    execution.refuse("shards, which are prepared in processes of this machine", engine="processes")
    refuse_url(data_root, "data_root")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Shard:
    """A part of the corpus that becomes a dataset."""

    number: int
    """The shard's number, in the order of the mixture's components."""
    folder: Path
    """The folder to write."""
    rows: NDArray[np.void]
    """(length, id) of its sequences, in the order of the corpus: [n]."""


class _KeyTable(NamedTuple):
    """The table of all the corpus's keys, on disk."""

    folder: Path
    """The folder with the table's files."""
    record: KeyRecord
    """What a manifest says of the table."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Cutting:
    """What all shards have in common, and `write`, the task of one shard. It is pickled to other processes."""

    kind: str
    """Kind of the corpus, such as "Parquet"."""
    columns: InputColumns
    """Columns of the corpus."""
    source: str
    """Names of the corpus's inputs, for the manifests."""
    options: PlanOptions
    """Options of each shard's plan."""
    execution: Execution
    """Execution of each shard's `prepare`: one thread of this process."""
    overwrite: bool
    """Whether datasets with the shards' names may be replaced."""
    digests: Records[str]
    """Number of each shard that was begun → its digest; "" until it is finished."""
    shard_names: Records[str]
    """Number of each shard that was begun → its name."""
    keys: _KeyTable | None
    """The table of all the corpus's keys; None if it has none."""

    def write(self, shard: _Shard) -> Manifest:
        """Prepares a shard and returns its manifest.

        A shard that an interrupted call finished is not prepared again; one that it only began is replaced.
        """
        digest = self.digests.of(shard.number)
        if digest and shard.folder.exists():
            manifest = open_prepared(shard.folder, check_pool=False).manifest
            if manifest.digest == digest:
                return manifest
        overwrite = self.overwrite or digest is not None
        refuse_output(shard.folder, overwrite=overwrite)
        self.digests.add(shard.number, "")
        self.shard_names.add(shard.number, shard.folder.name)
        columns = InputColumns(length="length", id="id")
        held = open_held(shard.rows, columns, where=f"shard {shard.folder.name}")
        keys = None
        if self.keys is not None:
            table = Keys.mapped(self.keys.folder, self.keys.record)
            keys = KeyColumn(name=self.keys.record.column, rows=partial(table.rows, shard.rows["id"]))
        job = Job(
            folder=shard.folder,
            opened=replace(held, kind=self.kind, columns=self.columns, keys=keys),
            source=self.source,
            options=self.options,
            execution=self.execution,
            overwrite=overwrite,
        )
        manifest = write_job(job)
        self.digests.add(shard.number, manifest.digest)
        return manifest


def _shards_of(prefix: Path, found: Found, opened: Opened, by: str | None, sequences: int | None) -> list[_Shard]:
    """Reads the whole input and returns its shards, whose folders' names begin with that of `prefix` and a hyphen.

    `by` and `sequences` are as in `shard`: one is None.
    """
    batches = [batch for each in opened.ranges for batch in each.batches()]
    rows = np.empty(sum(len(batch.lengths) for batch in batches), dtype=[("length", np.int64), ("id", np.int64)])
    if not len(rows):
        raise ValueError("the input holds no rows, so there is nothing to cut")
    rows["length"] = np.concatenate([batch.lengths for batch in batches])
    rows["id"] = np.concatenate([batch.ids for batch in batches])
    del batches  # they take as much memory as the rows
    cut = by_size(len(rows), sequences) if sequences is not None else by_value(found, str(by))
    if len(cut.shard_of_row) != len(rows):
        raise ValueError(
            f"the input has {len(rows):,} rows, but its column {by} {len(cut.shard_of_row):,}: it changed meanwhile"
        )
    rows = rows[np.argsort(cut.shard_of_row, kind="stable")]  # a shard's rows stay in the order of the corpus
    ends = np.cumsum(np.bincount(cut.shard_of_row, minlength=len(cut.names))).tolist()
    return [
        _Shard(number=number, folder=prefix.with_name(f"{prefix.name}-{name}"), rows=rows[begin:end])
        for number, (name, begin, end) in enumerate(zip(cut.names, [0, *ends[:-1]], ends, strict=True))
    ]


def _whole_keys(folder: Path, opened: Opened, progress: Progress) -> _KeyTable | None:
    """Writes the table of all the corpus's keys, from which each shard takes its own; returns None without keys."""
    shutil.rmtree(folder, ignore_errors=True)  # an interrupted call may have left a part
    folder.mkdir()
    record = gather_keys(folder, opened, progress)
    return None if record is None else _KeyTable(folder, record)
