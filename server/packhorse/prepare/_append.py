"""Appending to a dataset: which input and options may continue it, and whether the new version still holds the old one.

Owns the checks before any row is read, the numbers of new rows, and the check at the end, needed if the input holds old
and new rows together. Leaves joining old and new counts and arrays to `totals` and `_merging`, for which the version
before is one more spill, so that its input is not read again.
"""

import os
from dataclasses import asdict, replace

import numpy as np

from packhorse.dataset import PlanOptions, PreparedDataset
from packhorse.epoch import Groups
from packhorse.formats.files import absolute
from packhorse.parameters import parameter
from packhorse.prepare.input import Opened, Resource
from packhorse.prepare.records.inputs import inputs_of


def refuse_growth(
    before: PreparedDataset, opened: Opened, options: PlanOptions, *, groups_by: str | None, adds: bool
) -> None:
    """Refuses input and options that do not continue a dataset; raises a ValueError that names each difference.

    Args:
        before: the dataset to append to.
        opened: the new input.
        options: the new plan's options.
        groups_by: how the new rows form groups, as in `GroupRecord.by`; None if they form none.
        adds: whether the input holds new sequences only; if not, it holds the earlier ones too.
    """
    manifest, inputs = before.manifest, before.manifest.inputs
    if inputs is None:
        raise ValueError(
            f"{before.name} was prepared by an earlier release and does not say from how many rows; prepare it again "
            "to append to it"
        )
    differences = _differing(manifest.options, options)
    if manifest.id_column != opened.columns.id:
        differences.append(f"id_column was {manifest.id_column} and is {opened.columns.id}")
    columns = (manifest.keys.column if manifest.keys else None, opened.keys.name if opened.keys else None)
    old, new = (f"keys of column {column!r}" if column else "no keys" for column in columns)
    if old != new:
        differences.append(f"it has {old}, and the input gives {new}")
    rules = (manifest.groups.by if manifest.groups else None, groups_by)
    old, new = (f"by {rule}" if rule else "without groups" for rule in rules)
    if old != new:
        differences.append(f"it was planned {old}, and the input is {new}")
    old_resources = tuple(
        Resource(name=each.name, column=each.column, cap=each.cap, cost=each.cost) for each in manifest.resources
    )
    if old_resources != opened.columns.resources:
        old, new = (", ".join(map(str, some)) or "none" for some in (old_resources, opened.columns.resources))
        differences.append(f"its resources were {old}, and are {new}")
    if inputs.kind != opened.kind:
        differences.append(f"it was prepared from {inputs.kind}, and the input is {opened.kind}")
    elif inputs.length_column != opened.columns.length:
        differences.append(
            f"lengths came from column {inputs.length_column!r}, and come from {opened.columns.length!r}"
        )
    elif not adds and opened.num_rows <= inputs.rows:
        differences.append(f"it was prepared from {inputs.rows:,} rows, and the input holds no more")
    elif adds and (again := _known(before, opened)):
        differences.append(f"{again} is in it already and has not changed: give files of new sequences only")
    _refuse(before, differences)


def refuse_other_options(before: PreparedDataset, options: PlanOptions) -> None:
    """Refuses options that differ from a dataset's; raises a ValueError that names each difference."""
    _refuse(before, _differing(before.manifest.options, options))


def _differing(was: PlanOptions, now: PlanOptions) -> list[str]:
    before, after = asdict(was), asdict(now)
    return [f"{name} was {before[name]} and is {after[name]}" for name in after if before[name] != after[name]]


def _refuse(before: PreparedDataset, differences: list[str]) -> None:
    if differences:
        raise ValueError(parameter("append") + f" cannot continue {before.name}: {'; '.join(differences)}")


def _known(before: PreparedDataset, opened: Opened) -> str | None:
    """Returns the first input file with the name, size and time of one that the dataset was prepared from."""
    known = {(os.path.basename(file.name), file.size_bytes, file.modified_ns) for file in inputs_of(before)}
    for file in opened.files:
        path = absolute(file.path)
        if (os.path.basename(path), file.stamp.size_bytes, file.stamp.modified_ns) in known:
            return path
    return None


def continued(before: PreparedDataset, opened: Opened) -> Opened:
    """Returns the new input with row numbers that continue those of the version before."""
    assert before.manifest.inputs is not None
    rows = before.manifest.inputs.rows
    return replace(opened, ranges=[replace(each, first_index=each.first_index + rows) for each in opened.ranges])


def refuse_rewritten(before: PreparedDataset, grown: PreparedDataset) -> None:
    """Refuses a new version, prepared from all rows, that lacks or changes an entry of the version before.

    Args:
        before: the version before.
        grown: the new version, complete but without its final name.

    Raises:
        ValueError: a key, an id, its room or its group is missing or another one.
    """
    if before.keys is not None and not (grown.keys and grown.keys.begins_with(before.keys)):
        raise _rewritten(before, grown)
    if before.groups is not None and grown.groups is not None:
        _refuse_other_groups(before, before.groups, grown, grown.groups)
        return  # the pool holds numbers of groups, whose members were compared
    # For each room, every id of the old pool must be among the new pool's ids of this room; both ascend.
    ends = dict(zip(grown.plan.lengths.tolist(), np.cumsum(grown.plan.counts).tolist(), strict=True))
    begin = 0
    for room, count in zip(before.plan.lengths.tolist(), before.plan.counts.tolist(), strict=True):
        ids = before.pool[begin : begin + count]
        end = ends.get(room, 0)
        now = grown.pool[end - grown.counts[room] : end]
        at = np.searchsorted(now, ids)  # the last of these is the greatest
        if len(now) < count or at[-1] == len(now) or not np.array_equal(now[at], ids):
            raise _rewritten(before, grown)
        begin += count


def _refuse_other_groups(before: PreparedDataset, old: Groups, grown: PreparedDataset, new: Groups) -> None:
    """Refuses a version whose first groups are not exactly the groups of the version before."""
    num_groups = len(old.table)
    if len(new.table) < num_groups or not np.array_equal(new.members[: len(old.members)], old.members):
        raise _rewritten(before, grown)
    differing = np.flatnonzero((new.table[:num_groups] != old.table).any(axis=1))
    last_id = old.table[-1, 0]
    if differing.tolist() == [num_groups - 1] and new.table[num_groups - 1, 0] == last_id:  # it now ends later
        raise ValueError(
            f"group {last_id} is in {before.name} already, and {grown.manifest.source} adds sequences to it: "
            "only whole groups are appended; number the new ones otherwise, or prepare it as a dataset of its own"
        )
    if len(differing):
        raise _rewritten(before, grown)
    if old.resources is None or new.resources is None:
        return
    if not np.array_equal(new.resources[: len(old.resources)], old.resources):
        raise _rewritten(before, grown)


def _rewritten(before: PreparedDataset, grown: PreparedDataset) -> ValueError:
    return ValueError(
        f"{grown.manifest.source} does not hold what {before.name} was prepared from, with sequences added: prepare it "
        "as a dataset of its own"
    )
