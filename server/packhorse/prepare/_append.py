"""Appending to a dataset: which input and options may continue it.

Owns the checks before any row is read, and the numbers of new rows. Joining old and new counts and arrays is in
`counting` and `_spills`, for which the version before is one more sorted file, so its input is not read again. Whether
a new version still holds the old one is checked at the end, in `_rewritten`.
"""

import os
from dataclasses import asdict, replace

from packhorse.dataset import (
    PlanOptions,
    PreparedDataset,
)
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
    """Refuses options that differ from a dataset's; raises a ValueError that names each difference."""
    _refuse(before, _differing(before.manifest.options, options))


def _differing(was: PlanOptions, now: PlanOptions) -> list[str]:
    before, after = asdict(was), asdict(now)
    return [f"{name} was {before[name]} and is {after[name]}" for name in after if before[name] != after[name]]


def _refuse(before: PreparedDataset, said: list[str]) -> None:
    if said:
        raise ValueError(parameter("append") + f" cannot continue {before.name}: {'; '.join(said)}")


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
