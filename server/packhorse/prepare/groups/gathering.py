"""The pass before all others, if there are groups: writes the tables of groups and members, and gives groups as rows.

Owns `gather_groups` and its result, in which each group is one row, so that every later pass is the same with and
without groups. Leaves which rows are a group to `grouping`, which groups fit a bin to `_tally`, refusing those that
come twice to `_refusals`, and the sizes of groups with resources to `_resources`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import (
    CLASSES,
    DROPPED_GROUPS,
    GROUPS,
    MEMBER_ORDER,
    MEMBERS,
    OVER_LENGTH,
    RESOURCES,
    STARTS,
    GroupRecord,
    PlanOptions,
    PreparedDataset,
    SequenceFacts,
    create_array,
    write_entries,
)
from packhorse.jobs import Progress
from packhorse.packing import PackingPlan
from packhorse.parameters import parameter
from packhorse.prepare.duplicates import FindTask, duplicate_error, find_rows
from packhorse.prepare.groups._refusals import first_repeated, refuse_repeated_group
from packhorse.prepare.groups._resources import GroupClasses, SizeCounts
from packhorse.prepare.groups._tally import GroupTally
from packhorse.prepare.groups.grouping import Grouping
from packhorse.prepare.input import InputColumns, Opened, RawRows, RowRange, cut_rows, map_array
from packhorse.topology import RoomRule


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """All groups, after their tables were written: the new ones, and those of the version that is appended to."""

    sequences: Opened
    """The new sequences, as they were read."""
    rows: Opened
    """The groups that later passes take as rows. Without resources these are the new groups, and a row's length is the
    sum of its sequences' rooms. With resources they are all groups, and a row's length is the number of its class."""
    options: PlanOptions
    """Options of the plan, as the user gave them for sequences."""
    by: str
    """How rows form groups, as in `GroupRecord.by`."""
    num_groups: int
    """Number of groups in the plan."""
    num_dropped: int
    """Number of groups that were too long and left out."""
    num_dropped_listed: int
    """Number of groups in dropped_groups.npy."""
    facts: SequenceFacts
    """Facts of the sequences."""
    ids_ascend: bool
    """Whether ids ascend from group to group."""
    shared_tokens: int | None
    """Tokens that take no room, because another sequence of their group has them; None if prefixes are not shared."""
    most_by_room: dict[int, int]
    """Room of a group, or with resources number of a class → most sequences in one of its groups."""
    sizes: SizeCounts | None = None
    """The sizes of groups, whose classes are sorted and planned; None without resources."""

    @property
    def sort_options(self) -> PlanOptions:
        """Options for the passes over groups: their lengths are sums of rooms already, so nothing is added or cut."""
        longest = max(self.options.max_seq_len, max(self.most_by_room))
        return replace(self.options, max_seq_len=longest, over_length="error", align=1, extra_tokens=0)

    @property
    def array_bytes(self) -> int:
        """Bytes of the tables' files."""
        int64_bytes = 8
        sequence_bytes = 2 * int64_bytes  # (id, length) in members.npy
        if not self.ids_ascend:
            sequence_bytes += int64_bytes  # in member_order.npy
        if self.sizes:
            sequence_bytes += 4 * len(self.sizes.resources)  # uint32 in resources.npy
        if self.facts.start_dtype:
            sequence_bytes += np.dtype(self.facts.start_dtype).itemsize
        group_bytes = 2 * int64_bytes  # (number, end) in groups.npy
        return (
            sequence_bytes * self.facts.num_sequences
            + group_bytes * self.num_groups
            + int64_bytes * self.num_dropped_listed  # in dropped_groups.npy
        )

    def record(self, plan: PackingPlan) -> GroupRecord:
        """Returns the manifest's facts about the groups, for a plan."""
        most_in_bin = max(sum(self.most_by_room[room] for room in template) for template in plan.templates)
        return GroupRecord(
            by=self.by,
            num_groups=self.num_groups,
            num_dropped=self.num_dropped,
            most_sequences=max(self.most_by_room.values()),
            max_sequences_per_bin=min(most_in_bin, self.facts.num_sequences),
            ids_ascend=self.ids_ascend,
            num_dropped_listed=self.num_dropped_listed,
            shared_tokens=self.shared_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRows(RowRange):
    """Consecutive groups of the tables in a folder, as rows for the later passes."""

    folder: str
    """The folder of groups.npy and members.npy."""
    rooms: RoomRule
    """The rule from a member's length to its room."""
    classes: GroupClasses | None
    """The classes of groups; None without resources."""

    def _read(self) -> Iterator[RawRows]:
        """Yields one batch, whose lengths are sums of members' rooms, or numbers of classes."""
        table = map_array(Path(self.folder, GROUPS))  # (number, end of its members)
        members = map_array(Path(self.folder, MEMBERS))  # (id, length)
        ends = np.array(table[self.first_row : self.first_row + self.num_rows, 1])
        begin = int(table[self.first_row - 1, 1]) if self.first_row else 0
        member_rooms = self.rooms.room(np.array(members[begin : int(ends[-1]), 1]))
        starts = np.concatenate(([0], ends[:-1] - begin))
        group_rooms = np.add.reduceat(member_rooms, starts)
        if self.classes is None:
            yield RawRows(group_rooms)
            return
        amounts = np.array(map_array(Path(self.folder, RESOURCES))[begin : int(ends[-1])], dtype=np.int64)
        yield RawRows(self.classes.numbers_of(group_rooms, np.add.reduceat(amounts, starts)))


def gather_groups(
    opened: Opened,
    grouping: Grouping,
    options: PlanOptions,
    folder: Path,
    progress: Progress,
    before: PreparedDataset | None = None,
) -> Grouped:
    """Reads every row once, in order, and writes the tables of groups and members.

    Memory holds a batch of rows and 8 bytes for each group; if ids do not ascend, also 17 bytes for each sequence; with
    resources, also every distinct size.

    Args:
        opened: the sequences.
        grouping: which of them are a group.
        options: options of the plan; `over_length` is "error" or "drop", or "split" if each group is a single sequence
            with resources.
        folder: the folder to write groups.npy and members.npy into, and, if there is something to write,
            dropped_groups.npy, member_order.npy, over_length.npy, starts.npy, resources.npy and classes.npy.
        progress: shows the rows that were read.
        before: the grouped version to which the groups are added; None for a new dataset.

    Raises:
        ValueError: a group is too long; its rows do not follow each other; the version before holds the group already,
            or left it out; an id occurs twice; or all groups are left out.
    """
    grouping.check_rows(opened.num_rows)
    resources = opened.columns.resources
    tally = GroupTally(options, before, resources)
    num_before = tally.read(opened, grouping, folder, progress)
    opened.check_files()
    for file in grouping.files:
        file.check()
    refuse_repeated_group(np.concatenate(tally.group_numbers), opened, grouping, before)
    if tally.num_groups == num_before:
        raise ValueError(
            f"all {tally.num_dropped:,} {tally.item_word}s of the input do not fit a bin and are dropped; "
            "raise " + parameter("max_seq_len") + f"{' or the caps' if resources else ''}"
        )
    _write_starts_and_order(tally, opened, grouping, folder, before)
    num_dropped_listed = _write_left_out(tally, folder)
    groups_before = before.manifest.groups if before else None
    sizes = tally.sizes if resources else None
    first_group = num_before
    if sizes:
        first_group = 0  # classes are of all groups, so those of the version before are sorted again
        _write(folder / CLASSES, sizes.classes.sizes)
    return Grouped(
        sequences=opened,
        rows=_opened_tables(
            folder, options.rooms, first_group, tally.num_groups, sizes.group_classes if sizes else None
        ),
        options=options,
        by=grouping.said,
        num_groups=tally.num_groups,
        num_dropped=tally.num_dropped + (groups_before.num_dropped if groups_before else 0),
        num_dropped_listed=num_dropped_listed,
        facts=tally.members.in_manifest(tally.ledger),
        ids_ascend=tally.members.ids_ascend,
        shared_tokens=None if grouping.share_prefixes is None else tally.members.shared_tokens(),
        most_by_room=sizes.most_members() if sizes else tally.most_by_room.numbers(),
        sizes=sizes,
    )


def _write_starts_and_order(
    tally: GroupTally, opened: Opened, grouping: Grouping, folder: Path, before: PreparedDataset | None
) -> None:
    """Writes starts.npy if a first token is not 0, and member_order.npy if ids do not ascend; refuses a repeated id."""
    first_tokens = tally.members.first_tokens()
    if first_tokens is not None:
        _write(folder / STARTS, first_tokens)
    if not tally.members.ids_ascend:
        ids = np.array(map_array(folder / MEMBERS)[:, 0])
        # The pieces of a sequence have one id, so only those that begin it are compared. With shared prefixes, first
        # tokens are above 0 too, but nothing was cut.
        are_pieces = first_tokens is not None and grouping.share_prefixes is None
        _refuse_repeated_id(ids[first_tokens == 0] if are_pieces else ids, opened, before)
        _write(folder / MEMBER_ORDER, np.argsort(ids, kind="stable"))


def _write_left_out(tally: GroupTally, folder: Path) -> int:
    """Writes dropped_groups.npy and over_length.npy if they have entries; returns the entries of the first."""
    all_dropped = np.sort(np.concatenate(tally.dropped))
    if len(all_dropped):
        _write(folder / DROPPED_GROUPS, all_dropped)
    if tally.ledger.sequences:
        members = np.concatenate(tally.over_length)
        _write(folder / OVER_LENGTH, members[np.argsort(members[:, 0], kind="stable")])
    return len(all_dropped)


def _refuse_repeated_id(ids: NDArray[np.int64], opened: Opened, before: PreparedDataset | None) -> None:
    """Raises a ValueError that names the rows of the smallest id that occurs twice."""
    repeated = first_repeated(ids)
    if repeated is not None:
        raise duplicate_error(repeated, find_rows(FindTask(opened.ranges, repeated)), before)


def _opened_tables(
    folder: Path, rooms: RoomRule, first_group: int, end_group: int, classes: GroupClasses | None
) -> Opened:
    """Returns the groups with a number in [first_group, end_group) as rows, read from the tables in a folder."""
    ranges = [
        GroupRows(
            path=str(folder / GROUPS),
            stamp=None,
            first_row=first_group + first,
            first_index=first_group + first,
            num_rows=size,
            columns=InputColumns(),
            folder=str(folder),
            rooms=rooms,
            classes=classes,
        )
        for first, size in cut_rows(end_group - first_group)
    ]
    return Opened(kind="groups", ranges=ranges, files=[], columns=InputColumns())


def _write(path: Path, entries: NDArray[np.integer]) -> None:
    """Writes a whole array file."""
    create_array(path, str(entries.dtype), entries.shape)
    write_entries(path, 0, entries)
