"""Checking that a new version of a dataset still holds all of the version before.

Owns the comparison of two prepared datasets, needed if the input holds old and new rows together. Checks before any
row is read are in `_append`.
"""

import numpy as np

from packhorse.dataset import (
    PreparedDataset,
)
from packhorse.epoch import Groups


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
        return
    # For each room, every id of the old pool must be among the new pool's ids of this room; both ascend.
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
    """Refuses a version whose first groups are not exactly the groups of the version before."""
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
