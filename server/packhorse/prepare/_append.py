"""Appending to a dataset: which input and options continue it, and whether the new version still holds the old one.

Leaves how counts and arrays of both are joined to `_counting` and `_spills`: the version before is one more spill, so
no input of it is read again. Groups with resources are sorted again, from its tables.
"""

import os
from dataclasses import asdict, replace

import numpy as np

from packhorse.dataset import (
    PlanOptions,
    PreparedDataset,
)
from packhorse.epoch import Groups
from packhorse.formats.files import absolute
from packhorse.parameters import parameter
from packhorse.prepare._records import inputs_of
from packhorse.prepare.input import Opened, Resource


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
    said = _differing(manifest.options, options)
    if manifest.id_column != opened.columns.id:
        said.append(f"id_column was {manifest.id_column} and is {opened.columns.id}")
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
    _refuse(before, said)


def refuse_other_options(before: PreparedDataset, options: PlanOptions) -> None:
    """Refuses options that do not continue a dataset, whatever the input; a ValueError that names each difference."""
    _refuse(before, _differing(before.manifest.options, options))


def _differing(was: PlanOptions, now: PlanOptions) -> list[str]:
    before, after = asdict(was), asdict(now)
    return [f"{name} was {before[name]} and is {after[name]}" for name in after if before[name] != after[name]]


def _refuse(before: PreparedDataset, said: list[str]) -> None:
    if said:
        raise ValueError(parameter("append") + f" cannot continue {before.name}: {'; '.join(said)}")


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
