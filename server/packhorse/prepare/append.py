"""A dataset that grows: what the version before contributes to the next one.

Owns which options must stay, and how facts of both add up. Its pool is a run like any other, so nothing is read again.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, replace

import numpy as np

from packhorse.dataset import (
    INPUTS,
    MOST_LISTED,
    OVER_LENGTH,
    POOLS,
    SKIPPED,
    STARTS,
    InputRecord,
    Inputs,
    OverLengthLedger,
    PlanOptions,
    PreparedDataset,
    SkippedRow,
    read_records,
)
from packhorse.epoch import Groups
from packhorse.formats.files import absolute
from packhorse.prepare.input import Opened
from packhorse.prepare.passes.passes import RoomCounts, Run


def refuse_growth(
    before: PreparedDataset, opened: Opened, options: PlanOptions, *, groups_by: str | None, adds: bool
) -> None:
    """Refuses input and options that do not continue a dataset.

    Args:
        before: the dataset.
        opened: the input.
        options: what shapes its plan.
        groups_by: what says which rows of the input are a group; None for nothing.
        adds: whether the input holds new sequences only.

    Raises:
        ValueError: the message names each that differs.
    """
    manifest, inputs = before.manifest, before.manifest.inputs
    if inputs is None:
        raise ValueError(
            f"{before.name} does not say how many rows it was prepared from, as it is of an earlier release; prepare "
            "it again to append to it"
        )
    was = {**asdict(manifest.options), "id_column": manifest.id_column}
    now = {**asdict(options), "id_column": opened.columns.id}
    differing = [name for name in now if was[name] != now[name]]
    said = [f"--{name.replace('_', '-')} was {was[name]} and is {now[name]}" for name in differing]
    keys = [manifest.keys.column if manifest.keys else None, opened.keys.name if opened.keys else None]
    if keys[0] != keys[1]:
        its, theirs = (f"keys of column {column!r}" if column else "no keys" for column in keys)
        said.append(f"it has {its}, and --input gives {theirs}")
    were_by = manifest.groups.by if manifest.groups else None
    if were_by != groups_by:
        said_by = [f"by {by}" if by else "without groups" for by in (were_by, groups_by)]
        said.append(f"it was planned {said_by[0]}, and is to go on {said_by[1]}")
    if inputs.kind != opened.kind:
        said.append(f"it was prepared from {inputs.kind}, and --input is {opened.kind}")
    elif inputs.length_column != opened.columns.length:
        said.append(f"lengths came from column {inputs.length_column!r}, and come from {opened.columns.length!r}")
    elif not adds and sum(span.num_rows for span in opened.spans) <= inputs.rows:
        said.append(f"it was prepared from {inputs.rows:,} rows, and --input holds no more")
    elif adds and (again := _known(before, opened)):
        said.append(f"{again} is in it already, and has not changed since: give files of new sequences only")
    if said:
        raise ValueError(f"--append cannot continue {before.name}: {'; '.join(said)}")


def _known(before: PreparedDataset, opened: Opened) -> str | None:
    """Returns the first file that the dataset was prepared from before, as its name, size and time tell."""
    known = {(os.path.basename(file.name), file.size_bytes, file.modified_ns) for file in all_inputs(before)}
    for file in opened.files:
        path = absolute(file.path)
        if (os.path.basename(path), file.stamp.size_bytes, file.stamp.modified_ns) in known:
            return path
    return None


def refuse_rewritten(before: PreparedDataset, grown: PreparedDataset) -> None:
    """Refuses a version, prepared from all rows, that lacks an entry of the version before or says otherwise of it.

    Raises:
        ValueError: the message tells the way out.
    """
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
            f"group {were.table[-1, 0]} is in {before.name} already, and goes on in what {grown.manifest.source} adds: "
            "--append adds whole groups; number the new ones otherwise, or prepare it as a dataset of its own"
        )
    if len(differing):
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
    return replace(opened, spans=[replace(span, first_index=span.first_index + rows) for span in opened.spans])


def run_of(before: PreparedDataset) -> Run:
    """Returns its arrays as a run."""
    manifest = before.manifest
    return Run(
        ids=str(before.path / POOLS),
        first_tokens=str(before.path / STARTS) if manifest.start_dtype else None,
        over=str(before.path / OVER_LENGTH) if manifest.over_length.sequences else None,
    )


def counts_of(before: PreparedDataset | None) -> RoomCounts:
    """Returns how many of its entries have each room; nothing where there is no such version."""
    by_room = sorted(before.counts.items()) if before else []
    return (
        np.array([room for room, _ in by_room], dtype=np.int64),
        np.array([count for _, count in by_room], dtype=np.int64),
    )


def id_range(before: PreparedDataset) -> tuple[int, int]:
    """Returns its smallest and its largest id."""
    counts = [before.counts[length] for length in sorted(before.counts)]
    edges = np.concatenate(([0], np.cumsum(counts)))
    return int(before.pool[edges[:-1]].min()), int(before.pool[edges[1:] - 1].max())


def added_ledgers(before: OverLengthLedger, more: OverLengthLedger) -> OverLengthLedger:
    """Returns what the over-length policy did to both."""
    return OverLengthLedger(**{name: count + asdict(more)[name] for name, count in asdict(before).items()})


def all_inputs(before: PreparedDataset) -> Iterator[InputRecord]:
    """Yields every file that it was prepared from."""
    inputs = _inputs(before)
    is_short = inputs.num_files <= MOST_LISTED
    yield from inputs.files if is_short else read_records(before.path / INPUTS, InputRecord)


def all_skipped(before: PreparedDataset) -> Iterator[SkippedRow]:
    """Yields every row that was skipped of them."""
    skipped = _inputs(before).skipped
    is_short = skipped.rows <= MOST_LISTED
    yield from skipped.first if is_short else read_records(before.path / SKIPPED, SkippedRow)


def _inputs(before: PreparedDataset) -> Inputs:
    assert before.manifest.inputs is not None
    return before.manifest.inputs
