"""`prepare`: raw data becomes a prepared folder.

Owns the arguments, what they must fulfil, and the way from finding files to a folder in its place. Leaves reading and
sorting to `_sort`.
"""

import glob
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from packhorse.dataset import (
    Keep,
    Manifest,
    OverLength,
    PrepareOptions,
    open_prepared,
    refuse_holding,
    refuse_output,
    write_seqpack_layout,
    written_whole,
)
from packhorse.jobs import show_progress
from packhorse.packing import DEFAULT_TIME_LIMIT_SECONDS, PACKERS, checked_rule
from packhorse.prepare._engines import open_engine
from packhorse.prepare._sort import Sort
from packhorse.prepare._sources import files_read, find_inputs, find_spans
from packhorse.topology import checked_integer

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

    Reads the lengths twice, in batches: once to count them, once to sort every id by its length. Memory depends on
    max_seq_len and the number of files and row groups, not on the number of sequences. The folder is the same, byte by
    byte, for any number of workers.

    Example:
        >>> manifest = prepare("corpus.idx", max_seq_len=8, output="datasets/packed")  # 5, 3, 3 and 5 tokens
        >>> manifest.n_bins, manifest.efficiency
        (2, 1.0)

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
        align: a sequence's room in its bin is a multiple of so many tokens, as context and tensor parallelism need.
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
        progress: whether stderr shows how far it is: bars on a terminal, a line every few seconds elsewhere.

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
    options = _checked_options(max_seq_len, algorithm, over_length, keep, max_sequences_per_bin, align, extra_tokens)
    if format not in get_args(Layout):
        raise ValueError(f"format must be one of {', '.join(get_args(Layout))}, got {format!r}")
    if format == "seqpack" and (over_length == "split" or keep == "tail"):
        raise ValueError(
            "seqpack's layout cannot say where a piece begins: use --format packhorse, or neither --over-length "
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
        show_progress(quiet=not progress) as shown,
    ):
        sort = Sort(
            engine=engine,
            progress=shown,
            workers=num_workers,
            spans=spans,
            options=options,
            id_column=id_column,
            time_limit_seconds=time_limit_seconds,
        )
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


def _default_workers(num_rows: int) -> int:
    return 1 if num_rows < _LARGE_ROWS else os.cpu_count() or 1
