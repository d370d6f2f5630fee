"""What a dataset says of its input: files with their stamps, and rows that were skipped.

Owns names (below the folder that all files share) and where a manifest's list ends and a file beside it begins.
"""

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import (
    INPUTS,
    MOST_LISTED,
    SKIPPED,
    InputRecord,
    Inputs,
    PreparedDataset,
    SkippedRow,
    SkippedRows,
    write_records,
)
from packhorse.formats.files import absolute, as_path
from packhorse.formats.object_store import is_url, without_secrets
from packhorse.prepare.append import all_inputs, all_skipped
from packhorse.prepare.input import Fault, Opened

_MOST_CHARACTERS = 240

Skipped = Sequence[tuple[str, NDArray[np.int64]]]
"""Files and (row, Fault) of their skipped rows, in order: int64 [k, 2] each."""


def write_inputs(
    folder: Path | None, opened: Opened, skipped: Skipped, before: PreparedDataset | None = None
) -> Inputs:
    """Returns what the manifest says of the input, and writes whole lists where those are longer.

    Args:
        folder: where to write; None writes nothing.
        opened: what was read.
        skipped: what was skipped of it.
        before: the version that was appended to, whose input comes first.
    """
    names = _names([file.path for file in opened.files])
    files = list(all_inputs(before)) if before else []
    files += [
        InputRecord(
            name=names[file.path],
            size_bytes=file.stamp.size_bytes,
            modified_ns=file.stamp.modified_ns,
            etag=file.stamp.version or None,
            rows=file.num_rows,
        )
        for file in opened.files
    ]

    def skipped_rows() -> Iterator[SkippedRow]:
        if before:
            yield from all_skipped(before)
        for path, rows in skipped:
            for row, fault in rows.tolist():
                yield SkippedRow(file=names.get(path, path), row=row, reason=Fault(fault).reason)

    num_skipped = sum(len(rows) for _, rows in skipped)
    num_rows = sum(span.num_rows for span in opened.spans)
    if before is not None and before.manifest.inputs is not None:
        num_skipped += before.manifest.inputs.skipped.rows
        num_rows += before.manifest.inputs.rows
    if folder is not None and len(files) > MOST_LISTED:
        write_records(folder / INPUTS, files)
    if folder is not None and num_skipped > MOST_LISTED:
        write_records(folder / SKIPPED, skipped_rows())
    return Inputs(
        kind=opened.kind,
        length_column=opened.columns.length,
        rows=num_rows,
        num_files=len(files),
        files=tuple(files[:MOST_LISTED]),
        skipped=SkippedRows(rows=num_skipped, first=tuple(islice(skipped_rows(), MOST_LISTED))),
    )


def _names(paths: Sequence[str]) -> dict[str, str]:
    """Returns path → its part below the folder that all share, as text."""
    whole = [absolute(path) for path in paths]
    shared = _shared_folder(whole)
    relative = [path.removeprefix(shared).lstrip("/")[-_MOST_CHARACTERS:] for path in whole]
    return {path: os.fsencode(name).decode(errors="replace") for path, name in zip(paths, relative, strict=True)}


def _shared_folder(paths: Sequence[str]) -> str:
    """Returns the folder that all paths and URLs are below, as far as they share one; empty where they do not."""
    folders = [os.path.dirname(path).split("/") for path in paths]
    shared = takewhile(lambda names: len(set(names)) == 1, zip(*folders, strict=False))
    return "/".join(names[0] for names in shared)


Source = str | os.PathLike[str]
"""A file, a folder, a pattern, or the URL of one in an object store, to read."""

_MOST_NAMES = 8


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


def joined_names(before: str, more: str) -> str:
    """What the manifest calls the inputs of a dataset that grew."""
    names = f"{before}, {more}".split(", ")
    return ", ".join([*names[:_MOST_NAMES], *["…"] * (len(names) > _MOST_NAMES)])
