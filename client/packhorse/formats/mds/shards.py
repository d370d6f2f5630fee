"""MDS shards (MosaicML Streaming, version 2), read through memory maps.

Owns the index, the layout of shards, and finding cells (one column of one sequence). Leaves what an array's cell holds
to `arrays`, and which column holds tokens to `packhorse.tokens.tables.mds`. Compressed shards are refused.

`index.json`: {version 2, shards: [{format "mds", column_names, column_encodings, column_sizes, raw_data {basename,
bytes}, zip_data, samples, …}]}. A shard, little-endian: u32 n; u32[n + 1] offsets of its sequences from the file's
beginning; the columns again as JSON; then the sequences. A sequence: a u32 size for each column that has no fixed one,
then its columns.
"""

import json
import mmap
import os
import struct
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.files import open_binary
from packhorse.formats.mapping import check_index, map_file
from packhorse.formats.mds.arrays import array_type, list_lengths, num_integers
from packhorse.formats.object_store import is_url, without_secrets
from packhorse.storage import BoundedCache

INDEX = "index.json"
INTEGERS: dict[str, np.dtype[Any]] = {
    "int": np.dtype("<i8"),
    **{name: np.dtype(name).newbyteorder("<") for name in ("int8", "int16", "int32", "int64")},
    **{name: np.dtype(name).newbyteorder("<") for name in ("uint8", "uint16", "uint32", "uint64")},
}
"""Encoding of a column of single integers -> their type."""

_MAX_OPEN_SHARDS = 256  # an open map holds a file descriptor, of which a process has about a thousand

_U32 = np.dtype("<u4")

_Bytes = TypeVar("_Bytes", int, NDArray[np.int64])
"""Byte offsets or sizes: of one sequence, or of all sequences of a shard."""


@dataclass(frozen=True, slots=True)
class _Shard:
    """One shard, as the index describes it."""

    path: Path | str
    """Path of the shard; a str is a URL."""
    where: str
    """The path, as messages show it."""
    size_bytes: int
    num_sequences: int


class _Columns(NamedTuple):
    """The columns of a shard, as the index describes them."""

    names: list[str]
    encodings: list[str]
    sizes: list[int | None]
    """The fixed size of each column in bytes; None or 0 if it has none."""


class _Entry(NamedTuple):
    """What the index says of one shard."""

    columns: _Columns
    name: str
    """Name of the shard's file in the folder."""
    size_bytes: int
    num_sequences: int
    compressed: Any
    """The index's object about the compressed file, with its `basename`; None if there is none."""


class _ColumnLayout(NamedTuple):
    """Where a column is in a sequence."""

    fixed_bytes_before: int
    """Bytes before the column that every sequence has: all sizes, and the columns of a fixed size before this one."""
    variable_columns_before: int
    """Number of the columns without a fixed size before this one; their sizes are in each sequence."""
    size_bytes: int | None
    """The column's fixed size; None if it has none."""

    def cell(self, sequence: _Bytes, size_at: Callable[[_Bytes], _Bytes]) -> tuple[_Bytes, _Bytes | int]:
        """Returns where the column's cell begins, and its size; of one sequence or, with arrays, of several.

        Args:
            sequence: where the sequence begins.
            size_at: reads a size at an offset.
        """
        begin = sequence + self.fixed_bytes_before
        for number in range(self.variable_columns_before):
            begin = begin + size_at(sequence + 4 * number)
        if self.size_bytes is not None:
            return begin, self.size_bytes
        return begin, size_at(sequence + 4 * self.variable_columns_before)


class MdsShards:
    """A folder of MDS shards. Legend: S sequences.

    Pickles by path and maps shards when they are first used; a fork shares the read-only maps.

    Example:
        >>> shards = MdsShards("mds")
        >>> len(shards), shards.columns["input_ids"]
        (5, 'ndarray:uint16')
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Reads the index; O(shards).

        Args:
            path: the folder, or its `index.json`; or the URL of either. A shard in a store is read into memory whole.

        Raises:
            FileNotFoundError: the index or a shard is missing.
            ValueError: the index is not valid or of another version, shards differ in their columns, or a shard is
                there only in compressed form.
        """
        self.path = _folder_of(path)
        """The folder; a str is a URL."""
        self.where = without_secrets(str(self.path))
        """The folder, as messages show it."""
        self.index_path = _below(self.path, INDEX)
        shown = without_secrets(str(self.index_path))
        entries = _entries(self.index_path)
        columns = entries[0].columns
        names, encodings, sizes = columns
        if len(set(names)) != len(names) or not len(names) == len(encodings) == len(sizes):
            raise ValueError(f"{shown}: columns, encodings and sizes do not fit each other")
        for number, entry in enumerate(entries):
            if entry.columns != columns:
                raise ValueError(f"{shown}: shard {number} has other columns than shard 0")
        self.columns: dict[str, str] = dict(zip(names, encodings, strict=True))
        """Name -> encoding, in the order of a sequence's bytes."""
        self._layouts = _layouts(names, sizes)
        self._shards = [_shard(self.path, entry) for entry in entries]
        self._ends = list(accumulate(shard.num_sequences for shard in self._shards))
        # Only one shard of a store is held, because it is in memory as a whole.
        self._open = BoundedCache[int, mmap.mmap | bytes](1 if is_url(self.path) else _MAX_OPEN_SHARDS)

    def __len__(self) -> int:
        """Number of sequences, S."""
        return self._ends[-1]

    def cell(self, index: int, column: str) -> memoryview:
        """Returns the bytes of one column of one sequence, a read-only view of the shard.

        Args:
            index: the sequence, in [0, S), over all shards in the index's order.
            column: its name.

        Raises:
            IndexError: there is no such sequence.
            ValueError: the shard does not fit its index, or is corrupt.
        """
        number, row = self.shard_of(index)
        shard, mapped = self._shards[number], self._map(number)
        begin, end = struct.unpack_from("<2I", mapped, 4 + 4 * row)
        return self.cell_of(memoryview(mapped)[begin:end], column, f"{shard.where}: sequence {row}")

    def shard_of(self, index: int) -> tuple[int, int]:
        """Returns the number of the shard that holds a sequence, and the sequence's row there; see `cell`."""
        check_index(index, len(self), self.where)
        number = bisect_right(self._ends, index)
        return number, index - self._ends[number] + self._shards[number].num_sequences

    def shards_of(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the numbers of the shards that hold n sequences, and the rows there: int64 [n] each."""
        ends = np.array(self._ends)
        numbers = np.searchsorted(ends, indices, side="right")
        return numbers, indices - np.concatenate([[0], ends])[numbers]

    def cell_of(self, sequence: memoryview, column: str, where: str) -> memoryview:
        """Returns the bytes of one column from the bytes of a whole sequence, as a view.

        Raises:
            ValueError: the sequence is corrupt; the message begins with `where`.
        """
        try:
            begin, size = self._layouts[column].cell(0, lambda at: int(struct.unpack_from("<I", sequence, at)[0]))
            is_beyond = begin + size > len(sequence)
        except struct.error:  # even a size is beyond the end
            is_beyond = True
        if is_beyond:
            raise ValueError(f"{where}, column {column!r} ends after the sequence: it is corrupt")
        return sequence[begin : begin + size]

    @property
    def shards(self) -> list[tuple[Path | str, int]]:
        """Path or URL, and number of sequences of every shard, in the index's order."""
        return [(shard.path, shard.num_sequences) for shard in self._shards]

    def where_of(self, number: int) -> str:
        """Returns a shard's path or URL, as messages show it."""
        return self._shards[number].where

    def integers(self, column: str) -> NDArray[np.int64]:
        """Returns a column that holds one integer for each sequence: int64 [S], in memory.

        Raises:
            ValueError: the column holds something else, or integers that int64 cannot hold.
        """
        values = np.concatenate([self.shard_integers(number, column) for number in range(len(self._shards))])
        if values.dtype.kind == "u" and len(values) and int(values.max()) > np.iinfo(np.int64).max:
            raise ValueError(f"{self.where}: column {column!r} holds {values.max()}, which int64 cannot hold")
        return values.astype(np.int64)

    def shard_integers(self, number: int, column: str) -> NDArray[np.integer]:
        """Returns a column of one shard that holds one integer for each sequence: integers [n] of the encoding's type.

        Raises:
            ValueError: the column holds something else, or the shard is corrupt.
        """
        encoding = self.columns[column]
        if encoding not in INTEGERS:
            raise ValueError(f"{self.where}: column {column!r} is encoded as {encoding!r}, but integers are needed")
        begins, _ = self._cells(number, column)
        return self._read_at(number, column, begins, INTEGERS[encoding])

    def shard_lengths(self, number: int, column: str) -> NDArray[np.int64]:
        """Returns the lengths of the lists in a column of one shard: int64 [n].

        If the encoding names the type of arrays but no shape, lengths follow from the sizes of cells. Cells of other
        encodings are decoded.

        Raises:
            ValueError: the column holds no lists of integers, or the shard is corrupt.
        """
        encoding = self.columns[column]
        found = array_type(encoding)
        is_array = found is not None and (found.dtype is None or found.dtype.kind in "iu")
        if not is_array and encoding != "json":
            raise ValueError(
                f"{self.where}: column {column!r} is encoded as {encoding!r}, but arrays or lists of integers are "
                "needed"
            )
        begins, sizes = self._cells(number, column)
        where = self._shards[number].where
        if found is not None and found.dtype is not None and found.shape is None:
            heads = self._read_at(number, column, begins, np.dtype("u1"))
            return list_lengths(heads, sizes, found.dtype, where, column)
        mapped = memoryview(self._map(number))
        cells = zip(begins.tolist(), sizes.tolist(), strict=True)
        return np.array(
            [
                num_integers(mapped[begin : begin + size], encoding, where, row)
                for row, (begin, size) in enumerate(cells)
            ],
            dtype=np.int64,
        )

    def _cells(self, number: int, column: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns where a column's cells begin in one shard, and their sizes, both in bytes: int64 [n]."""
        shard = self._shards[number]
        offsets = _offsets(self._map(number), shard.num_sequences).astype(np.int64)
        begins, size = self._layouts[column].cell(
            offsets[:-1], lambda at: self._read_at(number, column, at, _U32).astype(np.int64)
        )
        is_beyond = begins + size > offsets[1:]
        if is_beyond.any():
            row = int(is_beyond.argmax())
            raise ValueError(f"{shard.where}: sequence {row}, column {column!r} ends after the sequence: it is corrupt")
        return begins, np.broadcast_to(size, begins.shape)

    def _read_at(self, number: int, column: str, offsets: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Reads a number at each byte offset of a shard: dtype [n]; a ValueError if one is beyond the file."""
        data = np.frombuffer(self._map(number), np.uint8)
        try:
            return data[offsets[:, None] + np.arange(dtype.itemsize)].view(dtype)[:, 0]
        except IndexError:
            raise ValueError(
                f"{self._shards[number].where}: column {column!r} ends after the file: it is corrupt"
            ) from None

    def _map(self, number: int) -> mmap.mmap | bytes:
        """Returns a shard's bytes, mapped and checked when it is first used."""
        return self._open.get(number, lambda: _map_shard(self._shards[number]))


def _map_shard(shard: _Shard) -> mmap.mmap | bytes:
    """Maps a shard, or reads it from its store; checks its size, its number of sequences and their offsets."""
    if isinstance(shard.path, str):
        with open_binary(shard.path) as file:
            mapped: mmap.mmap | bytes = file.read()
    else:
        mapped = map_file(shard.path)
    if len(mapped) != shard.size_bytes:
        raise ValueError(
            f"{shard.where} has {len(mapped)} bytes, but its index says {shard.size_bytes}: it is truncated or replaced"
        )
    begin = head_bytes(shard.num_sequences)
    if len(mapped) < begin or struct.unpack_from("<I", mapped)[0] != shard.num_sequences:
        raise ValueError(f"{shard.where} does not hold the {shard.num_sequences} sequences that its index says")
    offsets = _offsets(mapped, shard.num_sequences)
    if offsets[0] < begin or offsets[-1] != len(mapped) or (offsets[1:] < offsets[:-1]).any():
        raise ValueError(f"{shard.where}: its sequences' offsets do not run to the file's end: it is corrupt")
    return mapped


def head_bytes(num_sequences: int) -> int:
    """Returns the size of a shard's head: the number of its sequences, where each begins, and where the last ends."""
    return 4 + 4 * (num_sequences + 1)


def _offsets(shard: mmap.mmap | bytes, num_sequences: int) -> NDArray[np.uint32]:
    """Returns where a shard's sequences begin and the last ends, in bytes: uint32 [n + 1]."""
    return np.frombuffer(shard, _U32, num_sequences + 1, 4)


def _folder_of(path: str | os.PathLike[str]) -> Path | str:
    """Returns the folder for a folder or its index; a str for a URL."""
    if is_url(path):
        return path.removesuffix(INDEX).rstrip("/")
    given = Path(path)
    return given.parent if given.name == INDEX else given


def _below(folder: Path | str, name: str) -> Path | str:
    return f"{folder}/{name}" if isinstance(folder, str) else folder / name


def _entries(path: Path | str) -> list[_Entry]:
    """Returns the entries of an index, one for each shard; a ValueError if it is not an index of MDS, version 2."""
    where = without_secrets(str(path))
    try:
        with open_binary(str(path)) as file:
            index = json.loads(file.read().decode())
        version, shards = index["version"], list(index["shards"])
        formats = {shard["format"] for shard in shards}
        entries = [_entry(shard) for shard in shards] if version == 2 and formats == {"mds"} else []
    except (UnicodeDecodeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not an index of MDS shards: {error!r}") from None
    if version != 2:
        raise ValueError(f"{where} has version {version}; only version 2 of MDS can be read")
    if formats != {"mds"}:
        found = ", ".join(sorted(map(str, formats))) or "none"
        raise ValueError(f"{where} must name shards of format mds; found: {found}")
    return entries


def _entry(shard: dict[str, Any]) -> _Entry:
    """Reads the index's object about a shard; a KeyError, TypeError or ValueError if it lacks a fact."""
    raw = shard["raw_data"]
    return _Entry(
        columns=_Columns(*(list(shard[f"column_{what}"]) for what in _Columns._fields)),
        name=os.fspath(raw["basename"]),
        size_bytes=int(raw["bytes"]),
        num_sequences=int(shard["samples"]),
        compressed=shard.get("zip_data"),
    )


def _layouts(names: list[str], sizes: list[int | None]) -> dict[str, _ColumnLayout]:
    """Returns where each column is in a sequence, by name; a column's size is None or 0 if it is not fixed."""
    layouts = {}
    fixed_bytes = 4 * sum(not size for size in sizes)
    variable_columns = 0
    for name, size in zip(names, sizes, strict=True):
        layouts[name] = _ColumnLayout(fixed_bytes, variable_columns, size or None)
        fixed_bytes += size or 0
        variable_columns += not size
    return layouts


def _shard(folder: Path | str, entry: _Entry) -> _Shard:
    """Returns the shard of an index's entry; raises if it is missing from the disk, or there only compressed."""
    path = _below(folder, entry.name)
    if isinstance(folder, Path) and isinstance(path, Path) and not path.exists():
        compressed = entry.compressed
        if compressed and (folder / compressed["basename"]).exists():
            raise ValueError(
                f"{path} is only there compressed, as {compressed['basename']}, and cannot be mapped; "
                "decompress the shards beside it (streaming keeps both with keep_zip=True), or write them without "
                "compression"
            )
        raise FileNotFoundError(f"{path} is missing, but {INDEX} names it")
    return _Shard(path, without_secrets(str(path)), entry.size_bytes, entry.num_sequences)
