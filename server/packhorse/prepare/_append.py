"""Appending to a dataset: which input and options may continue it, and whether the new version still holds the old one.

Owns the checks before any row is read, the numbers of new rows, and the check at the end, needed if the input holds old
and new rows together. Leaves joining old and new counts and arrays to `totals` and `_merging`, for which the version
before is one more spill, so that its input is not read again.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, replace

import numpy as np

from packhorse.dataset import Inputs, Manifest, PlanOptions, PreparedDataset
from packhorse.epoch import Groups
from packhorse.formats.files import absolute
from packhorse.parameters import parameter
from packhorse.prepare.input import Opened, Resource
from packhorse.prepare.records.inputs import inputs_of


def refuse_other_input(
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
    differences = [
        *_option_differences(manifest.options, options),
        *_rule_differences(manifest, opened, groups_by),
        *_input_differences(before, inputs, opened, adds=adds),
    ]
    _refuse_differences(before, differences)


def _rule_differences(manifest: Manifest, opened: Opened, groups_by: str | None) -> Iterator[str]:
    """Yields differences in columns of ids and keys, groups and resources; see `refuse_other_input`."""
    if manifest.id_column != opened.columns.id:
        yield f"id_column was {manifest.id_column} and is {opened.columns.id}"
    old_key, new_key = manifest.keys.column if manifest.keys else None, opened.keys.name if opened.keys else None
    if old_key != new_key:
        old, new = (f"keys of column {column!r}" if column else "no keys" for column in (old_key, new_key))
        yield f"it has {old}, and the input gives {new}"
    old_rule = manifest.groups.by if manifest.groups else None
    if old_rule != groups_by:
        old, new = (f"by {rule}" if rule else "without groups" for rule in (old_rule, groups_by))
        yield f"it was planned {old}, and the input is {new}"
    old_resources = tuple(
        Resource(name=each.name, column=each.column, cap=each.cap, cost=each.cost) for each in manifest.resources
    )
    if old_resources != opened.columns.resources:
        old, new = (", ".join(map(str, resources)) or "none" for resources in (old_resources, opened.columns.resources))
        yield f"its resources were {old}, and are {new}"


def _input_differences(before: PreparedDataset, inputs: Inputs, opened: Opened, *, adds: bool) -> Iterator[str]:
    """Yields the first reason, if any, for which an input does not continue `inputs`; see `refuse_other_input`."""
    if inputs.kind != opened.kind:
        yield f"it was prepared from {inputs.kind}, and the input is {opened.kind}"
    elif inputs.length_column != opened.columns.length:
        yield f"lengths came from column {inputs.length_column!r}, and come from {opened.columns.length!r}"
    elif not adds and opened.num_rows <= inputs.rows:
        yield f"it was prepared from {inputs.rows:,} rows, and the input holds no more"
    elif adds and (path := _file_in_both(before, opened)):
        yield f"{path} is in it already and has not changed: give files of new sequences only"


def refuse_other_options(before: PreparedDataset, options: PlanOptions) -> None:
    """Refuses options that differ from a dataset's; raises a ValueError that names each difference."""
    _refuse_differences(before, _option_differences(before.manifest.options, options))


def _option_differences(old: PlanOptions, new: PlanOptions) -> list[str]:
    old_values, new_values = asdict(old), asdict(new)
    return [
        f"{name} was {old_values[name]} and is {value}"
        for name, value in new_values.items()
        if value != old_values[name]
    ]


def _refuse_differences(before: PreparedDataset, differences: list[str]) -> None:
    if differences:
        raise ValueError(parameter("append") + f" cannot continue {before.name}: {'; '.join(differences)}")


def _file_in_both(before: PreparedDataset, opened: Opened) -> str | None:
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
    num_before = before.manifest.inputs.rows
    return replace(opened, ranges=[replace(each, first_index=each.first_index + num_before) for each in opened.ranges])


def refuse_rewritten(before: PreparedDataset, grown: PreparedDataset) -> None:
    """Refuses a new version, prepared from all rows, that lacks or changes an entry of the version before.

    Args:
        before: the version before.
        grown: the new version, complete but without its final name.

    Raises:
        ValueError: a key, an id, its room or its group is missing or has changed.
    """
    if before.keys is not None and not (grown.keys and grown.keys.begins_with(before.keys)):
        raise _rewritten(before, grown)
    if before.groups is not None and grown.groups is not None:
        _refuse_other_groups(before, before.groups, grown, grown.groups)
        return  # the pool holds numbers of groups, whose members were compared
    # For each room, every id of the old pool must be among the new pool's ids of this room; both ascend.
    new_ranges = _pool_ranges(grown)
    for room, (begin, end) in _pool_ranges(before).items():
        old_ids = before.pool[begin:end]
        new_begin, new_end = new_ranges.get(room, (0, 0))  # of a room that the new version lacks: no ids
        new_ids = grown.pool[new_begin:new_end]
        at = np.searchsorted(new_ids, old_ids)  # the last of these is the greatest
        if len(new_ids) < len(old_ids) or at[-1] == len(new_ids) or not np.array_equal(new_ids[at], old_ids):
            raise _rewritten(before, grown)


def _pool_ranges(dataset: PreparedDataset) -> dict[int, tuple[int, int]]:
    """Returns the half-open range of the pool that each room has."""
    plan = dataset.plan
    rooms = zip(plan.lengths.tolist(), plan.pool_starts.tolist(), plan.counts.tolist(), strict=True)
    return {room: (begin, begin + count) for room, begin, count in rooms}


def _refuse_other_groups(before: PreparedDataset, old: Groups, grown: PreparedDataset, new: Groups) -> None:
    """Refuses a version whose first groups are not exactly the groups of the version before."""
    num_groups = len(old.table)
    if len(new.table) < num_groups or not np.array_equal(new.members[: len(old.members)], old.members):
        raise _rewritten(before, grown)
    changed_groups = np.flatnonzero((new.table[:num_groups] != old.table).any(axis=1))
    last = num_groups - 1
    (old_number, _), (new_number, _) = old.table[last], new.table[last]  # (number, end of its members)
    if changed_groups.tolist() == [last] and old_number == new_number:  # the last group now ends later
        raise ValueError(
            f"group {old_number} is in {before.name} already, and {grown.manifest.source} adds sequences to it: "
            "only whole groups are appended; number the new ones otherwise, or prepare it as a dataset of its own"
        )
    if len(changed_groups):
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
