"""What groups come to: how many there are, their sequences, and those that are too long.

Owns what becomes of a group that does not fit a bin. Leaves reading groups to `groups.grouping`, and their tables to
`groups.tables`.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import OverLengthLedger, PlanOptions, PreparedDataset
from packhorse.prepare.groups.grouping import Grouping, WholeGroups, whole_groups
from packhorse.prepare.input import Opened
from packhorse.prepare.passes.duplicates import duplicate_error
from packhorse.prepare.passes.passes import exact_sum, find_rows, stored_dtype
from packhorse.wire import ids_sum


class GroupTally:
    """What was found so far; `add` is told of groups in their order."""

    def __init__(self, options: PlanOptions) -> None:
        self._options = options
        self._rule = options.rooms
        self._last_id = -(2**63)
        self.num_groups = self.num_dropped = self.num_sequences = self.own_tokens = 0
        self.ids_ascend = True
        self.ids_sum = (0, 0)
        self._id_range = (2**63 - 1, -(2**63))
        self.ledger = OverLengthLedger()
        self.over: list[NDArray[np.int64]] = []
        self.most_by_room = np.zeros(options.max_seq_len + 1, dtype=np.int64)
        self.ends: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        """Where the members of the groups added last end."""
        self.members: NDArray[np.int64] = np.empty((0, 2), dtype=np.int64)
        """(id, length) of these members: int64 [n, 2]."""

    @property
    def id_dtype(self) -> Literal["uint32", "int64"]:
        """What the ids of the sequences fit into."""
        return stored_dtype(*self._id_range)

    def add(self, rows: WholeGroups) -> NDArray[np.bool_]:
        """Counts groups, and tells which of them are kept."""
        limit = self._options.max_seq_len
        sizes = np.diff(np.append(rows.starts, len(rows.lengths)))
        rooms = self._rule.room(np.minimum(rows.lengths, limit + 1))  # a column may hold anything
        group_rooms = np.add.reduceat(rooms, rows.starts)
        is_kept = group_rooms <= limit
        members = np.stack((rows.ids, rows.lengths), axis=1)
        if not is_kept.all():
            self._leave_out(rows, int(np.argmin(is_kept)), sizes, members[np.repeat(~is_kept, sizes)])
            self.num_dropped += int((~is_kept).sum())
            members = members[np.repeat(is_kept, sizes)]
        self.ends = self.num_sequences + np.cumsum(sizes[is_kept])
        self.members = members
        self.num_groups += int(is_kept.sum())
        self.num_sequences += len(members)
        np.maximum.at(self.most_by_room, group_rooms[is_kept], sizes[is_kept])
        if len(members):
            ids = np.ascontiguousarray(members[:, 0])
            self.own_tokens += int(members[:, 1].sum())
            self._id_range = (min(self._id_range[0], int(ids.min())), max(self._id_range[1], int(ids.max())))
            self.ids_ascend &= int(ids[0]) > self._last_id and bool((ids[1:] > ids[:-1]).all())
            self._last_id = int(ids[-1])
            a, b = ids_sum(ids, None)
            self.ids_sum = ((self.ids_sum[0] + a) % 2**64, (self.ids_sum[1] + b) % 2**64)
        return is_kept

    def _leave_out(self, rows: WholeGroups, which: int, sizes: NDArray[np.int64], members: NDArray[np.int64]) -> None:
        """Refuses a group that is too long, or takes its members, and those of others like it, into the ledger."""
        if self._options.over_length == "error":
            begin, size = int(rows.starts[which]), int(sizes[which])
            tokens = exact_sum(rows.lengths[begin : begin + size])
            extra = "" if self._rule.is_plain else " with align and extra_tokens"
            raise ValueError(
                f"group {rows.keys[which]} (rows {rows.first + begin} to {rows.first + begin + size - 1}, {size} "
                f"sequences) has {tokens} tokens together, over max_seq_len {self._options.max_seq_len}{extra}; raise "
                "--max-seq-len, or choose --over-length drop, which leaves out whole groups"
            )
        tokens = exact_sum(members[:, 1])
        self.over.append(members)
        self.ledger = OverLengthLedger(
            sequences=self.ledger.sequences + len(members),
            source_tokens=self.ledger.source_tokens + tokens,
            tokens=self.ledger.tokens + tokens,
        )


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
