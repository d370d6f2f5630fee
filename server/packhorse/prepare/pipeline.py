"""`prepare`: raw data becomes a prepared folder.

Owns the order of things, from finding files to sealing the folder, and what the whole must fulfil (something to plan,
no sequence too long, no id twice). Leaves what happens within a task to `passes` and `duplicates`.
"""

import glob
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import (
    OVER_LENGTH,
    POOLS,
    STARTS,
    Keep,
    Manifest,
    OverLength,
    OverLengthLedger,
    PrepareOptions,
    create_array,
    open_prepared,
    refuse_holding,
    refuse_output,
    seal,
    write_seqpack_layout,
    written_whole,
)
from packhorse.packing import DEFAULT_TIME_LIMIT_SECONDS, PACKERS, checked_integer, pack_histogram
from packhorse.packing.options import checked_options
from packhorse.prepare.duplicates import cut_windows, find_duplicate
from packhorse.prepare.engines import open_engine
from packhorse.prepare.passes import (
    CountTask,
    FinishTask,
    PlaceTask,
    TaskCounts,
    count_task,
    find_rows,
    finish_task,
    make_tasks,
    place_task,
    sort_over_length,
)
from packhorse.prepare.progress import Passes, shown
from packhorse.prepare.sources import Span, files_read, find_inputs, find_spans

Layout = Literal["packhorse", "seqpack"]
"""How the folder is laid out."""

Source = str | os.PathLike[str]
"""A file, a folder or a pattern to read."""

_LARGE_ROWS = 100_000_000
_OURS = ".packhorse"
_MOST_NAMES = 8


def prepare(
    input: Source | Sequence[Source],
    *,
    length_column: str | None = None,
    id_column: str | None = None,
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
    workers: int | None = None,
    format: Layout = "packhorse",
    progress: bool = True,
) -> Manifest:
    """Plans a dataset and writes its prepared folder, whole or not at all.

    Reads the lengths twice, in batches: once to count them, once to put every id in its place. Memory depends on
    max_seq_len and the number of files and row groups, not on the number of sequences. The folder is the same, byte by
    byte, for any number of workers.

    Args:
        input: a Parquet file, a folder of them (every *.parquet below it, sorted by path), a glob pattern, or several
            of these, read in the order given. Or one Megatron index `X.idx`, whose entries are the ids.
        length_column: the integer column of lengths in tokens; not for an `X.idx`.
        id_column: the integer column of ids, each once in the dataset; None takes the row over all files of all
            inputs in order, counted from 0.
        max_seq_len: a bin's capacity in tokens, in [1, 2^31).
        output: the folder to write.
        algorithm: "auto" or a name of `packhorse.packing.PACKERS`.
        over_length: what is done with a sequence that is longer than max_seq_len or, with `align` and `extra_tokens`,
            does not fit it. "error" refuses it; "drop" leaves it out; "truncate" plans as many of its tokens as fit;
            "split" plans all of them in pieces, each as long as fits but for the last. The manifest's ledger says how
            many there were and how many tokens that cost, and over_length.npy which.
        keep: which end of a truncated sequence stays: "head", its first tokens, or "tail", its last.
        max_sequences_per_bin: the most sequences in a bin; None for no limit.
        align: a sequence's place in its bin is rounded up to a multiple of so many tokens, as context and tensor
            parallelism need.
        extra_tokens: tokens kept free for each sequence beside its own, before rounding (BOS, EOS).
        time_limit_seconds: a safety net. A packer that improves its plan step by step ends after a fixed amount of
            work, so the same input gives the same plan; where the limit ends it before, the manifest says so by
            `plan_cut_off`, and the next run may plan otherwise.
        overwrite: whether a prepared dataset at `output` is replaced, in one step at the very end. Nothing else ever
            is: no file, no folder with other files in it, and none that holds an input or the working directory.
        workers: processes to read with. None takes 1 below 100 million rows, where starting processes costs more than
            they save, and one for each processor from there on; a script must then start its work under
            `if __name__ == "__main__":`, as for every spawned process.
        format: "packhorse", or "seqpack" for the layout that `seqpack.load_prepared` reads.
        progress: whether bars are shown on stderr, where that is a terminal.

    Returns:
        The manifest (with format="seqpack" too, where the folder itself keeps seqpack's fields only).

    Raises:
        FileExistsError: `output` exists and `overwrite` is not set, or it is not what may be replaced.
        FileNotFoundError: nothing is at `input`.
        OSError: the disk is full; nothing is left behind.
        ValueError: an argument, a file, a column, a length or an id is not as it must be; the message names it, with
            file, row and column where there are.
        ImportError: pyarrow is not installed.
    """
    sources = [os.fspath(input)] if isinstance(input, str | os.PathLike) else [os.fspath(one) for one in input]
    folder = Path(output)
    options = _checked_options(
        max_seq_len, algorithm, over_length, keep, max_sequences_per_bin, *checked_options(align, extra_tokens)
    )
    if format not in get_args(Layout):
        raise ValueError(f"format must be one of {', '.join(get_args(Layout))}, got {format!r}")
    if format == "seqpack" and (over_length == "split" or keep == "tail"):
        raise ValueError(
            "seqpack's layout has no place for where a piece begins: use --format packhorse, or neither --over-length "
            "split nor --keep tail"
        )
    if workers is not None:
        checked_integer("workers", workers, 1)
    refuse_output(folder, overwrite=overwrite)  # said before hours of reading, and again by written_whole
    paths = find_inputs(sources)
    refuse_holding(folder, [*map(Path, sources), *files_read(paths)])
    spans = find_spans(paths, length_column, id_column)
    num_workers = workers or _default_workers(sum(span.num_rows for span in spans))
    with (
        written_whole(folder, overwrite=overwrite) as partial,
        open_engine(num_workers) as engine,
        shown(engine, progress) as passes,
    ):
        sort = _Sort(passes, spans, options, num_workers, id_column=id_column, time_limit_seconds=time_limit_seconds)
        if format == "packhorse":
            return sort.write(partial, _name_of(sources))
        ours = partial / _OURS
        ours.mkdir()
        manifest = sort.write(ours, _name_of(sources))
        write_seqpack_layout(open_prepared(ours, check_pool=False), partial)
        shutil.rmtree(ours)
        return manifest


def _name_of(sources: Sequence[str]) -> str:
    """What the manifest calls the inputs: last components, and of a pattern its folder too."""
    names = []
    for source in sources[:_MOST_NAMES]:
        path = Path(source).absolute()
        names.append("/".join(path.parts[-2:]).removeprefix("//") if glob.has_magic(path.name) else path.name)
    if len(sources) > _MOST_NAMES:
        names.append(f"{len(sources) - _MOST_NAMES:,} more")
    return os.fsencode(", ".join(names)).decode(errors="replace")


def _checked_options(
    max_seq_len: int,
    algorithm: str,
    over_length: OverLength,
    keep: Keep,
    max_sequences_per_bin: int | None,
    align: int,
    extra_tokens: int,
) -> PrepareOptions:
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
    options = PrepareOptions(
        max_seq_len=checked_integer("max_seq_len", max_seq_len, 1, 2**31 - 1),
        algorithm=algorithm,
        max_sequences_per_bin=max_sequences_per_bin,
        over_length=over_length,
        keep=keep,
        align=align,
        extra_tokens=extra_tokens,
    )
    if options.longest < 1:
        raise ValueError(
            f"no sequence fits max_seq_len {max_seq_len} with align {align} and extra_tokens {extra_tokens}: not one "
            "token of its own is left; raise --max-seq-len"
        )
    return options


def _default_workers(num_rows: int) -> int:
    return 1 if num_rows < _LARGE_ROWS else os.cpu_count() or 1


@dataclass
class _Sort:
    """The passes over one dataset."""

    passes: Passes
    spans: list[Span]
    options: PrepareOptions
    workers: int
    id_column: str | None
    time_limit_seconds: float

    def write(self, folder: Path, source: str) -> Manifest:
        """Fills `folder` and returns its manifest."""
        options = self.options
        tasks = make_tasks(self.spans, options, self.workers)
        sizes = [task.num_rows for task in tasks]
        found = list(self.passes.run("counting lengths", count_task, tasks, sizes))
        ledger = _over_length_ledger(found, options)
        lengths, counts = _merged(found)
        by_length = dict(zip(lengths.tolist(), counts.tolist(), strict=True))
        low, high = min(part.id_low for part in found), max(part.id_high for part in found)
        id_dtype: Literal["uint32", "int64"] = "uint32" if low >= 0 and high < 2**32 else "int64"
        start_dtype = _start_dtype(found, options)
        edges = np.concatenate(([0], np.cumsum(counts)))
        shape = (int(edges[-1]),)
        pool = _created(folder / POOLS, id_dtype, shape)
        starts = _created(folder / STARTS, start_dtype, shape) if start_dtype else None
        over = _created(folder / OVER_LENGTH, "int64", (ledger.sequences, 2)) if ledger.sequences else None
        with self.passes.step("planning"):
            plan = pack_histogram(
                by_length,
                options.max_seq_len,
                algorithm=options.algorithm,
                max_sequences_per_bin=options.max_sequences_per_bin,
                time_limit_seconds=self.time_limit_seconds,
            )
        places = _place_tasks(tasks, found, pool, starts, over, lengths, edges)
        for _ in self.passes.run("placing ids", place_task, places, sizes):
            pass
        sums = self._finish(pool, starts, edges)
        if self.id_column is not None:
            split_starts = starts if options.over_length == "split" else None
            self._check_unique(pool, split_starts, edges, low, high, tasks)
            if over:
                list(self.passes.run("sorting over-length ids", sort_over_length, [over], [ledger.sequences]))
        return seal(
            folder,
            counts=by_length,
            plan=plan,
            options=options,
            over_length=ledger,
            own_tokens=sum(part.own_tokens for part in found),
            id_dtype=id_dtype,
            start_dtype=start_dtype,
            ids_sum=sums,
            source=source,
            id_column=self.id_column,
        )

    def _finish(self, pool: str, starts: str | None, edges: NDArray[np.int64]) -> tuple[int, int]:
        rows = max(1, int(edges[-1]) // (8 * self.workers))
        tasks: list[FinishTask] = []
        begin = 0
        for segment in range(1, len(edges)):
            if edges[segment] - edges[begin] >= rows or segment == len(edges) - 1:
                tasks.append(
                    FinishTask(
                        pool=pool,
                        starts_path=starts,
                        edges=tuple(edges[begin : segment + 1].tolist()),
                        sort=self.id_column is not None,
                    )
                )
                begin = segment
        sizes = [task.edges[-1] - task.edges[0] for task in tasks]
        name = "sorting ids" if self.id_column is not None else "summing ids"
        sums = list(self.passes.run(name, finish_task, tasks, sizes))
        return sum(a for a, _ in sums) % 2**64, sum(b for _, b in sums) % 2**64

    def _check_unique(
        self,
        pool: str,
        starts: str | None,
        edges: NDArray[np.int64],
        low: int,
        high: int,
        sources: Sequence[CountTask],
    ) -> None:
        windows = list(cut_windows(pool, edges, low, high, starts_path=starts))
        sizes = [window.num_ids for window in windows]
        for duplicate in self.passes.run("comparing ids", find_duplicate, windows, sizes):
            if duplicate is not None:
                wanted = [(source, duplicate) for source in sources]
                rows = self.passes.run("finding its rows", find_rows, wanted, [source.num_rows for source in sources])
                places = [place for part in rows for place in part]
                named = "; ".join(f"row {row} of {path}, length {length}" for path, row, length in places[:4])
                raise ValueError(
                    f"id {duplicate} occurs {len(places)} times ({named}{'; …' if len(places) > 4 else ''}); every id "
                    "must occur once: repair the id column, or leave out --id-column to use row numbers"
                )


def _created(path: Path, dtype_name: str, shape: tuple[int, ...]) -> str:
    create_array(path, dtype_name, shape)
    return str(path)


def _over_length_ledger(found: Sequence[TaskCounts], options: PrepareOptions) -> OverLengthLedger:
    limit, is_plain = options.longest, options.align == 1 and not options.extra_tokens
    what = (
        f"max_seq_len {limit}"
        if is_plain
        else (
            f"the {limit} that fit max_seq_len {options.max_seq_len} with align {options.align} and extra_tokens "
            f"{options.extra_tokens}"
        )
    )
    num_over = sum(part.num_over for part in found)
    tokens_over = sum(part.tokens_over for part in found)
    first = next((part.first_over for part in found if part.first_over), None)
    if first is None:
        return OverLengthLedger()
    if options.over_length == "error":
        identity, length, path, row = first
        raise ValueError(
            f"sequence {identity} (row {row} of {path}) has {length} tokens, over {what}, and it is "
            f"{'the only one' if num_over == 1 else f'one of {num_over:,}'}; raise --max-seq-len, or choose "
            "--over-length drop, truncate or split"
        )
    if not any(len(part.lengths) for part in found):
        raise ValueError(f"all {num_over:,} sequences are over {what} and dropped; raise --max-seq-len")
    is_split = options.over_length == "split"
    lost = {"drop": tokens_over, "truncate": tokens_over - num_over * limit, "split": 0}[options.over_length]
    pieces = sum(part.pieces_over for part in found) if is_split else 0
    return OverLengthLedger(sequences=num_over, source_tokens=tokens_over, tokens=lost, pieces=pieces)


def _start_dtype(found: Sequence[TaskCounts], options: PrepareOptions) -> Literal["uint32", "int64"] | None:
    """How starts are stored; None where every entry begins at token 0."""
    longest = max(part.longest_over for part in found)
    if not longest or (options.over_length, options.keep) not in (("split", "head"), ("truncate", "tail")):
        return None
    is_split = options.over_length == "split"
    last = (longest - 1) // options.longest * options.longest if is_split else longest - options.longest
    return "uint32" if last < 2**32 else "int64"


def _merged(found: Sequence[TaskCounts]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns all tasks' distinct lengths, ascending, and how many sequences have each: int64 [D] both."""
    histogram = np.zeros(max(int(part.lengths[-1]) for part in found if len(part.lengths)) + 1, dtype=np.int64)
    for part in found:
        histogram[part.lengths] += part.counts
    lengths = np.flatnonzero(histogram)
    return lengths, histogram[lengths]


def _place_tasks(
    tasks: Sequence[CountTask],
    found: Sequence[TaskCounts],
    pool: str,
    starts: str | None,
    over: str | None,
    lengths: NDArray[np.int64],
    edges: NDArray[np.int64],
) -> list[PlaceTask]:
    """Gives each task the places behind those of earlier tasks, length by length, so that row order is kept."""
    cursors = edges[:-1].copy()
    row = 0
    places = []
    for task, part in zip(tasks, found, strict=True):
        at = np.searchsorted(lengths, part.lengths)
        places.append(
            PlaceTask(
                source=task,
                pool=pool,
                starts_path=starts,
                over_path=over,
                over_rows=(row, row + part.num_over),
                lengths=part.lengths,
                starts=cursors[at],
                counts=part.counts,
                id_low=part.id_low,
                id_high=part.id_high,
            )
        )
        cursors[at] += part.counts
        row += part.num_over
    return places
