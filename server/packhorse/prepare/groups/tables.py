"""The tables of groups and their members, written in one pass over the rows, in order.

Owns `gather_groups`, and what it gives: rows again, one for each group, so that every later pass is the same with and
without groups. Leaves which rows are a group to `groups.grouping`, and those that are too long or come twice to
`groups._tally`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import (
    DROPPED_GROUPS,
    GROUPS,
    MEMBER_ORDER,
    MEMBERS,
    OVER_LENGTH,
    GroupRecord,
    OverLengthLedger,
    PlanOptions,
    PreparedDataset,
    create_array,
    growing_array,
    write_entries,
)
from packhorse.jobs import Progress
from packhorse.packing import PackingPlan
from packhorse.prepare.append import added_ledgers
from packhorse.prepare.groups._tally import GroupTally, refuse_repeated_group, refuse_repeated_id
from packhorse.prepare.groups.grouping import Grouping, WholeGroups, groups_of_version, whole_groups
from packhorse.prepare.input import InputColumns, Opened, RawRows, Span, cut, map_array
from packhorse.topology import RoomRule


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """Groups, with their tables written; those of the version that is appended to included."""

    read: Opened
    """The sequences."""
    opened: Opened
    """The new groups: a row each, whose length is the sum of its sequences' rooms."""
    options: PlanOptions
    """What the sequences' plan is shaped by."""
    by: str
    n_groups: int
    n_dropped: int
    n_dropped_listed: int
    n_sequences: int
    own_tokens: int
    over_length: OverLengthLedger
    ids_sum: tuple[int, int]
    id_dtype: Literal["uint32", "int64"]
    ids_ascend: bool
    most_by_room: NDArray[np.int64]
    """Sequences of the largest group of each room: int64 [max_seq_len + 1]."""

    @property
    def array_bytes(self) -> int:
        """What the tables take on disk."""
        order_bytes = 0 if self.ids_ascend else 8 * self.n_sequences
        return 16 * (self.n_groups + self.n_sequences) + order_bytes + 8 * self.n_dropped_listed

    def record(self, plan: PackingPlan) -> GroupRecord:
        """Returns what the manifest says of them."""
        per_bin = max(int(self.most_by_room[list(template)].sum()) for template in plan.templates)
        return GroupRecord(
            by=self.by,
            n_groups=self.n_groups,
            n_dropped=self.n_dropped,
            most_sequences=int(self.most_by_room.max()),
            max_sequences_per_bin=min(per_bin, self.n_sequences),
            ids_ascend=self.ids_ascend,
            n_dropped_listed=self.n_dropped_listed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpan(Span):
    """Consecutive groups of tables that are written."""

    folder: str
    rooms: RoomRule

    def _read(self) -> Iterator[RawRows]:
        table = map_array(Path(self.folder, GROUPS))
        members = map_array(Path(self.folder, MEMBERS))
        ends = np.array(table[self.first_row : self.first_row + self.num_rows, 1])
        begin = int(table[self.first_row - 1, 1]) if self.first_row else 0
        rooms = self.rooms.room(np.array(members[begin : int(ends[-1]), 1]))
        yield RawRows(np.add.reduceat(rooms, np.concatenate(([0], ends[:-1] - begin))))


def gather_groups(
    opened: Opened,
    grouping: Grouping,
    options: PlanOptions,
    folder: Path,
    progress: Progress,
    before: PreparedDataset | None = None,
) -> Grouped:
    """Reads every row once, in order, and writes the tables of groups and members.

    Memory holds a batch of rows, 8 bytes for each group and, where ids do not ascend, 17 for each sequence.

    Args:
        opened: the sequences.
        grouping: which of them are a group.
        options: what shapes the plan; `over_length` is "error" or "drop".
        folder: where groups.npy, members.npy and, where needed, dropped_groups.npy, member_order.npy and
            over_length.npy are written.
        progress: shows rows.
        before: the grouped version to whose groups these are added.

    Raises:
        ValueError: a group is too long, its rows are apart, the version before holds some of them or left the group
            out, an id comes twice, or nothing is left.
    """
    num_rows = sum(span.num_rows for span in opened.spans)
    grouping.check_rows(num_rows)
    tally = GroupTally(options)
    dropped = [np.empty(0, dtype=np.int64) if before is None else before.dropped_groups()]
    keys = [*dropped]
    with (
        growing_array(folder / GROUPS, "int64", 2) as add_groups,
        growing_array(folder / MEMBERS, "int64", 2) as add_members,
        progress.task("gathering groups", num_rows, "sequences") as advance,
    ):

        def add(rows: WholeGroups) -> None:
            kept = tally.add(rows)
            add_groups(np.stack((rows.keys[kept], tally.ends), axis=1))
            add_members(tally.members)
            if grouping.size is None:
                keys.append(rows.keys)
                dropped.append(rows.keys[~kept])

        for rows in groups_of_version(before):
            add(rows)
        num_before = tally.num_groups
        for rows in whole_groups(opened.spans, grouping):
            add(rows)
            advance(len(rows.lengths))
    for file in (*opened.files, *grouping.files):
        file.check()
    refuse_repeated_group(np.concatenate(keys), opened, grouping, before)
    if tally.num_groups == num_before:
        raise ValueError(
            f"all {tally.num_dropped:,} groups of the input are over max_seq_len {options.max_seq_len} and dropped; "
            "raise --max-seq-len"
        )
    if not tally.ids_ascend:
        ids = np.array(map_array(folder / MEMBERS)[:, 0])
        refuse_repeated_id(ids, opened, before)
        _write(folder / MEMBER_ORDER, np.argsort(ids))
    all_dropped = np.sort(np.concatenate(dropped))
    if len(all_dropped):
        _write(folder / DROPPED_GROUPS, all_dropped)
    ledger, over = tally.ledger, tally.over
    if before is not None:
        ledger, over = added_ledgers(before.manifest.over_length, ledger), [before.over_length(), *over]
    if ledger.sequences:
        members = np.concatenate(over)
        _write(folder / OVER_LENGTH, members[np.argsort(members[:, 0], kind="stable")])
    groups_before = before.manifest.groups if before else None
    return Grouped(
        read=opened,
        opened=_opened_tables(folder, options.rooms, num_before, tally.num_groups),
        options=options,
        by=grouping.said,
        n_groups=tally.num_groups,
        n_dropped=tally.num_dropped + (groups_before.n_dropped if groups_before else 0),
        n_dropped_listed=len(all_dropped),
        n_sequences=tally.num_sequences,
        own_tokens=tally.own_tokens,
        over_length=ledger,
        ids_sum=tally.ids_sum,
        id_dtype=tally.id_dtype,
        ids_ascend=tally.ids_ascend,
        most_by_room=tally.most_by_room,
    )


def options_of_groups(options: PlanOptions) -> PlanOptions:
    """Returns what shapes the plan over groups, whose lengths are sums of rooms already."""
    return replace(options, over_length="error", align=1, extra_tokens=0)


def _opened_tables(folder: Path, rooms: RoomRule, num_before: int, num_groups: int) -> Opened:
    """Returns the groups of the tables in a folder as rows, but for the first `num_before`."""
    spans = [
        GroupSpan(
            path=str(folder / GROUPS),
            stamp=None,
            first_row=num_before + first,
            first_index=num_before + first,
            num_rows=size,
            columns=InputColumns(),
            folder=str(folder),
            rooms=rooms,
        )
        for first, size in cut(num_groups - num_before)
    ]
    return Opened(kind="groups", spans=spans, files=[], columns=InputColumns())


def _write(path: Path, entries: NDArray[np.int64]) -> None:
    create_array(path, "int64", entries.shape)
    write_entries(path, 0, entries)
