"""Whether input and options continue a dataset: the checks before any row is read, and the numbers of new rows.

Leaves whether the new version holds what the old one held to `rewritten`, and joining old and new counts and arrays to
`totals` and `_merging`. For the latter the version before is one more spill (ids sorted by room, as each task writes
them), so that its input is not read again.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, replace

from packhorse.dataset import Inputs, Manifest, PlanOptions, PreparedDataset
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
    old_key = manifest.keys.column if manifest.keys else None
    new_key = opened.keys.name if opened.keys else None
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
    """Yields the first difference, if any, from the `inputs` of the version before; see `refuse_other_input`."""
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
    """Returns every option that has another value, with both."""
    old_values, new_values = asdict(old), asdict(new)
    return [
        f"{name} was {old_values[name]} and is {value}"
        for name, value in new_values.items()
        if value != old_values[name]
    ]


def _refuse_differences(before: PreparedDataset, differences: list[str]) -> None:
    """Raises a ValueError that names the differences, if there are any."""
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
    assert before.manifest.inputs is not None  # `refuse_other_input` refuses a version without them
    num_before = before.manifest.inputs.rows
    return replace(opened, ranges=[replace(each, first_index=each.first_index + num_before) for each in opened.ranges])
