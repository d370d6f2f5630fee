"""The interface of a reader: an input as ranges of rows, each checked as it is read.

Owns the protocol, its plain answers for files that a path names, and what becomes of rows that fail, whatever they were
read from. Leaves what rows are, and what may be wrong with them, to `_rows`, and files to the readers, a file each.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np

from packhorse.formats import require
from packhorse.formats.file_stamp import FileStamp
from packhorse.formats.files import is_folder, named_files, open_binary
from packhorse.formats.object_store import without_secrets
from packhorse.parameters import parameter
from packhorse.prepare.input._columns import MOST_RESOURCE, InputColumns
from packhorse.prepare.input._key_columns import KeyColumn
from packhorse.prepare.input._rows import Batch, Fault, RawRows, as_int64, faults_of

BATCH_ROWS = 1 << 17
RANGE_ROWS = 1 << 20
"""Rows of a range, about, where the input has no parts of its own."""


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

    def ranges(self, kind: type["RowRange"], columns: InputColumns, first_index: int, **own: Any) -> "list[RowRange]":
        """Returns the rows, cut into ranges of about a million.

        Args:
            kind: of range.
            columns: chosen.
            first_index: of the first row, over all files.
            own: further fields of the kind.
        """
        return [
            kind(
                path=self.path,
                stamp=self.stamp,
                first_row=first,
                first_index=first_index + first,
                num_rows=size,
                columns=columns,
                **own,
            )
            for first, size in cut(self.num_rows, RANGE_ROWS)
        ]

    def check(self) -> None:
        """Raises a ValueError if the file is another now."""
        if not self.stamp.holds(self.path):
            raise changed(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange(ABC):
    """Consecutive rows of one file; pickles small, so that a task is made of some."""

    path: str
    """The file, the URL of an object, or what messages call something in memory."""
    stamp: FileStamp | None
    """Stamp of the file when it was found; None in memory."""
    first_row: int
    """Row of the file, 0-based, that the range begins with."""
    first_index: int
    """The same, over all files in order."""
    num_rows: int
    columns: InputColumns
    is_list: bool = False
    """Whether the length column holds lists of tokens."""

    @property
    def where(self) -> str:
        """The path, as messages show it."""
        return without_secrets(self.path)

    @abstractmethod
    def _read(self) -> Iterator[RawRows]:
        """Yields the range's rows in order; a ValueError if the file cannot be read."""

    def part(self, row: int) -> str:
        """Says in which part of the file a row is, such as " (row group 3)"; empty where files have none."""
        return ""

    def follows(self, before: "RowRange") -> bool:
        """Whether this one can be read in one go with the range before it."""
        return False

    def through(self, last: Self) -> Self:
        """Returns the range from this one to a later one that follows it, both included."""
        return replace(self, num_rows=last.first_row + last.num_rows - self.first_row)

    def batches(self) -> Iterator[Batch]:
        """Yields the range's rows in order.

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
        faults = faults_of(raw)
        if faults is None:
            groups, resources = (None if each is None else as_int64(each) for each in (raw.groups, raw.resources))
            return Batch(as_int64(raw.lengths), as_int64(ids), first_row, groups=groups, resources=resources)
        bad = np.flatnonzero(faults)
        if self.columns.on_bad_row == "error":
            self._refuse(raw, first_row, int(bad[0]), Fault(faults[bad[0]]))
        sound = np.flatnonzero(faults == Fault.NONE)
        skipped = np.stack([first_row + bad, faults[bad]], axis=1).astype(np.int64)
        return Batch(as_int64(raw.lengths[sound]), as_int64(ids[sound]), first_row, sound, skipped)

    def _refuse(self, raw: RawRows, first_row: int, index: int, fault: Fault) -> None:
        row = first_row + index
        column, values = self.columns.length, raw.lengths
        if fault in (Fault.NULL_ID, Fault.LONG_ID) and raw.ids is not None:
            column, values = self.columns.id, raw.ids
        if fault in (Fault.NULL_GROUP, Fault.LONG_GROUP) and raw.groups is not None:
            column, values = self.columns.group, raw.groups
        if fault >= Fault.NULL_RESOURCE and raw.resources is not None:
            which = _which_resource(raw, index)
            column, values = self.columns.amounts[which], raw.resources[:, which]
        what, value = f"column {column!r}" if column is not None else "length", values[index]
        short = "an empty list" if self.is_list else value
        said = {
            Fault.SHORT_LENGTH: f"is {short}{self.part(row)}; a sequence has at least 1 token",
            Fault.LONG_LENGTH: f"is {value}{self.part(row)}, which int64 cannot hold",
            Fault.LONG_ID: f"is {value}{self.part(row)}, which int64 cannot hold: cast the column to text, whose "
            "values name sequences as keys",
            Fault.LONG_GROUP: f"is {value}{self.part(row)}, which int64 cannot hold",
            Fault.NULL_RESOURCE: f"is null{self.part(row)}, but a resource is a number: write 0, or an empty list, for "
            "a sequence that needs none of it",
            Fault.LOW_RESOURCE: f"is below 0, or holds a null or a grid that is not (t, h, w){self.part(row)}",
            Fault.HIGH_RESOURCE: f"is over 2^31 - 1{self.part(row)}, the most that a sequence may take",
        }.get(fault, f"is null{self.part(row)}")
        may_skip = self.columns.group is None and not self.columns.resources
        way_out = (", or choose " + parameter("on_bad_row", "skip")) if may_skip else ""
        raise ValueError(f"{self.where}: row {row}, {what} {said}; repair the row or leave it out" + way_out)


def _which_resource(raw: RawRows, index: int) -> int:
    """Returns the resource of a row that is wrong."""
    assert raw.resources is not None
    is_wrong = (raw.resources[index] < 0) | (raw.resources[index] > MOST_RESOURCE)
    return int(np.argmax(is_wrong if raw.null_resources is None else is_wrong | raw.null_resources[index]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The rows of an input, found by a reader."""

    kind: str
    """The reader's `kind`."""
    ranges: Sequence[RowRange]
    """All rows in order; each is small enough to make tasks from."""
    files: Sequence[InputFile]
    """Their files; none in memory."""
    columns: InputColumns
    """As they are read: `length` is the evident one where the user named none."""
    keys: KeyColumn | None = None
    """Keys of the rows; None if rows have ids only."""
    gives_ids: bool = False
    """Whether the input holds ids, in any order, without a column that is named."""

    @property
    def num_rows(self) -> int:
        """Rows in all ranges."""
        return sum(each.num_rows for each in self.ranges)

    def check_files(self) -> None:
        """Refuses files that changed since they were found; a ValueError."""
        for file in self.files:
            file.check()


class Reader(Protocol):
    """One kind of input."""

    kind: str
    """Its name, such as "Parquet"."""
    takes: str
    """Its line in `packhorse prepare --help`."""
    is_alone: bool
    """Whether ids are the entries of one file or folder, so that only one input can be given."""

    def recognises(self, path: str) -> bool:
        """Whether a file or folder that is there is of this kind, by its name or its first bytes."""
        ...

    def files(self, source: str) -> list[str]:
        """Returns the files that hold the rows of one input, in the order that numbers them, and no others."""
        ...

    def files_beside(self, paths: Sequence[str]) -> list[str]:
        """Returns further files that are read, so that no output may replace them."""
        ...

    def open(self, paths: Sequence[str], columns: InputColumns) -> Opened:
        """Cuts files into ranges.

        Args:
            paths: at least one, of `files`.
            columns: as the user named them.

        Raises:
            ValueError: a file cannot be read, or a column is missing, ambiguous, or of another type.
        """
        ...


def is_wide(paths: Sequence[str], column_of: Callable[[str, str], Iterator[Any]], name: str) -> bool:
    """Whether a column of whole numbers in any of some files holds one that int64 cannot."""
    chunks = (values for path in paths for values in column_of(path, name))
    return any(int(require("pyarrow.compute").max(values).as_py() or 0) >= 2**63 for values in chunks)


def cut(num_rows: int, size: int = RANGE_ROWS) -> Iterator[tuple[int, int]]:
    """Yields (first row, number of rows) of ranges of at most `size` rows."""
    for first in range(0, num_rows, size):
        yield first, min(size, num_rows - first)


class WholeFiles:
    """The plain answers of a reader whose input is the files that a path names."""

    is_alone = False
    suffixes: tuple[str, ...] = ()
    """Suffixes of its files; a folder is searched for the first."""
    magic: bytes | None = None
    """First bytes of its files, whatever their names."""

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
