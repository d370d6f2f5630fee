"""Groups: sequences that must share a bin become one item, before anything is counted.

Owns which rows are a group, the tables of groups and members, and what is done with a group that is too long. What it
gives are rows again, one for each group, so every later pass is the same with and without groups.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

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
    PreparedDataset,
    PrepareOptions,
    create_array,
    growing_array,
    write_entries,
)
from packhorse.formats.files import FileStamp, as_path
from packhorse.formats.object_store import without_secrets
from packhorse.jobs import Progress
from packhorse.packing import PackingPlan
from packhorse.prepare._growth import added_ledgers
from packhorse.prepare._passes import exact_sum
from packhorse.prepare.readers import Columns, InputFile, Opened, RawRows, Span, cut, load_npy
from packhorse.topology import RoomRule, checked_integer
from packhorse.wire import ids_sum

_MOST_ROWS_NAMED = 4
_NO_MEMBERS = np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Grouping:
    """Which rows are a group; one of the three is given."""

    column: str | None = None
    """Rows with equal integers here."""
    size: int | None = None
    """Every so many rows."""
    ids: NDArray[np.integer] | None = None
    """Rows with equal integers here: int [rows]."""
    file: InputFile | None = None
    """Where these integers stand; None in memory."""

    @classmethod
    def of(cls, column: str | None, size: int | None, ids: Any) -> "Grouping | None":
        """Checks what `prepare` was given, and maps a file of groups; None where there are no groups."""
        given = {"group_column": column, "group_size": size, "groups": ids}
        names = [name for name, value in given.items() if value is not None]
        if not names:
            return None
        if len(names) > 1:
            raise ValueError(f"{' and '.join(names)} both say which rows are a group: give one of them")
        if not isinstance(column, str | None):
            raise ValueError(f"group_column must be a column's name, got {column!r:.60}")
        if size is not None:
            checked_integer("group_size", size, 1)
        file = None
        if ids is not None:
            path = as_path(ids) if isinstance(ids, str | os.PathLike) else None
            stamp = FileStamp.of(path) if path else None
            ids = load_npy(path) if path else np.asarray(ids)
            if ids.ndim != 1 or ids.dtype.kind not in "iu":
                where = without_secrets(path) if path else "groups"
                raise ValueError(
                    f"{where} must be one integer for each row, got {ids.dtype} of shape {list(ids.shape)}: number them"
                )
            file = InputFile(path=path, stamp=stamp, num_rows=len(ids)) if path and stamp else None
        return cls(column=column, size=size, ids=ids, file=file)

    @property
    def files(self) -> list[InputFile]:
        """The file of groups, if any."""
        return [self.file] if self.file else []

    @property
    def said(self) -> str:
        """What the manifest says of it."""
        return f"every {self.size} rows" if self.size else f"column {self.column!r}" if self.column else "groups"


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """Groups, with their tables written; those of the version that is appended to included."""

    read: Opened
    """The sequences."""
    opened: Opened
    """The new groups: a row each, whose length is the sum of its sequences' rooms."""
    options: PrepareOptions
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
        table = np.load(Path(self.folder, GROUPS), mmap_mode="r", allow_pickle=False)
        members = np.load(Path(self.folder, MEMBERS), mmap_mode="r", allow_pickle=False)
        ends = np.array(table[self.first_row : self.first_row + self.num_rows, 1])
        begin = int(table[self.first_row - 1, 1]) if self.first_row else 0
        rooms = self.rooms.room(np.array(members[begin : int(ends[-1]), 1]))
        yield RawRows(np.add.reduceat(rooms, np.concatenate(([0], ends[:-1] - begin))))


def gather_groups(
    opened: Opened,
    grouping: Grouping,
    options: PrepareOptions,
    folder: Path,
    progress: Progress,
    before: PreparedDataset | None = None,
) -> Grouped:
    """Reads every row once, in order, and writes the tables of groups and members.

    Memory holds a batch of rows, 8 bytes for each group and, where ids do not ascend, 24 for each sequence.

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
    if grouping.ids is not None and len(grouping.ids) != num_rows:
        raise ValueError(f"groups has {len(grouping.ids):,} entries for {num_rows:,} rows: give one for each row")
    if grouping.size is not None and num_rows % grouping.size:
        raise ValueError(
            f"{num_rows:,} rows are no multiple of group_size {grouping.size}: {num_rows % grouping.size} are left over"
        )
    tally = _Tally(options)
    dropped = [np.empty(0, dtype=np.int64) if before is None else before.dropped_groups()]
    keys = [*dropped]
    with (
        growing_array(folder / GROUPS, "int64", 2) as add_groups,
        growing_array(folder / MEMBERS, "int64", 2) as add_members,
        progress.task("gathering groups", num_rows, "sequences") as advance,
    ):

        def add(rows: _Rows) -> None:
            kept = tally.add(rows)
            add_groups(np.stack((rows.keys[kept], tally.ends), axis=1))
            add_members(tally.members)
            if grouping.size is None:
                keys.append(rows.keys)
                dropped.append(rows.keys[~kept])

        for rows in _groups_of(before):
            add(rows)
        num_before = tally.num_groups
        for rows in _whole_groups(opened.spans, grouping):
            add(rows)
            advance(len(rows.lengths))
    for file in (*opened.files, *grouping.files):
        file.check()
    repeated = _repeated(np.concatenate(keys))
    if repeated is not None:
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
        raise ValueError(
            f"the rows of group {repeated} do not follow each other: it is in {_named_rows(opened, grouping, repeated)}"
            f"; sort the input by {grouping.column or 'group'}, so that each group's rows stand together in their order"
        )
    if tally.num_groups == num_before:
        raise ValueError(
            f"all {tally.num_dropped:,} groups of the input are over max_seq_len {options.max_seq_len} and dropped; "
            "raise --max-seq-len"
        )
    if not tally.ids_ascend:
        _write_order(folder, opened, before)
    all_dropped = np.sort(np.concatenate(dropped))
    if len(all_dropped):
        create_array(folder / DROPPED_GROUPS, "int64", all_dropped.shape)
        write_entries(folder / DROPPED_GROUPS, 0, all_dropped)
    ledger, over_before = tally.ledger, before.over_length() if before else _NO_MEMBERS
    if before is not None:
        ledger = added_ledgers(before.manifest.over_length, ledger)
    if ledger.sequences:
        over = np.concatenate((over_before, *tally.over))
        create_array(folder / OVER_LENGTH, "int64", over.shape)
        write_entries(folder / OVER_LENGTH, 0, over[np.argsort(over[:, 0], kind="stable")])
    spans = [
        GroupSpan(
            path=str(folder / GROUPS),
            stamp=None,
            first_row=num_before + first,
            first_index=num_before + first,
            num_rows=size,
            columns=Columns(),
            folder=str(folder),
            rooms=options.rooms,
        )
        for first, size in cut(tally.num_groups - num_before)
    ]
    low, high = tally.id_range
    return Grouped(
        read=opened,
        opened=Opened(kind="groups", spans=spans, files=[], columns=Columns()),
        options=options,
        by=grouping.said,
        n_groups=tally.num_groups,
        n_dropped=tally.num_dropped + (before.manifest.groups.n_dropped if before and before.manifest.groups else 0),
        n_dropped_listed=len(all_dropped),
        n_sequences=tally.num_sequences,
        own_tokens=tally.own_tokens,
        over_length=ledger,
        ids_sum=tally.ids_sum,
        id_dtype="uint32" if low >= 0 and high < 2**32 else "int64",
        ids_ascend=tally.ids_ascend,
        most_by_room=tally.most_by_room,
    )


def options_of_groups(options: PrepareOptions) -> PrepareOptions:
    """Returns what shapes the plan over groups, whose lengths are sums of rooms already."""
    return replace(options, over_length="error", align=1, extra_tokens=0)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Some rows, in order, with nothing but whole groups."""

    keys: NDArray[np.int64]
    """Of every group: int64 [G]."""
    starts: NDArray[np.int64]
    """Where each group begins below: int64 [G]."""
    lengths: NDArray[np.int64]
    """int64 [n]."""
    ids: NDArray[np.int64]
    """int64 [n]."""
    first: int
    """Number of the first row over all files."""


def _whole_groups(spans: Sequence[Span], grouping: Grouping) -> Iterator[_Rows]:
    """Yields all rows, cut between groups; a group that goes on in the next batch waits for it."""
    none = np.empty(0, dtype=np.int64)
    keys, lengths, ids, first = none, none, none, 0
    begin = spans[0].first_index if spans and grouping.ids is not None else 0  # new rows only have an entry there
    for span in spans:
        for batch in span.batches():
            row = span.first_index + batch.first_row - span.first_row - begin
            keys = np.concatenate((keys, _keys(batch.groups, row, len(batch.lengths), grouping, batch.first_row, span)))
            lengths = np.concatenate((lengths, batch.lengths))
            ids = np.concatenate((ids, batch.ids))
            edges = np.flatnonzero(keys[1:] != keys[:-1]) + 1
            if not len(edges):
                continue
            end = int(edges[-1])
            starts = np.concatenate(([0], edges[:-1]))
            yield _Rows(keys[starts], starts, lengths[:end], ids[:end], first)
            keys, lengths, ids, first = keys[end:], lengths[end:], ids[end:], first + end
    if len(keys):
        yield _Rows(keys[:1], np.zeros(1, dtype=np.int64), lengths, ids, first)


def _groups_of(before: PreparedDataset | None) -> Iterator[_Rows]:
    """Yields the groups of a version as they were read then, without those that it left out."""
    groups = before.groups if before else None
    if groups is None:
        return
    for first, size in cut(len(groups.table)):
        table = np.array(groups.table[first : first + size])
        begin = int(groups.table[first - 1, 1]) if first else 0
        members = np.array(groups.members[begin : int(table[-1, 1])])
        yield _Rows(table[:, 0], np.concatenate(([0], table[:-1, 1] - begin)), members[:, 1], members[:, 0], 0)


def _keys(
    held: NDArray[np.int64] | None, row: int, num: int, grouping: Grouping, file_row: int, span: Span
) -> NDArray[np.int64]:
    if grouping.size is not None:
        return np.arange(row, row + num, dtype=np.int64) // grouping.size
    keys = held if grouping.ids is None else grouping.ids[row : row + num].astype(np.int64)
    assert keys is not None  # the reader was asked for the column
    if (keys < 0).any():
        at = int(np.argmax(keys < 0))
        raise ValueError(
            f"{span.path}: row {file_row + at} is of group {keys[at]}; groups are integers from 0 on, and every row is "
            "of one: number them, for example by `pandas.factorize`"
        )
    return keys


class _Tally:
    """What was found so far."""

    def __init__(self, options: PrepareOptions) -> None:
        self._options = options
        self._rule = options.rooms
        self._last_id = -(2**63)
        self.num_groups = self.num_dropped = self.num_sequences = self.own_tokens = 0
        self.ids_ascend = True
        self.ids_sum = (0, 0)
        self.id_range = (2**63 - 1, -(2**63))
        self.ledger = OverLengthLedger()
        self.over: list[NDArray[np.int64]] = []
        self.most_by_room = np.zeros(options.max_seq_len + 1, dtype=np.int64)
        self.ends: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        """Where the members of the groups added last end."""
        self.members: NDArray[np.int64] = _NO_MEMBERS
        """(id, length) of these members: int64 [n, 2]."""

    def add(self, rows: _Rows) -> NDArray[np.bool_]:
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
            self.id_range = (min(self.id_range[0], int(ids.min())), max(self.id_range[1], int(ids.max())))
            self.ids_ascend &= int(ids[0]) > self._last_id and bool((ids[1:] > ids[:-1]).all())
            self._last_id = int(ids[-1])
            a, b = ids_sum(ids, None)
            self.ids_sum = ((self.ids_sum[0] + a) % 2**64, (self.ids_sum[1] + b) % 2**64)
        return is_kept

    def _leave_out(self, rows: _Rows, which: int, sizes: NDArray[np.int64], members: NDArray[np.int64]) -> None:
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


def _write_order(folder: Path, opened: Opened, before: PreparedDataset | None) -> None:
    """Writes members by ascending id, and refuses an id that comes twice."""
    ids = np.array(np.load(folder / MEMBERS, mmap_mode="r", allow_pickle=False)[:, 0])
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    is_same = ids[1:] == ids[:-1]
    if is_same.any():
        repeated = int(ids[int(np.argmax(is_same))])
        found = [
            f"row {batch.row(at)} of {span.path}"
            for span in opened.spans
            for batch in span.batches()
            for at in np.flatnonzero(batch.ids == repeated).tolist()
        ]
        if before is not None and len(found) == 1:
            raise ValueError(
                f"id {repeated} is in {before.name} already and comes again ({found[0]}); every id must occur once: "
                "repair the id column, or append new sequences only"
            )
        raise ValueError(
            f"id {repeated} occurs {len(found)} times ({'; '.join(found[:_MOST_ROWS_NAMED])}); every id must occur "
            "once: repair the id column, or leave out --id-column to use row numbers"
        )
    create_array(folder / MEMBER_ORDER, "int64", order.shape)
    write_entries(folder / MEMBER_ORDER, 0, order)


def _repeated(keys: NDArray[np.int64]) -> int | None:
    """Returns a key that comes again; None where none does."""
    if (keys[1:] > keys[:-1]).all():
        return None
    keys = np.sort(keys)
    is_same = keys[1:] == keys[:-1]
    return int(keys[int(np.argmax(is_same))]) if is_same.any() else None


def _named_rows(opened: Opened, grouping: Grouping, wanted: int) -> str:
    """Returns where a group's stretches of rows begin, in words."""
    rows = [
        f"row {whole.first + int(whole.starts[at])}"
        for whole in _whole_groups(opened.spans, grouping)
        for at in np.flatnonzero(whole.keys == wanted).tolist()
    ]
    return " and again in ".join(rows[:_MOST_ROWS_NAMED])
