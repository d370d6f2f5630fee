"""What a reader is, and what it makes of an input: spans of rows, each checked as it is read.

Owns the protocol, the checks that every row has to pass whatever it was read from, and what a row that fails is called;
leaves files to the readers, a file each.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.columns import nulls_of, values_of
from packhorse.formats.files import FileStamp, is_folder, named_files, open_binary
from packhorse.formats.object_store import without_secrets

BATCH_ROWS = 1 << 17
SPAN_ROWS = 1 << 20
"""Where an input does not cut itself, spans have about so many rows."""

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which columns the user named."""

    length: str | None = None
    """Lengths in tokens, or lists of tokens; None for what is evident."""
    id: str | None = None
    """Ids; None where a sequence's id is its row over all files in order."""
    group: str | None = None
    """Groups; None where no column says which rows are one."""

    @property
    def integers(self) -> tuple[str | None, str | None]:
        """Those of plain integers: ids and groups."""
        return self.id, self.group

    @property
    def names(self) -> list[str]:
        """All that are read, each once."""
        return list(dict.fromkeys(name for name in (self.length, *self.integers) if name is not None))


class Fault(IntEnum):
    """What is wrong with a row."""

    NONE = 0
    NULL_LENGTH = 1
    SHORT_LENGTH = 2
    LONG_LENGTH = 3
    NULL_ID = 4
    LONG_ID = 5
    NULL_GROUP = 6
    LONG_GROUP = 7

    @property
    def reason(self) -> str:
        """What a ledger says of it."""
        return _REASONS[self]


_REASONS = {
    Fault.NONE: "nothing",
    Fault.NULL_LENGTH: "the length is null",
    Fault.SHORT_LENGTH: "the length is below 1 token",
    Fault.LONG_LENGTH: "the length is beyond int64",
    Fault.NULL_ID: "the id is null",
    Fault.LONG_ID: "the id is beyond int64",
    Fault.NULL_GROUP: "the group is null",
    Fault.LONG_GROUP: "the group is beyond int64",
}


class RawRows(NamedTuple):
    """Consecutive rows of one file as they stand there."""

    lengths: NDArray[np.integer]
    """Integers [n], anything where they are null."""
    null_lengths: NDArray[np.bool_] | None = None
    """bool [n]; None where none is null."""
    ids: NDArray[np.integer] | None = None
    """Integers [n]; None where an id is a row number."""
    null_ids: NDArray[np.bool_] | None = None
    """bool [n]; None where none is null."""
    groups: NDArray[np.integer] | None = None
    """Integers [n]; None where no column says which rows are a group."""
    null_groups: NDArray[np.bool_] | None = None
    """bool [n]; None where none is null."""

    def each(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> "RawRows":
        """Returns the rows with the same done to each column that is there."""
        others = [None if column is None else change(column) for column in self[1:]]
        return RawRows(change(self.lengths), *others)


class Batch(NamedTuple):
    """Some rows of one file, in order, all of them sound."""

    lengths: NDArray[np.int64]
    """int64 [n], each at least 1."""
    ids: NDArray[np.int64]
    """int64 [n]."""
    first_row: int
    """Row of the file, 0-based, that the batch was read from."""
    rows: NDArray[np.int64] | None = None
    """Row of each behind `first_row`: int64 [n]; None where none was skipped, so that it is its index."""
    skipped: NDArray[np.int64] | None = None
    """(row of the file, Fault) of those that were skipped: int64 [k, 2]; None without any."""
    groups: NDArray[np.int64] | None = None
    """int64 [n]; None where no column says which rows are a group."""

    def row(self, index: int) -> int:
        """Returns the row of the file that one sequence of the batch stands in."""
        return self.first_row + (index if self.rows is None else int(self.rows[index]))


def changed(path: str) -> ValueError:
    """Returns the error for a file that is not what an earlier look at it found."""
    return ValueError(
        f"{without_secrets(path)} changed while it was being prepared; prepare again when nothing writes to it"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One file that was found, as it was then."""

    path: str
    stamp: FileStamp
    num_rows: int

    def check(self) -> None:
        """Raises a ValueError where the file is another now."""
        if not self.stamp.holds(self.path):
            raise changed(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span(ABC):
    """Consecutive rows of one file; pickles small, so that a task is made of some."""

    path: str
    """The file, the URL of an object, or what messages call something in memory."""
    stamp: FileStamp | None
    """Of the file when it was found; None in memory."""
    first_row: int
    """Row of the file, 0-based, that the span begins with."""
    first_index: int
    """The same, over all files in order."""
    num_rows: int
    columns: Columns
    skips_bad_rows: bool = False
    """Whether a row that fails is left out and counted; else it is an error."""

    @property
    def where(self) -> str:
        """The path, as messages show it."""
        return without_secrets(self.path)

    @abstractmethod
    def _read(self) -> Iterator[RawRows]:
        """Yields the span's rows in order; a ValueError where the file cannot be read."""

    def part(self, row: int) -> str:
        """Says in which part of the file a row is, such as " (row group 3)"; empty where files have none."""
        return ""

    def follows(self, before: "Span") -> bool:
        """Whether this one can be read in one go with the span before it."""
        return False

    def through(self, last: Self) -> Self:
        """Returns the span from this one to a later one that follows it, both included."""
        return replace(self, num_rows=last.first_row + last.num_rows - self.first_row)

    def batches(self) -> Iterator[Batch]:
        """Yields the span's rows in order.

        Raises:
            ValueError: a row fails and none is skipped, or the file changed since it was found; the message names
                file, row, row group and column.
        """
        self._check()
        row = self.first_row
        for raw in self._read():
            if len(raw.lengths):
                yield self._checked(raw, row)
            row += len(raw.lengths)
        self._check()
        if row != self.first_row + self.num_rows:
            raise changed(self.path)

    def _check(self) -> None:
        if self.stamp is not None and not self.stamp.holds(self.path):
            raise changed(self.path)

    def _checked(self, raw: RawRows, first_row: int) -> Batch:
        ids = raw.ids
        if ids is None:
            first_index = self.first_index + first_row - self.first_row
            ids = np.arange(first_index, first_index + len(raw.lengths), dtype=np.int64)
        faults = _faults(raw)
        if faults is None:
            groups = None if raw.groups is None else _as_int64(raw.groups)
            return Batch(_as_int64(raw.lengths), _as_int64(ids), first_row, groups=groups)
        bad = np.flatnonzero(faults)
        if not self.skips_bad_rows:
            self._refuse(raw, first_row, int(bad[0]), Fault(faults[bad[0]]))
        sound = np.flatnonzero(faults == Fault.NONE)
        skipped = np.stack([first_row + bad, faults[bad]], axis=1).astype(np.int64)
        return Batch(_as_int64(raw.lengths[sound]), _as_int64(ids[sound]), first_row, sound, skipped)

    def _refuse(self, raw: RawRows, first_row: int, index: int, fault: Fault) -> None:
        row = first_row + index
        column, values = self.columns.length, raw.lengths
        if fault in (Fault.NULL_ID, Fault.LONG_ID) and raw.ids is not None:
            column, values = self.columns.id, raw.ids
        if fault in (Fault.NULL_GROUP, Fault.LONG_GROUP) and raw.groups is not None:
            column, values = self.columns.group, raw.groups
        what, value = f"column {column!r}" if column is not None else "length", values[index]
        said = {
            Fault.SHORT_LENGTH: f"is {value}{self.part(row)}; a sequence has at least 1 token",
            Fault.LONG_LENGTH: f"is {value}{self.part(row)}, which int64 cannot hold",
            Fault.LONG_ID: f"is {value}{self.part(row)}, which int64 cannot hold",
            Fault.LONG_GROUP: f"is {value}{self.part(row)}, which int64 cannot hold",
        }.get(fault, f"is null{self.part(row)}")
        raise ValueError(
            f"{self.where}: row {row}, {what} {said}; repair the row or leave it out, or choose --on-bad-row skip"
        )


def _faults(raw: RawRows) -> NDArray[np.uint8] | None:
    """Returns the Fault of every row: uint8 [n]; None where all are sound."""
    lengths, ids = raw.lengths, raw.ids
    if not len(lengths):
        return None
    masks = [
        (Fault.LONG_GROUP, _beyond_int64(raw.groups)),
        (Fault.NULL_GROUP, raw.null_groups),
        (Fault.LONG_ID, _beyond_int64(ids)),
        (Fault.NULL_ID, raw.null_ids),
        (Fault.LONG_LENGTH, _beyond_int64(lengths)),
        (Fault.SHORT_LENGTH, lengths < 1 if int(lengths.min()) < 1 else None),
        (Fault.NULL_LENGTH, raw.null_lengths),
    ]
    if all(mask is None for _, mask in masks):
        return None
    faults = np.zeros(len(lengths), dtype=np.uint8)
    for fault, mask in masks:  # what stands last is said first
        if mask is not None:
            faults[mask] = fault
    return faults if faults.any() else None


def _beyond_int64(values: NDArray[np.integer] | None) -> NDArray[np.bool_] | None:
    if values is None or values.dtype != np.uint64 or int(values.max()) <= _INT64_MAX:
        return None
    return values > _INT64_MAX


def _as_int64(values: NDArray[np.integer]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)  # copied: kernels see one type, writable or not


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a reader found in an input."""

    kind: str
    """The reader's `kind`."""
    spans: Sequence[Span]
    """All rows in order; each is small enough to make tasks from."""
    files: Sequence[InputFile]
    """The files that they stand in; none in memory."""
    columns: Columns
    """As they are read: `length` is the evident one where the user named none."""
    gives_ids: bool = False
    """Whether ids stand in the input, in any order, also where no column is named."""


class Reader(Protocol):
    """One kind of input."""

    kind: str
    """What people call it, such as "Parquet"."""
    takes: str
    """What `packhorse prepare --help` says of it."""
    is_alone: bool
    """Whether ids are entries of one file or folder, so that several inputs cannot be told apart."""

    def recognises(self, path: str) -> bool:
        """Whether a file or folder that is there is of this kind, by its name or its first bytes."""
        ...

    def files(self, source: str) -> list[str]:
        """Returns the files that hold the rows of one input, in the order that numbers them, and no others."""
        ...

    def files_beside(self, paths: Sequence[str]) -> list[str]:
        """Returns what is looked at as well, so that no output may replace it."""
        ...

    def open(self, paths: Sequence[str], columns: Columns, *, skips_bad_rows: bool) -> Opened:
        """Cuts files into spans.

        Args:
            paths: at least one, of `files`.
            columns: as the user named them.
            skips_bad_rows: what the spans do with a row that fails.

        Raises:
            ValueError: a file cannot be read, or a column is missing, of another type, or cannot be told.
        """
        ...


class WholeFiles:
    """The plain answers of a reader whose input is the files that a path names."""

    is_alone = False
    suffixes: tuple[str, ...] = ()
    """How names of its files end; a folder is searched for the first."""
    magic: bytes | None = None
    """What its files begin with, whatever they are called."""

    def recognises(self, path: str) -> bool:
        """See `Reader`."""
        if without_secrets(path).endswith(self.suffixes):
            return not is_folder(path)
        return bool(self.magic and first_bytes(path, len(self.magic)) == self.magic)

    def files(self, source: str) -> list[str]:
        """See `Reader`."""
        return named_files(source, self.suffixes[0])

    def files_beside(self, paths: Sequence[str]) -> list[str]:
        """See `Reader`."""
        return []


def first_bytes(path: str, size: int) -> bytes:
    """Returns what a file or an object begins with; nothing of a folder or of what cannot be read."""
    try:
        with open_binary(path) as file:
            return file.read(size)
    except OSError:
        return b""


def refuse_columns(path: str, kind: str, columns: Columns) -> None:
    """Refuses columns that were named for what has none; a ValueError."""
    where = without_secrets(path)
    if columns.group is not None:
        raise ValueError(
            f"{where} is {kind}, which has no columns: --group-size N makes groups of every N entries, and "
            "--groups FILE.npy names each entry's"
        )
    if columns.length is not None or columns.id is not None:
        raise ValueError(f"{where} is {kind}, which has no columns: leave out --length-column/--id-column")


def cut(num_rows: int, size: int = SPAN_ROWS) -> Iterator[tuple[int, int]]:
    """Yields (first row, number of rows) of pieces of at most `size` rows."""
    for first in range(0, num_rows, size):
        yield first, min(size, num_rows - first)


def piece(column: NDArray[Any], first: int, size: int) -> NDArray[Any]:
    """Returns some consecutive elements of a column; for `RawRows.each`."""
    return column[first : first + size]


def with_integers(rows: RawRows, table: Any, columns: Columns) -> RawRows:
    """Returns rows with the ids and groups of an Arrow table or record batch of them."""
    found = [(None, None) if name is None else _values_and_nulls(_joined(table, name)) for name in columns.integers]
    (ids, null_ids), (groups, null_groups) = found
    return rows._replace(ids=ids, null_ids=null_ids, groups=groups, null_groups=null_groups)


def arrow_lengths(lengths: Any, is_list: bool) -> RawRows:
    """Returns an Arrow array of lengths, or of lists, whose lengths are taken from their offsets.

    Args:
        lengths: integers, or lists.
        is_list: which of them.
    """
    if is_list:
        import pyarrow.compute as pc

        lengths = pc.list_value_length(lengths)
    return RawRows(*_values_and_nulls(lengths))


def arrow_rows(batch: Any, columns: Columns, is_list: bool) -> RawRows:
    """Returns the rows of an Arrow record batch.

    Args:
        batch: has the columns, by name.
        columns: which they are.
        is_list: whether the length column holds lists.
    """
    lengths = arrow_lengths(batch.column(batch.schema.get_field_index(columns.length)), is_list)
    return with_integers(lengths, batch, columns)


def _joined(table: Any, name: str) -> Any:
    """Returns a column of an Arrow table or record batch as one array."""
    column = table.column(table.schema.get_field_index(name))
    return column.combine_chunks() if hasattr(column, "combine_chunks") else column


def _values_and_nulls(array: Any) -> tuple[NDArray[np.integer], NDArray[np.bool_] | None]:
    return (values_of(array.fill_null(1)), nulls_of(array)) if array.null_count else (values_of(array), None)
