"""The manifest's `Inputs`: the files that were read, the rows that were skipped, and what tokenizing had left out.

Owns collecting them, also over versions, and which lists are in the manifest or in files beside it. Where the tokens
are is in `_tokens`, and keys are in `keys`; reading the input is in `packhorse.prepare.input`.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, takewhile
from pathlib import Path

from packhorse.dataset import (
    INPUTS,
    MOST_LISTED,
    SKIPPED,
    InputRecord,
    Inputs,
    PreparedDataset,
    SkippedRow,
    SkippedRows,
    read_records,
    write_records,
)
from packhorse.formats.files import absolute
from packhorse.formats.left_out import left_out_of
from packhorse.formats.object_store import is_url
from packhorse.prepare.counting import SkippedInFile
from packhorse.prepare.input import Fault, Opened
from packhorse.prepare.records._tokens import tokens_of

_MOST_CHARACTERS = 240
"""The most characters of a file's name; of a longer one the end stays."""


def write_inputs(
    folder: Path | None,
    opened: Opened,
    skipped: Sequence[SkippedInFile],
    before: PreparedDataset | None = None,
    *,
    output: Path | None = None,
    tokens_folder: Path | None = None,
) -> Inputs:
    """Returns the manifest's facts about the input, and writes lists that are too long for the manifest into files.

    Args:
        folder: the folder to write into; None writes nothing.
        opened: the input.
        skipped: the skipped rows, in order.
        before: the version to which the input is appended, whose input comes first; None for a new dataset.
        output: the final name of the folder, for the place of the tokens; None leaves that out.
        tokens_folder: the folder of token files that go into the dataset's folder; None if there is none.
    """
    names = _names([file.path for file in opened.files])
    files = [
        *(inputs_of(before) if before else ()),
        *(
            InputRecord(
                name=names[file.path],
                size_bytes=file.stamp.size_bytes,
                modified_ns=file.stamp.modified_ns,
                etag=file.stamp.version or None,
                rows=file.num_rows,
            )
            for file in opened.files
        ),
    ]

    if folder is not None and len(files) > MOST_LISTED:
        write_records(folder / INPUTS, files)
    inputs_before = before.manifest.inputs if before else None
    return Inputs(
        kind=opened.kind,
        length_column=opened.columns.length,
        rows=opened.num_rows + (inputs_before.rows if inputs_before else 0),
        num_files=len(files),
        files=tuple(files[:MOST_LISTED]),
        skipped=_write_skipped(folder, skipped, names, before),
        left_out=_left_out(opened, inputs_before),
        tokens=None if output is None else tokens_of(opened, output, tokens_folder, before),
    )


def _write_skipped(
    folder: Path | None, skipped: Sequence[SkippedInFile], names: Mapping[str, str], before: PreparedDataset | None
) -> SkippedRows:
    """Returns the manifest's facts about skipped rows; writes their list if it is too long for the manifest.

    `names` has path → its name in the manifest. Other arguments are those of `write_inputs`.
    """

    def all_rows() -> Iterator[SkippedRow]:
        yield from _skipped_of(before) if before else ()
        for path, rows in skipped:
            for row, fault in rows.tolist():  # (number in the file, Fault)
                yield SkippedRow(file=names.get(path, path), row=row, reason=Fault(fault).reason)

    by_reason = Counter(Fault(fault).reason for each in skipped for fault in each.rows[:, 1].tolist())
    num_skipped = by_reason.total()
    if before is not None and before.manifest.inputs is not None:
        num_skipped += before.manifest.inputs.skipped.rows
        by_reason += Counter(before.manifest.inputs.skipped.by_reason)
    are_reasons_known = num_skipped == by_reason.total()  # an earlier release may have counted rows only
    if folder is not None and num_skipped > MOST_LISTED:
        write_records(folder / SKIPPED, all_rows())
    return SkippedRows(
        rows=num_skipped,
        first=tuple(islice(all_rows(), MOST_LISTED)),
        by_reason=dict(sorted(by_reason.items())) if num_skipped and are_reasons_known else None,
    )


def _left_out(opened: Opened, before: Inputs | None) -> dict[str, int] | None:
    """Returns what tokenizing left out of the input and of the version before → how often; None if nothing is known."""
    left_out = Counter(before.left_out if before else None)
    if opened.kind in ("Megatron", "flat"):
        for file in opened.files:
            left_out += Counter({} if is_url(file.path) else left_out_of(file.path))
    return dict(sorted(left_out.items())) or None


def inputs_of(before: PreparedDataset) -> Iterator[InputRecord]:
    """Yields a record for every file that a version was prepared from."""
    inputs = before.manifest.inputs
    assert inputs is not None  # `append/continuing` refuses a version without them
    yield from inputs.files if inputs.num_files <= MOST_LISTED else read_records(before.path / INPUTS, InputRecord)


def _skipped_of(before: PreparedDataset) -> Iterator[SkippedRow]:
    assert before.manifest.inputs is not None
    skipped = before.manifest.inputs.skipped
    yield from skipped.first if skipped.rows <= MOST_LISTED else read_records(before.path / SKIPPED, SkippedRow)


def _names(paths: Sequence[str]) -> dict[str, str]:
    """Returns path → its name in the manifest, relative to the deepest folder that holds all files."""
    whole = [absolute(path) for path in paths]
    # ["/a/b/x", "/a/c/y"] -> levels ("", ""), ("a", "a"), ("b", "c"), of which the first two are shared
    levels = zip(*(os.path.dirname(path).split("/") for path in whole), strict=False)
    shared = "/".join(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))
    relative = [path.removeprefix(shared).lstrip("/")[-_MOST_CHARACTERS:] for path in whole]
    return {path: os.fsencode(name).decode(errors="replace") for path, name in zip(paths, relative, strict=True)}
