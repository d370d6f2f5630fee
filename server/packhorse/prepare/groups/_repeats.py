"""What comes twice where sequences are grouped: a group whose rows are apart, and an id.

Owns both refusals, which say in which rows it is. Leaves what is compared to `groups.tables`.
"""

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import PreparedDataset
from packhorse.prepare.groups.grouping import Grouping, whole_groups
from packhorse.prepare.input import Opened
from packhorse.prepare.passes.duplicates import duplicate_error
from packhorse.prepare.passes.passes import find_rows

_MOST_ROWS_NAMED = 4


def refuse_repeated_group(
    keys: NDArray[np.int64], opened: Opened, grouping: Grouping, before: PreparedDataset | None
) -> None:
    """Refuses a group that comes again; a ValueError that says where.

    Args:
        keys: of every group, those that were left out and those of the version before included: int64 [G].
        opened: the rows.
        grouping: which of them are a group.
        before: the version that they are added to.
    """
    repeated = _repeated(keys)
    if repeated is None:
        return
    if before is not None and repeated in before.dropped_groups():
        raise ValueError(
            f"group {repeated} was left out of {before.name} as too long, and more of its sequences come: --append "
            "adds whole groups; leave these out, number them otherwise, or prepare all of the dataset again"
        )
    if before is not None and before.groups is not None and (before.groups.table[:, 0] == repeated).any():
        raise ValueError(
            f"group {repeated} is in {before.name} already, and more of its sequences come: --append adds whole "
            "groups; leave these out, or prepare all of the dataset again"
        )
    stretches = [
        f"row {rows.first + int(rows.starts[at])}"
        for rows in whole_groups(opened.spans, grouping)
        for at in np.flatnonzero(rows.keys == repeated).tolist()
    ]
    raise ValueError(
        f"the rows of group {repeated} do not follow each other: it is in "
        f"{' and again in '.join(stretches[:_MOST_ROWS_NAMED])}; sort the input by {grouping.column or 'group'}, so "
        "that each group's rows stand together in their order"
    )


def refuse_repeated_id(ids: NDArray[np.int64], opened: Opened, before: PreparedDataset | None) -> None:
    """Refuses an id that comes twice; a ValueError that says where.

    Args:
        ids: of all sequences, those of the version before included: int64 [n].
        opened: the rows.
        before: the version that they are added to.
    """
    repeated = _repeated(ids)
    if repeated is not None:
        raise duplicate_error(repeated, find_rows((opened.spans, repeated)), before)


def _repeated(numbers: NDArray[np.int64]) -> int | None:
    """Returns the smallest number that comes again; None where none does."""
    if (numbers[1:] > numbers[:-1]).all():
        return None
    numbers = np.sort(numbers)
    is_same = numbers[1:] == numbers[:-1]
    return int(numbers[int(np.argmax(is_same))]) if is_same.any() else None
