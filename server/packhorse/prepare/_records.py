"""What a dataset says of its input: names, files, skipped rows and keys; and which input and options continue it.

Owns how inputs are named, which lists are in the manifest and which in files beside it, the pass over keys, and whether
the version that an append makes still holds the old one. Leaves reading to `input`, the table of keys to
`packhorse.dataset`, and how counts and arrays of both versions are joined to `_counting` and `_spills`: the version
before is one more spill, so no input of it is read again. Groups with resources are sorted again, from its tables.
"""

import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import (
    INPUTS,
    MOST_LISTED,
    SKIPPED,
    DuplicateKeyError,
    InputRecord,
    Inputs,
    KeyRecord,
    KeyRows,
    PlanOptions,
    PreparedDataset,
    SkippedRow,
    SkippedRows,
    read_records,
    write_keys,
    write_records,
)
from packhorse.epoch import Groups
from packhorse.formats.files import absolute, as_path
from packhorse.formats.object_store import is_url, without_secrets
from packhorse.jobs import Progress
from packhorse.prepare.input import Fault, Opened, Resource, changed

Source = str | os.PathLike[str]
"""A file, a folder, a pattern, or the URL of one in an object store, to read."""

_MOST_CHARACTERS = 240
_MOST_NAMES = 8


def paths_of_inputs(input: Source | Iterable[Source]) -> list[str]:
    """Returns the inputs as they were named; a ValueError where that is no way to name one."""
    named = [input] if isinstance(input, str | os.PathLike) else list(input) if isinstance(input, Iterable) else [None]
    paths = [as_path(one) for one in named if isinstance(one, str | os.PathLike) and str(one)]
    if len(paths) < len(named):
        raise ValueError(
            f"input must be a file, a folder, a pattern, a URL of one, or a list of these, got {input!r:.60}"
        )
    return paths


def name_of_inputs(sources: Sequence[str]) -> str:
    """Returns what the manifest calls the inputs: last components, and of a pattern its folder too."""
    names = []
    for source in sources[:_MOST_NAMES]:
        path = Path(without_secrets(source).partition("://")[2] if is_url(source) else os.path.abspath(source))
        names.append("/".join(path.parts[-2:]).removeprefix("//") if glob.has_magic(path.name) else path.name)
    if len(sources) > _MOST_NAMES:
        names.append(f"{len(sources) - _MOST_NAMES:,} more")
    return os.fsencode(", ".join(names)).decode(errors="replace")


def joined_names(before: str, more: str) -> str:
    """Returns what the manifest calls the inputs of a dataset that grew."""
    names = f"{before}, {more}".split(", ")
    return ", ".join([*names[:_MOST_NAMES], *["…"] * (len(names) > _MOST_NAMES)])


def write_inputs(
    folder: Path | None,
    opened: Opened,
    skipped: Sequence[tuple[str, NDArray[np.int64]]],
    before: PreparedDataset | None = None,
) -> Inputs:
    """Returns what the manifest says of the input, and writes whole lists where those are longer.

    Args:
        folder: where to write; None writes nothing.
        opened: what was read.
        skipped: files and (row, Fault) of their rows that were skipped, in order: int64 [k, 2] each.
        before: the version that was appended to, whose input comes first.
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

    def skipped_rows() -> Iterator[SkippedRow]:
        if before:
            yield from _skipped_of(before)
        for path, rows in skipped:
            for row, fault in rows.tolist():
                yield SkippedRow(file=names.get(path, path), row=row, reason=Fault(fault).reason)

    by_reason = Counter(Fault(fault).reason for _, rows in skipped for fault in rows[:, 1].tolist())
    num_skipped = by_reason.total()
    num_rows = opened.num_rows
    if before is not None and before.manifest.inputs is not None:
        num_skipped += before.manifest.inputs.skipped.rows
        by_reason += Counter(before.manifest.inputs.skipped.by_reason)
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
        skipped=SkippedRows(
            rows=num_skipped,
            first=tuple(islice(skipped_rows(), MOST_LISTED)),
            by_reason=dict(sorted(by_reason.items())) if num_skipped == by_reason.total() > 0 else None,
        ),
    )


def inputs_of(before: PreparedDataset) -> Iterator[InputRecord]:
    """Yields every file that a version was prepared from."""
    inputs = before.manifest.inputs
    assert inputs is not None  # to others nothing is appended
    yield from inputs.files if inputs.num_files <= MOST_LISTED else read_records(before.path / INPUTS, InputRecord)


def _skipped_of(before: PreparedDataset) -> Iterator[SkippedRow]:
    assert before.manifest.inputs is not None
    skipped = before.manifest.inputs.skipped
    yield from skipped.first if skipped.rows <= MOST_LISTED else read_records(before.path / SKIPPED, SkippedRow)


def _names(paths: Sequence[str]) -> dict[str, str]:
    """Returns path → its part below the folder that all share, as text."""
    whole = [absolute(path) for path in paths]
    folders = zip(*(os.path.dirname(path).split("/") for path in whole), strict=False)
    shared = "/".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, folders))
    relative = [path.removeprefix(shared).lstrip("/")[-_MOST_CHARACTERS:] for path in whole]
    return {path: os.fsencode(name).decode(errors="replace") for path, name in zip(paths, relative, strict=True)}


def gather_keys(
    folder: Path, opened: Opened, progress: Progress, before: PreparedDataset | None = None
) -> KeyRecord | None:
    """Writes the table of keys; None where the input has none.

    Args:
        folder: to write it into.
        opened: the input.
        progress: shows sequences.
        before: the version that the rows are added to, whose keys come first.

    Raises:
        ValueError: a row has no key, or two have the same; the message names them.
    """
    if opened.keys is None:
        return None
    column, num_rows = opened.keys.name, opened.num_rows
    num_before = len(before.keys) if before and before.keys else 0

    def rows() -> Iterator[KeyRows]:
        if before and before.keys:
            yield from before.keys.rows()
        assert opened.keys is not None
        count = 0
        with progress.task("keeping keys", num_rows, "sequences") as advance:
            for some in opened.keys.rows():
                yield some
                count += len(some.sizes)
                advance(len(some.sizes))
        if count != num_rows:
            raise changed(opened.ranges[0].path)
        opened.check_files()

    try:
        return write_keys(folder, rows(), column=column, num_keys=num_before + num_rows)
    except DuplicateKeyError as error:
        first, second = (_row_named(opened, each, before) for each in error.ids)
        raise ValueError(
            f"key {error.key!r:.100} comes twice ({first}; {second}); a key names one sequence: repair column "
            f"{column!r}, or leave out id_column to go without keys"
        ) from None


def _row_named(opened: Opened, index: int, before: PreparedDataset | None) -> str:
    """Names the row of a sequence by its number over all files."""
    for each in opened.ranges:
        if each.first_index <= index < each.first_index + each.num_rows:
            return f"row {each.first_row + index - each.first_index} of {each.where}"
    return f"row {index} of what {before.name} was prepared from" if before else f"row {index}"


def refuse_growth(
    before: PreparedDataset, opened: Opened, options: PlanOptions, *, groups_by: str | None, adds: bool
) -> None:
    """Refuses input and options that do not continue a dataset; a ValueError that names each difference.

    Args:
        before: the dataset.
        opened: the input.
        options: what shapes its plan.
        groups_by: what says which rows of the input are a group; None for nothing.
        adds: whether the input holds new sequences only.
    """
    manifest, inputs = before.manifest, before.manifest.inputs
    if inputs is None:
        raise ValueError(
            f"{before.name} was prepared by an earlier release and does not say from how many rows; prepare it again "
            "to append to it"
        )
    was = {**asdict(manifest.options), "id_column": manifest.id_column}
    now = {**asdict(options), "id_column": opened.columns.id}
    differing = [name for name in now if was[name] != now[name]]
    said = [f"{name} was {was[name]} and is {now[name]}" for name in differing]
    keys = [manifest.keys.column if manifest.keys else None, opened.keys.name if opened.keys else None]
    if keys[0] != keys[1]:
        its, theirs = (f"keys of column {column!r}" if column else "no keys" for column in keys)
        said.append(f"it has {its}, and the input gives {theirs}")
    were_by = manifest.groups.by if manifest.groups else None
    if were_by != groups_by:
        said_by = [f"by {by}" if by else "without groups" for by in (were_by, groups_by)]
        said.append(f"it was planned {said_by[0]}, and the input is {said_by[1]}")
    were = tuple(
        Resource(name=each.name, column=each.column, cap=each.cap, cost=each.cost) for each in manifest.resources
    )
    if were != opened.columns.resources:
        were_said, are_said = (", ".join(map(str, each)) or "none" for each in (were, opened.columns.resources))
        said.append(f"its resources were {were_said}, and are {are_said}")
    if inputs.kind != opened.kind:
        said.append(f"it was prepared from {inputs.kind}, and the input is {opened.kind}")
    elif inputs.length_column != opened.columns.length:
        said.append(f"lengths came from column {inputs.length_column!r}, and come from {opened.columns.length!r}")
    elif not adds and opened.num_rows <= inputs.rows:
        said.append(f"it was prepared from {inputs.rows:,} rows, and the input holds no more")
    elif adds and (again := _known(before, opened)):
        said.append(f"{again} is in it already and has not changed: give files of new sequences only")
    if said:
        raise ValueError(f"append cannot continue {before.name}: {'; '.join(said)}")


def _known(before: PreparedDataset, opened: Opened) -> str | None:
    """Returns the first file that the dataset was prepared from before, as its name, size and time tell."""
    known = {(os.path.basename(file.name), file.size_bytes, file.modified_ns) for file in inputs_of(before)}
    for file in opened.files:
        path = absolute(file.path)
        if (os.path.basename(path), file.stamp.size_bytes, file.stamp.modified_ns) in known:
            return path
    return None


def refuse_rewritten(before: PreparedDataset, grown: PreparedDataset) -> None:
    """Refuses a version, prepared from all rows, that lacks or changes an entry of the one before; a ValueError."""
    if before.keys is not None and not (grown.keys and grown.keys.begins_with(before.keys)):
        raise _rewritten(before, grown)
    if before.groups is not None and grown.groups is not None:
        _refuse_other_groups(before, before.groups, grown, grown.groups)
        return
    ends = dict(zip(grown.plan.lengths.tolist(), np.cumsum(grown.plan.counts).tolist(), strict=True))
    begin = 0
    for room, count in zip(before.plan.lengths.tolist(), before.plan.counts.tolist(), strict=True):
        ids = before.pool[begin : begin + count]
        end = ends.get(room, 0)
        now = grown.pool[end - grown.counts[room] : end]
        at = np.searchsorted(now, ids)
        if len(now) < count or at[-1] == len(now) or not np.array_equal(now[at], ids):
            raise _rewritten(before, grown)
        begin += count


def _refuse_other_groups(before: PreparedDataset, were: Groups, grown: PreparedDataset, are: Groups) -> None:
    """Refuses a version whose first groups are not those of the version before."""
    num = len(were.table)
    if len(are.table) < num or not np.array_equal(are.members[: len(were.members)], were.members):
        raise _rewritten(before, grown)
    differing = np.flatnonzero((are.table[:num] != were.table).any(axis=1))
    if len(differing) == 1 and are.table[num - 1, 0] == were.table[-1, 0]:
        raise ValueError(
            f"group {were.table[-1, 0]} is in {before.name} already, and {grown.manifest.source} adds sequences to it: "
            "only whole groups are appended; number the new ones otherwise, or prepare it as a dataset of its own"
        )
    took, takes = were.resources, are.resources
    if len(differing) or (took is not None and takes is not None and not np.array_equal(takes[: len(took)], took)):
        raise _rewritten(before, grown)


def _rewritten(before: PreparedDataset, grown: PreparedDataset) -> ValueError:
    return ValueError(
        f"{grown.manifest.source} does not hold what {before.name} was prepared from, with sequences added: prepare it "
        "as a dataset of its own"
    )


def continued(before: PreparedDataset, opened: Opened) -> Opened:
    """Returns new rows with numbers that continue those of the version before."""
    assert before.manifest.inputs is not None
    rows = before.manifest.inputs.rows
    return replace(opened, ranges=[replace(each, first_index=each.first_index + rows) for each in opened.ranges])
