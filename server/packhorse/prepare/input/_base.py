"""The interface of a reader: an input as ranges of rows, each checked as it is read.

Owns `Reader` and `RowRange`, which each kind of input implements in a module such as `parquet`; default answers for
kinds whose input is the files that a path names; and refusing or skipping bad rows, with the error that names a row.
Leaves what rows are, and what may be wrong with them, to `_rows`, and the list of readers to `find`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np

from packhorse.formats.file_stamp import FileStamp
from packhorse.formats.files import is_folder, named_files, open_binary
from packhorse.formats.object_store import without_secrets
from packhorse.parameters import parameter
from packhorse.prepare.input._columns import MOST_AMOUNT, InputColumns
from packhorse.prepare.input._key_columns import KeyColumn
from packhorse.prepare.input._rows import Batch, Fault, RawRows, as_int64, faults_of

BATCH_ROWS = 1 << 17
"""About the rows of a batch, the rows that are in memory together."""
RANGE_ROWS = 1 << 20
"""About the rows of a range, if the input has no parts of its own, such as row groups."""


def changed(path: str) -> ValueError:
    """Returns the error for a file that has changed since it was first looked at."""
    return ValueError(
        f"{without_secrets(path)} changed while it was being prepared; prepare again when nothing writes to it"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One input file, as it was when it was found."""

    path: str
    """Path or URL of the file."""
    stamp: FileStamp
    """Size and time of the file, by which changes are noticed."""
    num_rows: int
    """Rows in the file."""

    def ranges(
        self, range_class: type["RowRange"], columns: InputColumns, first_index: int, **further_fields: Any
    ) -> "list[RowRange]":
        """Returns the file's rows as ranges of up to `RANGE_ROWS`.

        Args:
            range_class: the class of the ranges.
            columns: the columns to read.
            first_index: number of the file's first row, over all files.
            further_fields: the fields that the class adds to `RowRange`.
        """
        return [
            range_class(
                path=self.path,
                stamp=self.stamp,
                first_row=first,
                first_index=first_index + first,
                num_rows=size,
                columns=columns,
                **further_fields,
            )
            for first, size in cut_rows(self.num_rows, RANGE_ROWS)
        ]

    def check(self) -> None:
        """Raises a ValueError if the file has changed since it was found."""
        if not self.stamp.holds(self.path):
            raise changed(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange(ABC):
    """Consecutive rows of one file, to be read where a task runs: small when pickled, unless the rows are in memory."""

    path: str
    """Path or URL of the file; for rows in memory, their name in messages."""
    stamp: FileStamp | None
    """Stamp of the file when it was found; None for rows in memory."""
    first_row: int
    """Number of the first row in the file, 0-based."""
    first_index: int
    """Number of the first row over all files in order, 0-based."""
    num_rows: int
    """Rows in the range."""
    columns: InputColumns
    """The columns to read."""
    is_list: bool = False
    """Whether the length column holds lists of tokens, whose lengths are counted."""

    @property
    def where(self) -> str:
        """The path for messages, without secrets of a signed URL."""
        return without_secrets(self.path)

    @abstractmethod
    def _read(self) -> Iterator[RawRows]:
        """Yields the range's rows in order, unchecked; raises a ValueError if the file cannot be read."""

    def part_of_row(self, row: int) -> str:
        """Returns the part of the file that a row is in, for messages: " (row group 3)"; "" if files have no parts."""
        return ""

    def follows(self, before: "RowRange") -> bool:
        """Returns whether this range begins where `before` ends, in the same file, so that both can be read as one.

        By default ranges are never joined; a kind whose ranges can be says so itself.
        """
        return False

    def through(self, last: Self) -> Self:
        """Returns one range from the beginning of this range to the end of `last`, a later one in the same file."""
        return replace(self, num_rows=last.first_row + last.num_rows - self.first_row)

    def batches(self) -> Iterator[Batch]:
        """Yields the range's rows in order, checked.

        Raises:
            ValueError: a row is bad and bad rows are not skipped, or the file changed since it was found; the message
                names file, row, row group and column.
        """
        self._check()
        row = self.first_row  # of the next rows that are read
        for raw in self._read():
            if len(raw.lengths):
                yield self._checked(raw, row)
            row += len(raw.lengths)
        self._check()
        if row != self.first_row + self.num_rows:
            raise changed(self.path)

    def _check(self) -> None:
        """Raises a ValueError if the file has changed since it was found."""
        if self.stamp is not None and not self.stamp.holds(self.path):
            raise changed(self.path)

    def _checked(self, raw: RawRows, first_row: int) -> Batch:
        """Returns rows as a batch without the bad ones; refuses the first bad row if bad rows are not skipped."""
        ids = raw.ids
        if ids is None:
            first_id = self.first_index + first_row - self.first_row  # an id is the row's number over all files
            ids = np.arange(first_id, first_id + len(raw.lengths), dtype=np.int64)
        faults = faults_of(raw)
        if faults is None:
            groups, resources = (None if each is None else as_int64(each) for each in (raw.groups, raw.resources))
            return Batch(as_int64(raw.lengths), as_int64(ids), first_row, groups=groups, resources=resources)
        bad = np.flatnonzero(faults)
        if self.columns.on_bad_row == "error":
            first_bad = int(bad[0])
            raise self._refusal(raw, first_row, first_bad, Fault(faults[first_bad]))
        # Rows are skipped only without groups and resources, so the batch has neither.
        sound = np.flatnonzero(faults == Fault.NONE)
        skipped = np.stack([first_row + bad, faults[bad]], axis=1).astype(np.int64)  # (number in the file, Fault)
        lengths, sound_ids = as_int64(raw.lengths[sound]), as_int64(ids[sound])
        return Batch(lengths, sound_ids, first_row, rows=sound, skipped=skipped)

    def _refusal(self, raw: RawRows, first_row: int, index: int, fault: Fault) -> ValueError:
        """Returns the error for a bad row: what is wrong with which column, and the way out."""
        row = first_row + index
        column, value = self._wrong_value(raw, index, fault)
        if fault is Fault.SHORT_LENGTH and self.is_list:
            value = "an empty list"
        subject = "length" if column is None else f"column {column!r}"
        part = self.part_of_row(row)
        problem = {
            Fault.SHORT_LENGTH: f"is {value}{part}; a sequence has at least 1 token",
            Fault.LONG_LENGTH: f"is {value}{part}, which int64 cannot hold",
            Fault.LONG_ID: f"is {value}{part}, which int64 cannot hold: cast the column to text, whose values name "
            "sequences as keys",
            Fault.LONG_GROUP: f"is {value}{part}, which int64 cannot hold",
            Fault.NULL_RESOURCE: f"is null{part}, but a resource is a number: write 0, or an empty list, for a "
            "sequence that needs none of it",
            Fault.LOW_RESOURCE: f"is below 0, or holds a null or a grid that is not (t, h, w){part}",
            Fault.HIGH_RESOURCE: f"is over 2^31 - 1{part}, the most that a sequence may take",
        }.get(fault, f"is null{part}")
        may_skip = self.columns.group is None and not self.columns.resources
        or_skip = (", or choose " + parameter("on_bad_row", "skip")) if may_skip else ""
        return ValueError(f"{self.where}: row {row}, {subject} {problem}; repair the row or leave it out" + or_skip)

    def _wrong_value(self, raw: RawRows, index: int, fault: Fault) -> tuple[str | None, Any]:
        """Returns the column with a row's fault, None for lengths without a column, and the value in it."""
        if fault in (Fault.NULL_ID, Fault.LONG_ID) and raw.ids is not None:
            return self.columns.id, raw.ids[index]
        if fault in (Fault.NULL_GROUP, Fault.LONG_GROUP) and raw.groups is not None:
            return self.columns.group, raw.groups[index]
        if fault in (Fault.NULL_RESOURCE, Fault.LOW_RESOURCE, Fault.HIGH_RESOURCE) and raw.resources is not None:
            amounts = raw.resources[index]
            is_wrong = (amounts < 0) | (amounts > MOST_AMOUNT)
            if raw.null_resources is not None:
                is_wrong |= raw.null_resources[index]
            number = int(np.argmax(is_wrong))
            return self.columns.amounts[number], amounts[number]
        return self.columns.length, raw.lengths[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The rows of an input, found by a reader."""

    kind: str
    """The reader's `kind`."""
    ranges: Sequence[RowRange]
    """All rows in order, in ranges that are small enough to make tasks from."""
    files: Sequence[InputFile]
    """The files of the rows; empty for rows in memory."""
    columns: InputColumns
    """The columns that are read. If the user named none for lengths, `length` is the one that was chosen."""
    keys: KeyColumn | None = None
    """Keys of the rows; None if rows have ids only."""
    gives_ids: bool = False
    """Whether the input has ids of its own, in any order, although no column of ids is named."""

    @property
    def num_rows(self) -> int:
        """Rows in all ranges."""
        return sum(each.num_rows for each in self.ranges)

    def check_files(self) -> None:
        """Raises a ValueError if a file has changed since it was found."""
        for file in self.files:
            file.check()


class Reader(Protocol):
    """One kind of input. `WholeFiles` has answers that most kinds share."""

    kind: str
    """The kind's name, such as "Parquet"."""
    takes: str
    """What the kind takes, its line in `packhorse prepare --help`."""
    is_alone: bool
    """Whether an id is the number of an entry in one file or folder, so that only one input can be given."""

    def recognises(self, path: str) -> bool:
        """Returns whether an existing file or folder is of this kind, by its name or its first bytes."""
        ...

    def files(self, source: str) -> list[str]:
        """Returns the files that hold the rows of one input, in the order in which rows are numbered."""
        ...

    def files_beside(self, paths: Sequence[str]) -> list[str]:
        """Returns further files that are read, which no output may replace either."""
        ...

    def open(self, paths: Sequence[str], columns: InputColumns) -> Opened:
        """Looks at files, and returns their rows as ranges.

        Args:
            paths: at least one path that `files` returned.
            columns: the columns as the user named them.

        Raises:
            ValueError: a file cannot be read, or a column is missing, ambiguous, or of another type.
        """
        ...


def cut_rows(num_rows: int, size: int = RANGE_ROWS) -> Iterator[tuple[int, int]]:
    """Yields (first row, number of rows) of consecutive ranges of at most `size` rows."""
    for first in range(0, num_rows, size):
        yield first, min(size, num_rows - first)


class WholeFiles:
    """Default answers of a reader whose input is the files that a path, a folder or a pattern names."""

    is_alone = False
    suffixes: tuple[str, ...] = ()
    """Suffixes of the kind's files, at least one; in a folder, files with the first suffix are found."""
    magic: bytes | None = None
    """First bytes of the kind's files, whatever their names; None if there are none."""

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
    """Returns the first `size` bytes of a file or an object; b"" for a folder or anything that cannot be read."""
    try:
        with open_binary(path) as file:
            return file.read(size)
    except OSError:
        return b""
