"""Messages about groups that cannot be planned: they do not fit a bin, or come again after other groups.

Owns the wording, and finding the rows to name. Leaves which groups fit to `_tally`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import PlanOptions, PreparedDataset
from packhorse.parameters import parameter
from packhorse.prepare.counting import exact_sum
from packhorse.prepare.groups._resources import SizeCounts
from packhorse.prepare.groups._whole_groups import WholeGroups, whole_groups
from packhorse.prepare.groups.grouping import Grouping
from packhorse.prepare.input import Opened

_MOST_ROWS_NAMED = 4
"""The most rows that an error names."""


class Refusal(NamedTuple):
    """Two texts about a group that does not fit a bin, which make one message."""

    why: str
    """Which group it is, and what it takes too much of."""
    way_out: str
    """What its user can do."""


def refusal_of(
    rows: WholeGroups,
    index: int,
    size: NDArray[np.int64],
    *,
    options: PlanOptions,
    sizes: SizeCounts,
    item_word: str,
) -> Refusal:
    """Returns why a group does not fit a bin, and the ways out.

    Args:
        rows: some groups.
        index: the index of the group among them.
        size: the group's size, tokens and then resources with a cap: int64 [d].
        options: options of the plan.
        sizes: the resources, and the capacities of a bin.
        item_word: the word for a group in messages: "group", or "sequence" if each row is a group.
    """
    begin, limit = int(rows.starts[index]), options.max_seq_len
    num_members = int(rows.sizes[index])
    row = rows.row_number(begin)
    named = f"sequence {rows.ids[begin]} (row {row})"
    if item_word == "group":
        named = f"group {rows.group_numbers[index]} (rows {row} to {row + num_members - 1}, {num_members} sequences)"
    or_drop = ", or choose " + parameter("over_length", "drop") + f", which leaves such {item_word}s out"
    if size[0] <= limit:  # its tokens fit, so a resource does not
        names = ["tokens", *(each.name for each in sizes.resources if each.cap is not None)]  # of the numbers of a size
        at = int(np.argmax(size > sizes.capacities))
        name = names[at]
        why = f"{named} takes {size[at]} of resource {name!r}, over its cap of {sizes.capacities[at]}"
        return Refusal(why, "raise the cap" + or_drop)
    extra = "" if options.rooms.is_plain else (" with align and " + parameter("extra_tokens"))
    tokens = exact_sum(rows.lengths[begin : begin + num_members])
    together = " together" if item_word == "group" else ""
    why = f"{named} has {tokens} tokens{together}, over " + parameter("max_seq_len") + f" {limit}" + extra
    way_out = "raise " + parameter("max_seq_len") + or_drop
    amounts = rows.resources[begin]  # of the sequence, if the group is a single one
    if item_word == "sequence" and amounts.any():  # so "split" cannot cut it
        at = int(np.argmax(amounts > 0))
        why += f", and takes {amounts[at]} of resource {sizes.resources[at].name!r}"
    elif item_word == "sequence" and len(amounts):
        way_out += ", or 'split', which cuts those into pieces that take nothing of any resource"
    return Refusal(why, way_out)


def refuse_repeated_group(
    numbers: NDArray[np.int64], opened: Opened, grouping: Grouping, before: PreparedDataset | None
) -> None:
    """Refuses a group whose number comes again after other groups; raises a ValueError that says where.

    Args:
        numbers: the number of every group, including groups left out and groups of the version before: int64 [G].
        opened: the rows.
        grouping: which of them are a group.
        before: the version to which they are added; None for a new dataset.
    """
    repeated = first_repeated(numbers)
    if repeated is None:
        return
    if before is not None and repeated in before.dropped_groups():
        raise ValueError(
            f"group {repeated} was left out of {before.name} as too long, and more of its sequences come: only whole "
            "groups are appended; leave these out, number them otherwise, or prepare all of the dataset again"
        )
    if before is not None and before.groups is not None and (before.groups.table[:, 0] == repeated).any():
        raise ValueError(
            f"group {repeated} is in {before.name} already, and more of its sequences come: only whole groups are "
            "appended; leave these out, or prepare all of the dataset again"
        )
    first_rows = [
        f"row {rows.first_row + int(rows.starts[at])}"
        for rows in whole_groups(opened.ranges, grouping)
        for at in np.flatnonzero(rows.group_numbers == repeated).tolist()
    ]
    raise ValueError(
        f"the rows of group {repeated} do not follow each other: it is in "
        f"{' and again in '.join(first_rows[:_MOST_ROWS_NAMED])}; sort the input by {grouping.column or 'group'}, so "
        "that each group's rows are together in their order"
    )


def first_repeated(numbers: NDArray[np.int64]) -> int | None:
    """Returns the smallest number that occurs twice; None if there is none."""
    if (numbers[1:] > numbers[:-1]).all():
        return None
    numbers = np.sort(numbers)
    is_same = numbers[1:] == numbers[:-1]
    return int(numbers[int(np.argmax(is_same))]) if is_same.any() else None
