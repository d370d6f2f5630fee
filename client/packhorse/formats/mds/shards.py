"""MDS shards (MosaicML Streaming, version 2), read through memory maps.

Owns the layout of shards, and finding cells (one column of one sequence). Leaves the index to `index`, what an array's
cell holds to `arrays`, and which column holds tokens to `packhorse.tokens.tables.mds`.

A shard, little-endian: u32 n; u32[n + 1] offsets of its sequences from the file's beginning; the columns again as JSON;
then the sequences.
"""

import mmap
import os
import struct
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.files import open_binary
from packhorse.formats.mapping import check_index, map_file
from packhorse.formats.mds.arrays import array_type, list_lengths, num_integers
from packhorse.formats.mds.index import INDEX, Shard, below, folder_of, read_index
from packhorse.formats.object_store import is_url, without_secrets
from packhorse.storage import BoundedCache

INTEGERS: dict[str, np.dtype[Any]] = {
    "int": np.dtype("<i8"),
    **{name: np.dtype(name).newbyteorder("<") for name in ("int8", "int16", "int32", "int64")},
    **{name: np.dtype(name).newbyteorder("<") for name in ("uint8", "uint16", "uint32", "uint64")},
}
"""Encoding of a column of single integers -> their type."""

_MAX_OPEN_SHARDS = 256
"""Shards that are mapped at once: a map holds a file descriptor, of which a process has about a thousand."""

_U32 = np.dtype("<u4")
"""Type of the number of sequences, of their offsets, and of a column's size."""


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
        self.path = folder_of(path)
        """The folder; a str is a URL."""
        self.where = without_secrets(str(self.path))
        """The folder, as messages show it."""
        self.index_path = below(self.path, INDEX)
        index = read_index(self.path)
        self.columns = index.columns
        """Name -> encoding, in the order of a sequence's bytes."""
        self._layouts = index.layouts
        self._shards = index.shards
        # Exclusive end of every shard, in sequences: shards of 3 and 2 -> [3, 5].
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
        begin, end = struct.unpack_from("<2I", mapped, _U32.itemsize * (1 + row))  # after the number of sequences
        return self.cell_of(memoryview(mapped)[begin:end], column, f"{shard.where}: sequence {row}")

    def shard_of(self, index: int) -> tuple[int, int]:
        """Returns the number of the shard that holds a sequence, and the sequence's row there; see `cell`."""
        check_index(index, len(self), self.where)
        number = bisect_right(self._ends, index)
        first = self._ends[number] - self._shards[number].num_sequences
        return number, index - first

    def shards_of(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the numbers of the shards that hold n sequences, and the rows there: int64 [n] each."""
        ends = np.array(self._ends)
        numbers = np.searchsorted(ends, indices, side="right")
        firsts = np.concatenate([[0], ends])  # of every shard, and the end: ends [3, 5] -> [0, 3, 5]
        return numbers, indices - firsts[numbers]

    def cell_of(self, sequence: memoryview, column: str, where: str) -> memoryview:
        """Returns the bytes of one column from the bytes of a whole sequence, as a view.

        Raises:
            ValueError: the sequence is corrupt; the message begins with `where`.
        """
        try:
            begin, size = self._layouts[column].cell(0, lambda at: int(struct.unpack_from("<I", sequence, at)[0]))
        except struct.error:  # even a size is beyond the sequence's end
            raise _ends_late(where, column) from None
        if begin + size > len(sequence):
            raise _ends_late(where, column)
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
        array = array_type(encoding)
        may_hold_integers = array is not None and (array.dtype is None or array.dtype.kind in "iu")
        if not may_hold_integers and encoding != "json":
            raise ValueError(
                f"{self.where}: column {column!r} is encoded as {encoding!r}, but arrays or lists of integers are "
                "needed"
            )
        begins, sizes = self._cells(number, column)
        where = self._shards[number].where
        if array is not None and array.dtype is not None and array.shape is None:
            heads = self._read_at(number, column, begins, np.dtype("u1"))  # the first byte of each cell
            return list_lengths(heads, sizes, array.dtype, where, column)
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
            raise _ends_late(f"{shard.where}: sequence {int(is_beyond.argmax())}", column)
        return begins, np.broadcast_to(size, begins.shape)  # a fixed size is one number for all

    def _read_at(self, number: int, column: str, offsets: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Reads a number at each byte offset of a shard: dtype [n]; a ValueError if one is beyond the file."""
        data = np.frombuffer(self._map(number), np.uint8)
        indices = offsets[:, None] + np.arange(dtype.itemsize)  # [n, itemsize]: offset 8 of u2 -> [8, 9]
        try:
            return data[indices].view(dtype)[:, 0]
        except IndexError:
            raise ValueError(
                f"{self._shards[number].where}: column {column!r} ends after the file: it is corrupt"
            ) from None

    def _map(self, number: int) -> mmap.mmap | bytes:
        """Returns a shard's bytes, mapped and checked when it is first used."""
        return self._open.get(number, lambda: _map_shard(self._shards[number]))


def _map_shard(shard: Shard) -> mmap.mmap | bytes:
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
    return _U32.itemsize * (1 + num_sequences + 1)


def _ends_late(where: str, column: str) -> ValueError:
    """Returns the error for a cell that does not lie in its sequence."""
    return ValueError(f"{where}, column {column!r} ends after the sequence: it is corrupt")


def _offsets(shard: mmap.mmap | bytes, num_sequences: int) -> NDArray[np.uint32]:
    """Returns where a shard's sequences begin and the last ends, in bytes: uint32 [n + 1]."""
    return np.frombuffer(shard, _U32, count=num_sequences + 1, offset=_U32.itemsize)
