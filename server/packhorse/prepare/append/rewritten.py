"""Whether a new version still holds all that the version before held, if its input holds old and new rows together.

Leaves what is compared before any row is read to `continuing`.
"""

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import PreparedDataset
from packhorse.epoch import Groups


def refuse_rewritten(before: PreparedDataset, grown: PreparedDataset) -> None:
    """Refuses a new version, prepared from all rows, that lacks or changes an entry of the version before.

    Args:
        before: the version before.
        grown: the new version, complete but without its final name.

    Raises:
        ValueError: a key, an id, its room, a first token, or a group is missing or has changed.
    """
    if before.keys is not None and not (grown.keys and grown.keys.begins_with(before.keys)):
        raise _rewritten(before, grown)
    if before.groups is not None and grown.groups is not None:
        _refuse_other_groups(before, before.groups, grown, grown.groups)
        return  # the pool holds numbers of groups, whose members were compared
    _refuse_added_pieces(before, grown)
    new_ranges = _pool_ranges(grown)
    for room, (begin, end) in _pool_ranges(before).items():
        new_begin, new_end = new_ranges.get(room, (0, 0))  # of a room that the new version lacks: no ids
        old, new = slice(begin, end), slice(new_begin, new_end)
        old_ids, new_ids = before.pool[old], grown.pool[new]
        # Where each old entry must be: ids ascend, and the pieces of one sequence follow each other.
        # old [3, 7, 7] in new [3, 5, 7, 7]: the ids begin at [0, 2, 2], and the second piece of 7 is one further.
        at = np.searchsorted(new_ids, old_ids) + np.arange(len(old_ids)) - np.searchsorted(old_ids, old_ids)
        if at.max() >= len(new_ids) or not np.array_equal(new_ids[at], old_ids):
            raise _rewritten(before, grown)
        if before.first_tokens is not None and not (
            grown.first_tokens is not None and np.array_equal(grown.first_tokens[new][at], before.first_tokens[old])
        ):
            raise _rewritten(before, grown)


def _refuse_added_pieces(before: PreparedDataset, grown: PreparedDataset) -> None:
    """Refuses a version that has more entries of the old rows: one grew into pieces, or came back after it was dropped.

    Only ids that are row numbers tell which rows are old; rows with ids of their own are appended without the old ones.
    """
    inputs = before.manifest.inputs
    if before.manifest.id_column is not None or inputs is None:
        return
    if np.count_nonzero(grown.pool < inputs.rows) != len(before.pool):
        raise _rewritten(before, grown)


def _pool_ranges(dataset: PreparedDataset) -> dict[int, tuple[int, int]]:
    """Returns the half-open range of the pool that each room has."""
    plan = dataset.plan
    rooms = zip(plan.lengths.tolist(), plan.pool_starts.tolist(), plan.counts.tolist(), strict=True)
    return {room: (begin, begin + count) for room, begin, count in rooms}


def _refuse_other_groups(before: PreparedDataset, old: Groups, grown: PreparedDataset, new: Groups) -> None:
    """Refuses a version whose first groups are not exactly those before, with their first tokens and resources."""
    num_groups = len(old.table)
    if len(new.table) < num_groups or not np.array_equal(new.members[: len(old.members)], old.members):
        raise _rewritten(before, grown)
    changed_groups = np.flatnonzero((new.table[:num_groups] != old.table).any(axis=1))
    last = num_groups - 1
    (old_number, _), (new_number, _) = old.table[last], new.table[last]  # (number, end of its members)
    if changed_groups.tolist() == [last] and old_number == new_number:  # the last group only ends later
        raise ValueError(
            f"group {old_number} is in {before.name} already, and {grown.manifest.source} adds sequences to it: "
            "only whole groups are appended; number the new ones otherwise, or prepare it as a dataset of its own"
        )
    if len(changed_groups):
        raise _rewritten(before, grown)
    if not np.array_equal(_first_tokens(new, len(old.members)), _first_tokens(old, len(old.members))):
        raise _rewritten(before, grown)
    if old.resources is None or new.resources is None:  # then both have none: the columns were compared before
        return
    if not np.array_equal(new.resources[: len(old.resources)], old.resources):
        raise _rewritten(before, grown)


def _first_tokens(groups: Groups, num_members: int) -> NDArray[np.integer]:
    """Returns the first tokens of the first members of groups."""
    if groups.first_tokens is None:
        return np.zeros(num_members, dtype=np.uint32)
    return groups.first_tokens[:num_members]


def _rewritten(before: PreparedDataset, grown: PreparedDataset) -> ValueError:
    """Returns the error for a version that does not hold what the version before held."""
    return ValueError(
        f"{grown.manifest.source} does not hold what {before.name} was prepared from, with sequences added: prepare it "
        "as a dataset of its own"
    )
