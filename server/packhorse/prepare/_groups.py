"""The pass before all others, if there are groups: writes the tables of groups and members, and gives groups as rows.

Owns `gather_groups` and its result, in which each group is one row, so that every later pass is the same with and
without groups; and the refusal of groups that are too long or come twice. Leaves which rows are a group to `grouping`,
and the sizes of groups with resources to `_resources`.
"""

from collections.abc import Iterator
from contextlib import ExitStack
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
    OverLengthLedger,
    PlanOptions,
    PreparedDataset,
    SequenceFacts,
    create_array,
    growing_array,
    write_entries,
)
from packhorse.jobs import Progress
from packhorse.packing import PackingPlan
from packhorse.parameters import parameter
from packhorse.prepare._by_room import ByRoom
from packhorse.prepare._counting import LONGEST_SPLIT, IdType, LengthFacts, exact_sum, facts_of, find_rows, stored_dtype
from packhorse.prepare._merging import duplicate_error
from packhorse.prepare._resources import GroupClasses, SizeCounts
from packhorse.prepare.grouping import Grouping, WholeGroups, groups_of_version, whole_groups
from packhorse.prepare.input import InputColumns, Opened, RawRows, Resource, RowRange, cut, map_array
from packhorse.topology import RoomRule
from packhorse.topology.choices import counted
from packhorse.wire import ids_sum

_MOST_ROWS_NAMED = 4


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """All groups, after their tables were written: the new ones, and those of the version that is appended to."""

    read: Opened
    """The new sequences, as they were read."""
    opened: Opened
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
        order_bytes = 0 if self.ids_ascend else 8 * self.facts.num_sequences
        amount_bytes = 4 * len(self.sizes.resources) * self.facts.num_sequences if self.sizes else 0
        start_dtype = self.facts.start_dtype
        start_bytes = np.dtype(start_dtype).itemsize * self.facts.num_sequences if start_dtype else 0
        table_bytes = 16 * (self.num_groups + self.facts.num_sequences) + amount_bytes + start_bytes
        return table_bytes + order_bytes + 8 * self.num_dropped_listed

    def record(self, plan: PackingPlan) -> GroupRecord:
        """Returns the manifest's facts about the groups, for a plan."""
        per_bin = max(sum(map(self.most_by_room.__getitem__, template)) for template in plan.templates)
        return GroupRecord(
            by=self.by,
            num_groups=self.num_groups,
            num_dropped=self.num_dropped,
            most_sequences=max(self.most_by_room.values()),
            max_sequences_per_bin=min(per_bin, self.facts.num_sequences),
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
        table = map_array(Path(self.folder, GROUPS))
        members = map_array(Path(self.folder, MEMBERS))
        ends = np.array(table[self.first_row : self.first_row + self.num_rows, 1])
        begin = int(table[self.first_row - 1, 1]) if self.first_row else 0
        rooms = self.rooms.room(np.array(members[begin : int(ends[-1]), 1]))
        starts = np.concatenate(([0], ends[:-1] - begin))
        rooms = np.add.reduceat(rooms, starts)
        if self.classes is None:
            yield RawRows(rooms)
            return
        amounts = np.array(map_array(Path(self.folder, RESOURCES))[begin : int(ends[-1])], dtype=np.int64)
        yield RawRows(self.classes.numbers_of(rooms, np.add.reduceat(amounts, starts)))


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
    tally = _Tally(options, before, resources)
    num_before = tally.read(opened, grouping, folder, progress)
    opened.check_files()
    for file in grouping.files:
        file.check()
    _refuse_repeated_group(np.concatenate(tally.keys), opened, grouping, before)
    if tally.num_groups == num_before:
        raise ValueError(
            f"all {tally.num_dropped:,} {tally.called}s of the input do not fit a bin and are dropped; "
            "raise " + parameter("max_seq_len") + f"{' or the caps' if resources else ''}"
        )
    first_tokens = tally.first_tokens()
    if first_tokens is not None:
        _write(folder / STARTS, first_tokens)
    if not tally.ids_ascend:
        ids = np.array(map_array(folder / MEMBERS)[:, 0])
        is_whole = first_tokens is None or grouping.share_prefixes is not None
        if (repeated := _repeated(ids if is_whole else ids[first_tokens == 0])) is not None:
            raise duplicate_error(repeated, find_rows((opened.ranges, repeated)), before)
        _write(folder / MEMBER_ORDER, np.argsort(ids, kind="stable"))
    all_dropped = np.sort(np.concatenate(tally.dropped))
    if len(all_dropped):
        _write(folder / DROPPED_GROUPS, all_dropped)
    if tally.ledger.sequences:
        members = np.concatenate(tally.over)
        _write(folder / OVER_LENGTH, members[np.argsort(members[:, 0], kind="stable")])
    groups_before = before.manifest.groups if before else None
    sizes = tally.sizes if resources else None
    if sizes:
        num_before = 0  # classes are of all groups, so those of the version before are sorted again
        _write(folder / CLASSES, sizes.classes.sizes)
    return Grouped(
        read=opened,
        opened=_opened_tables(
            folder, options.rooms, (num_before, tally.num_groups), sizes.of_groups if sizes else None
        ),
        options=options,
        by=grouping.said,
        num_groups=tally.num_groups,
        num_dropped=tally.num_dropped + (groups_before.num_dropped if groups_before else 0),
        num_dropped_listed=len(all_dropped),
        facts=tally.facts(),
        ids_ascend=tally.ids_ascend,
        shared_tokens=None if grouping.share_prefixes is None else tally.shared_tokens(),
        most_by_room=sizes.most_members() if sizes else tally.most_by_room.numbers(),
        sizes=sizes,
    )


def _opened_tables(folder: Path, rooms: RoomRule, some: tuple[int, int], classes: GroupClasses | None) -> Opened:
    """Returns the groups with a number in [some[0], some[1]) as rows, read from the tables in a folder."""
    num_before, num_groups = some
    ranges = [
        GroupRows(
            path=str(folder / GROUPS),
            stamp=None,
            first_row=num_before + first,
            first_index=num_before + first,
            num_rows=size,
            columns=InputColumns(),
            folder=str(folder),
            rooms=rooms,
            classes=classes,
        )
        for first, size in cut(num_groups - num_before)
    ]
    return Opened(kind="groups", ranges=ranges, files=[], columns=InputColumns())


def _write(path: Path, entries: NDArray[np.integer]) -> None:
    create_array(path, str(entries.dtype), entries.shape)
    write_entries(path, 0, entries)


class _Tally:
    """Counts groups while they are read in order, and notes those that do not fit a bin."""

    def __init__(self, options: PlanOptions, before: PreparedDataset | None, resources: tuple[Resource, ...]) -> None:
        self._options, self._before = options, before
        self.sizes = SizeCounts(resources, options.max_seq_len)
        self.called = "group"
        """The word for a group in messages; "sequence" if each row is a group."""
        self._last_id = -(2**63)
        self.num_groups = self.num_dropped = 0
        # From here to `most_by_room`: of the members of all groups that fit, up to now.
        self._sums = LengthFacts()
        self.ids_ascend = True
        self._ids_sum = (0, 0)
        self._id_range = (2**63 - 1, -(2**63))
        self._rooms = ByRoom(np.add)
        """Room of a member → number of members."""
        self._num_members = 0
        self.most_by_room = ByRoom(np.maximum)
        """Room of a group → most members in one group."""
        self.ledger = before.manifest.over_length if before else OverLengthLedger()
        self.over = [before.over_length()] if before else []
        """(id, length) of the sequences that were split, or whose group was left out: a list of int64 [n, 2]."""
        self._pieces = [np.empty((0, 2), dtype=np.int64)]
        """(index of the member, its first token) of members whose first token is not 0: a list of int64 [n, 2]."""
        self._uncut = ""
        """The reason why a sequence does not fit a bin and cannot be split, for the first such one; empty without any.
        """
        self.dropped = [np.empty(0, dtype=np.int64) if before is None else before.dropped_groups()]
        """Numbers, as the input gives them, of groups that were left out: a list of int64 [n]."""
        self.keys = [*self.dropped]
        """Numbers, as the input gives them, of all groups, left out or not: a list of int64 [n]."""

    def read(self, opened: Opened, grouping: Grouping, folder: Path, progress: Progress) -> int:
        """Counts the groups of the version before and of the input, and writes the tables of groups and members.

        Returns:
            Number of groups in the version before.
        """
        with (
            growing_array(folder / GROUPS, "int64", 2) as add_groups,
            growing_array(folder / MEMBERS, "int64", 2) as add_members,
            ExitStack() as files,
            progress.task("gathering groups", opened.num_rows, "sequences") as advance,
        ):
            num_resources = len(self.sizes.resources)
            if num_resources:
                add_amounts = files.enter_context(growing_array(folder / RESOURCES, "uint32", num_resources))
            if grouping.size == 1:
                self.called = "sequence"

            def add(rows: WholeGroups) -> None:
                """Counts some groups, and appends those that fit to the tables."""
                is_kept, ends, members = self._add(rows)
                add_groups(np.stack((rows.keys[is_kept], ends), axis=1))
                add_members(members)
                if num_resources:
                    add_amounts(rows.resources[np.repeat(is_kept, np.diff(np.append(rows.starts, len(rows.ids))))])
                if grouping.size is None:
                    self.keys.append(rows.keys)
                    self.dropped.append(rows.keys[~is_kept])

            for rows in groups_of_version(self._before):
                add(rows)
            num_before = self.num_groups
            tokens = grouping.tokens()
            for rows in whole_groups(opened.ranges, grouping):
                if tokens is not None:
                    add(rows.sharing_prefixes(tokens))
                else:
                    add(self._in_pieces(rows) if self._options.over_length == "split" else rows)
                advance(len(rows.lengths))
        if self._uncut:
            raise ValueError(
                self._uncut
                + f", and cannot be split (in all: {counted(self.num_dropped, 'such row')}); raise "
                + parameter("max_seq_len")
                + " or the cap, leave such rows out of the input, or choose "
                + parameter("over_length", "drop")
                + ", which also leaves out long text"
            )
        return num_before

    def facts(self) -> SequenceFacts:
        """Returns the manifest's facts of the sequences."""
        counts = self._rooms.numbers()
        facts = facts_of(
            np.fromiter(counts, np.int64, len(counts)),
            np.fromiter(counts.values(), np.int64, len(counts)),
            self._sums,
            id_range=self._id_range,
            start_dtype=self._start_dtype(),
            over_length=self.ledger,
        )
        return replace(facts, ids_sum_a=self._ids_sum[0], ids_sum_b=self._ids_sum[1])

    def first_tokens(self) -> NDArray[np.integer] | None:
        """Returns the first token of every member in its sequence: uint32 or int64 [n]; None if all are 0."""
        pieces, dtype = np.concatenate(self._pieces), self._start_dtype()
        if dtype is None:
            return None
        first_tokens = np.zeros(self._num_members, dtype=dtype)
        first_tokens[pieces[:, 0]] = pieces[:, 1]
        return first_tokens

    def shared_tokens(self) -> int:
        """Returns the number of tokens that take no room, because another sequence of their group has them."""
        return sum(exact_sum(some[:, 1]) for some in self._pieces)

    def _start_dtype(self) -> IdType | None:
        last = max(int(some[:, 1].max(initial=0)) for some in self._pieces)
        return stored_dtype(0, last) if last else None

    def _in_pieces(self, rows: WholeGroups) -> WholeGroups:
        """Splits the over-long sequences that take nothing of any resource, and adds them to the ledger."""
        longest = self._options.rooms.longest
        is_cut = (rows.lengths > longest) & ~rows.resources.any(axis=1)
        if not is_cut.any():
            return rows
        members = np.stack((rows.ids, rows.lengths), axis=1)[is_cut]
        if (most := int(members[:, 1].max())) > LONGEST_SPLIT:
            at = int(np.argmax(is_cut & (rows.lengths == most)))
            raise ValueError(
                f"sequence {rows.ids[at]} (row {rows.row(at)}) has {most} tokens; sequences of up to "
                f"{LONGEST_SPLIT} can be split: repair the length, or choose " + parameter("over_length", "drop")
            )
        pieces = rows.cut(is_cut, longest)
        self.over.append(members)
        self.ledger += OverLengthLedger(
            sequences=len(members),
            source_tokens=exact_sum(members[:, 1]),
            # Rows that were not cut are in both numbers.
            pieces=len(pieces.lengths) - len(rows.lengths) + len(members),
        )
        return pieces

    def _add(self, rows: WholeGroups) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
        """Counts some groups; those that do not fit a bin are left out.

        Returns:
            (is_kept, ends, members): whether each group fits, bool [G]; for each that fits, where its members end in
            members.npy, int64 [kept]; and (id, length) of these members, int64 [n, 2].
        """
        limit = self._options.rooms.longest_length + 1
        sizes = np.diff(np.append(rows.starts, len(rows.lengths)))
        # Lengths are clipped so that sums do not overflow: a column may hold anything up to 2^63.
        rooms = self._options.rooms.room(np.minimum(rows.lengths, limit))
        group_rooms = np.add.reduceat(rooms, rows.starts)
        amounts = np.add.reduceat(rows.resources, rows.starts)
        group_sizes = self.sizes.sizes_of(group_rooms, amounts)
        is_kept = np.asarray((group_sizes <= self.sizes.capacities).all(axis=1))
        members, first_tokens = np.stack((rows.ids, rows.lengths), axis=1), rows.first_tokens
        if not is_kept.all():
            self._leave_out(rows, is_kept, group_sizes, sizes)
            self.num_dropped += int((~is_kept).sum())
            is_member = np.repeat(is_kept, sizes)
            members, rooms = members[is_member], rooms[is_member]
            first_tokens = None if first_tokens is None else first_tokens[is_member]
        ends = self._num_members + np.cumsum(sizes[is_kept])
        self.num_groups += int(is_kept.sum())
        if self.sizes.resources:
            self.sizes.add(group_sizes[is_kept], amounts[is_kept], sizes[is_kept])
        self.most_by_room.put(group_rooms[is_kept], sizes[is_kept])
        if len(members):
            ids = np.ascontiguousarray(members[:, 0])
            a, b = ids_sum(ids, first_tokens)
            self._ids_sum = ((self._ids_sum[0] + a) % 2**64, (self._ids_sum[1] + b) % 2**64)
            if first_tokens is not None:
                # Later pieces repeat their sequence's id, so only first pieces tell whether ids ascend.
                later = np.flatnonzero(first_tokens)
                self._pieces.append(np.stack((self._num_members + later, first_tokens[later]), axis=1))
                ids = ids if rows.shares_prefixes else ids[first_tokens == 0]
            self._rooms.put(rooms, 1)
            self._num_members += len(members)
            self._sums += LengthFacts.of(members[:, 1], np.ones(len(members), dtype=np.int64))
            if len(ids):
                self._id_range = (min(self._id_range[0], int(ids.min())), max(self._id_range[1], int(ids.max())))
                self.ids_ascend &= int(ids[0]) > self._last_id and bool((ids[1:] > ids[:-1]).all())
                self._last_id = int(ids[-1])
        return is_kept, ends, members

    def _leave_out(
        self, rows: WholeGroups, is_kept: NDArray[np.bool_], takes: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> None:
        """Treats groups that do not fit a bin: "drop" enters them in the ledger, "error" refuses the first.

        "split" only notes the reason for the first: `read` refuses at the end, with the number of all of them.

        Args:
            rows: some groups.
            is_kept: whether each fits: bool [G].
            takes: the size of each, tokens and then resources with a cap: int64 [G, d].
            sizes: number of members of each: int64 [G].
        """
        if self._options.over_length == "drop":
            is_out = np.repeat(~is_kept, sizes)
            lengths = rows.source_lengths
            tokens = exact_sum(lengths[is_out])
            over_cap = int(sizes[~is_kept & (takes[:, 0] <= self._options.max_seq_len)].sum())
            self.over.append(np.stack((rows.ids, lengths), axis=1)[is_out])
            self.ledger += OverLengthLedger(
                sequences=int(is_out.sum()), source_tokens=tokens, tokens=tokens, over_cap=over_cap
            )
            return
        first = int(np.argmin(is_kept))
        why, way_out = self._unfit(rows, first, takes[first], int(sizes[first]))
        if self._options.over_length == "error":
            raise ValueError(why + "; " + way_out)
        self._uncut = self._uncut or why

    def _unfit(self, rows: WholeGroups, which: int, takes: NDArray[np.int64], size: int) -> tuple[str, str]:
        """Returns why a group does not fit a bin, and the ways out, as two texts.

        Args:
            rows: some groups.
            which: the index of the group among them.
            takes: the group's size, tokens and then resources with a cap: int64 [d].
            size: number of its members.
        """
        begin, limit = int(rows.starts[which]), self._options.max_seq_len
        row, amounts = rows.row(begin), rows.resources[begin]
        called = f"sequence {rows.ids[begin]} (row {row})"
        if self.called == "group":
            called = f"group {rows.keys[which]} (rows {row} to {row + size - 1}, {size} sequences)"
        if takes[0] <= limit:
            at = int(np.argmax(takes > self.sizes.capacities))
            name = [each.name for each in self.sizes.resources if each.cap is not None][at - 1]
            over = f"takes {takes[at]} of resource {name!r}, over its cap of {self.sizes.capacities[at]}"
            return (
                f"{called} {over}",
                (
                    "raise the cap, or choose "
                    + parameter("over_length", "drop")
                    + f", which leaves such {self.called}s out"
                ),
            )
        extra = "" if self._options.rooms.is_plain else (" with align and " + parameter("extra_tokens"))
        tokens = exact_sum(rows.lengths[begin : begin + size])
        together = " together" if self.called == "group" else ""
        why = f"{called} has {tokens} tokens{together}, over " + parameter("max_seq_len") + f" {limit}" + extra
        way_out = (
            "raise "
            + parameter("max_seq_len")
            + ", or choose "
            + parameter("over_length", "drop")
            + f", which leaves such {self.called}s out"
        )
        if self.called == "sequence" and amounts.any():
            at = int(np.argmax(amounts > 0))
            why += f", and takes {amounts[at]} of resource {self.sizes.resources[at].name!r}"
        elif self.called == "sequence" and len(amounts):
            way_out += ", or 'split', which cuts those into pieces that take nothing of any resource"
        return why, way_out


def _refuse_repeated_group(
    keys: NDArray[np.int64], opened: Opened, grouping: Grouping, before: PreparedDataset | None
) -> None:
    """Refuses a group whose number comes again after other groups; raises a ValueError that says where.

    Args:
        keys: the number of every group, including groups left out and groups of the version before: int64 [G].
        opened: the rows.
        grouping: which of them are a group.
        before: the version to which they are added; None for a new dataset.
    """
    repeated = _repeated(keys)
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
    begins = [
        f"row {rows.first + int(rows.starts[at])}"
        for rows in whole_groups(opened.ranges, grouping)
        for at in np.flatnonzero(rows.keys == repeated).tolist()
    ]
    raise ValueError(
        f"the rows of group {repeated} do not follow each other: it is in "
        f"{' and again in '.join(begins[:_MOST_ROWS_NAMED])}; sort the input by {grouping.column or 'group'}, so "
        "that each group's rows are together in their order"
    )


def _repeated(numbers: NDArray[np.int64]) -> int | None:
    """Returns the smallest number that occurs twice; None if there is none."""
    if (numbers[1:] > numbers[:-1]).all():
        return None
    numbers = np.sort(numbers)
    is_same = numbers[1:] == numbers[:-1]
    return int(numbers[int(np.argmax(is_same))]) if is_same.any() else None
