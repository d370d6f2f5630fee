"""MDS shards as input, the format of MosaicML's Streaming.

Owns the reader: which columns are read, and the rows of each shard. Leaves the form of shards to
`packhorse.formats.mds`.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from packhorse.formats import MdsShards
from packhorse.formats.arrow import evident_column
from packhorse.formats.file_stamp import FileStamp
from packhorse.formats.files import is_file
from packhorse.formats.mds import INDEX, INTEGERS, array_type
from packhorse.formats.name_lists import listed
from packhorse.formats.object_store import for_each, without_secrets
from packhorse.parameters import parameter
from packhorse.prepare.input._base import InputFile, Opened, RowRange, WholeFiles
from packhorse.prepare.input._columns import InputColumns
from packhorse.prepare.input._rows import RawRows, as_amounts
from packhorse.prepare.input._tables import evident_lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class MdsRows(RowRange):
    """The rows of one shard."""

    shards: MdsShards
    """All shards of the folder; small when pickled, which takes the index only."""
    number: int
    """The shard's number in the index."""

    def _read(self) -> Iterator[RawRows]:
        length = self.columns.length
        assert length is not None  # the reader chose one
        read = self.shards.shard_integers if self.shards.columns[length] in INTEGERS else self.shards.shard_lengths
        lengths = read(self.number, length)
        amounts = [as_amounts(self.shards.shard_integers(self.number, name)) for name in self.columns.amounts]
        yield RawRows(
            lengths,
            ids=self._integers(self.columns.id),
            groups=self._integers(self.columns.group),
            resources=np.stack(amounts, axis=1) if amounts else None,
        )

    def _integers(self, column: str | None) -> NDArray[np.integer] | None:
        """Returns a column of the shard that holds one integer for each row; None if there is no such column."""
        return None if column is None else self.shards.shard_integers(self.number, column)


class MdsReader(WholeFiles):
    """Reads folders of MDS shards, which hold tokens or lengths in columns."""

    kind = "MDS"
    takes = "one folder of MDS shards with its index.json; a column of lengths or of tokens"
    is_alone = True
    suffixes = (INDEX,)

    def recognises(self, path: str) -> bool:
        """Returns whether a path is an index.json, or a folder that has one; see `Reader`."""
        shown = without_secrets(path)
        if os.path.basename(shown) == INDEX:
            return True
        is_signed = shown != path  # a signed URL is of one object, so it cannot name a folder
        return not is_signed and is_file(os.path.join(path, INDEX))

    def files(self, source: str) -> list[str]:
        """Returns the index.json only; the shards are named in it; see `Reader`."""
        return super().files(source if os.path.basename(source) == INDEX else os.path.join(source, INDEX))

    def files_beside(self, paths: Sequence[str]) -> list[str]:
        """Returns the shards; see `Reader`."""
        return [str(path) for index in paths for path, _num_rows in MdsShards(index).shards]

    def open(self, paths: Sequence[str], columns: InputColumns) -> Opened:
        """Returns a range for each shard; see `Reader`."""
        (index,) = paths  # only one: the reader `is_alone`
        shards = MdsShards(index)
        chosen = _chosen(shards, columns)
        ranges: list[RowRange] = []
        files = [InputFile(path=index, stamp=FileStamp.of(index), num_rows=0)]  # so that its changes are noticed
        first_index = 0
        stamps = for_each([path for path, _num_rows in shards.shards], FileStamp.of)
        for number, ((path, num_rows), stamp) in enumerate(zip(shards.shards, stamps, strict=True)):
            file = InputFile(path=str(path), stamp=stamp, num_rows=num_rows)
            files.append(file)
            if num_rows:
                ranges.append(
                    MdsRows(
                        path=file.path,
                        stamp=file.stamp,
                        shards=shards,
                        number=number,
                        first_row=0,
                        first_index=first_index,
                        num_rows=num_rows,
                        columns=chosen,
                    )
                )
            first_index += num_rows
        return Opened(kind=self.kind, ranges=ranges, files=files, columns=chosen)


def _chosen(shards: MdsShards, columns: InputColumns) -> InputColumns:
    """Returns the columns to read, with `length` chosen if the user named none; refuses those that cannot be read."""
    where = shards.where
    column_list = listed(f"{name!r} ({encoding})" for name, encoding in shards.columns.items())
    for name in columns.names:
        if name not in shards.columns:
            raise ValueError(f"{where} has no column {name!r}; its columns are: {column_list}")
    tokens = [name for name in shards.columns if _is_tokens(shards.columns[name])]
    numbers = [name for name, encoding in shards.columns.items() if encoding in INTEGERS]
    length = columns.length or evident_column(tokens) or evident_lengths(tokens, numbers)
    if length is None:
        raise ValueError(
            f"{where}: which column holds the tokens is not evident; "
            + parameter("length_column")
            + f" must name one, of lengths or of tokens. Its columns are: {column_list}"
        )
    chosen = replace(columns, length=length)
    _refuse_other_encodings(shards, chosen)
    return chosen


def _refuse_other_encodings(shards: MdsShards, columns: InputColumns) -> None:
    """Raises a ValueError if a column that is to be read cannot hold what it is read for."""
    length = columns.length
    assert length is not None  # the caller chose one
    encoding = shards.columns[length]
    if encoding not in INTEGERS and not _is_tokens(encoding):
        raise ValueError(
            f"{shards.where}: column {length!r} is encoded as {encoding!r}, but integers (lengths in tokens) or "
            "arrays or lists of integers (the tokens) are needed"
        )
    for what, column in (
        ("ids", columns.id),
        ("groups", columns.group),
        *(("resources", name) for name in columns.amounts),
    ):
        if column is not None and shards.columns[column] not in INTEGERS:
            raise ValueError(
                f"{shards.where}: column {column!r} is encoded as {shards.columns[column]!r}, but {what} are integers"
            )


def _is_tokens(encoding: str) -> bool:
    """Returns whether an MDS encoding may hold a sequence's tokens: JSON, or an array of integers with one axis."""
    if encoding == "json":
        return True
    found = array_type(encoding)
    if found is None:
        return False
    # An encoding may leave type or shape to each array: then arrays are checked when they are read.
    may_be_integers = found.dtype is None or found.dtype.kind in "iu"
    may_have_one_axis = found.shape is None or len(found.shape) == 1
    return may_be_integers and may_have_one_axis
