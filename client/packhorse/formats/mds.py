"""MDS shards (MosaicML Streaming, version 2), read through memory maps.

Owns the layout of shards; leaves the index and what the bytes of a cell mean to `mds_index`, and what a
column means to its reader. Nothing is unpickled, and compressed shards are left to tools that decompress them.

Layout, little-endian. A shard: u32 n; u32[n + 1] offsets of its sequences from the file's beginning; the columns again
as JSON; then the sequences. A sequence: a u32 size for each column that has no fixed one, then its columns.
"""

import mmap
import os
import struct
from bisect import bisect_right
from collections import OrderedDict
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.files import open_binary
from packhorse.formats.mapping import check_index, map_file
from packhorse.formats.mds_index import INTEGERS, MdsIndex, Shard, array_type, num_integers
from packhorse.formats.object_store import without_secrets

_MAX_OPEN_SHARDS = 256  # an open map holds a file descriptor, of which a process has about a thousand


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
            path: the folder, or its `index.json`; or the URL of one. A shard in a store is read whole, into memory.

        Raises:
            FileNotFoundError: the index or a shard is missing.
            ValueError: the index is not valid or of another version, shards differ in their columns, or one is there
                only compressed.
        """
        index = MdsIndex.of(path)
        self.path = index.folder
        """The folder; a str is a URL."""
        self.where = without_secrets(str(index.folder))
        """The folder, as messages show it."""
        self.index_path = index.path
        self.columns = index.columns
        """Name -> encoding, in the order of a sequence's bytes."""
        self._layouts, self._num_sizes, self._shards = index.layouts, index.num_sizes, index.shards
        self._ends = list(accumulate(shard.num_sequences for shard in self._shards))
        self._open: OrderedDict[int, mmap.mmap | bytes] = OrderedDict()

    def __len__(self) -> int:
        """Number of sequences, S."""
        return self._ends[-1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

    def cell(self, index: int, column: str) -> memoryview:
        """Returns the bytes of one column of one sequence, a read-only view of the shard.

        Args:
            index: the sequence, in [0, S), over all shards in the index's order.
            column: its name.

        Raises:
            IndexError: there is no such sequence.
            ValueError: the shard is not what the index says, or is corrupt; the message names it.
        """
        number, row = self.shard_of(index)
        shard, mapped = self._shards[number], self._map(number)
        begin, end = struct.unpack_from("<2I", mapped, 4 + 4 * row)
        return self.cell_of(memoryview(mapped)[begin:end], column, f"{shard.where}: sequence {row}")

    def shard_of(self, index: int) -> tuple[int, int]:
        """Returns the shard that a sequence is in, and its number there; see `cell`."""
        check_index(index, len(self), self.path)
        number = bisect_right(self._ends, index)
        return number, index - self._ends[number] + self._shards[number].num_sequences

    def shards_of(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns `shard_of` many sequences that are there: int64 [n] both."""
        ends = np.array(self._ends)
        numbers = np.searchsorted(ends, indices, side="right")
        return numbers, indices - np.concatenate([[0], ends])[numbers]

    def cell_of(self, sequence: memoryview, column: str, where: str) -> memoryview:
        """Returns the bytes of one column in the bytes of a sequence, a view.

        Args:
            sequence: all of its bytes.
            column: its name.
            where: the shard and the sequence, for messages.

        Raises:
            ValueError: the sequence is corrupt.
        """
        layout = self._layouts[column]
        first = 4 * self._num_sizes + layout.fixed_bytes_before
        size = layout.size_bytes or 0
        if first <= len(sequence):
            sizes = struct.unpack_from(f"<{self._num_sizes}I", sequence)
            first += sum(sizes[: layout.variable_columns_before])
            size = sizes[layout.variable_columns_before] if layout.size_bytes is None else layout.size_bytes
        if first + size > len(sequence):
            raise ValueError(f"{where}, column {column!r} ends beyond the sequence: it is corrupt")
        return sequence[first : first + size]

    @property
    def shards(self) -> list[tuple[Path | str, int]]:
        """Path or URL, and number of sequences of every shard, in the index's order."""
        return [(shard.path, shard.num_sequences) for shard in self._shards]

    def where_of(self, number: int) -> str:
        """Returns a shard's path or URL, as messages show it."""
        return self._shards[number].where

    def integers(self, column: str) -> NDArray[np.int64]:
        """Returns a column of one integer for each sequence: int64 [S], in memory.

        Raises:
            ValueError: the column holds something else, or integers that int64 cannot hold.
        """
        values = np.concatenate([self.shard_integers(number, column) for number in range(len(self._shards))])
        if values.dtype.kind == "u" and len(values) and int(values.max()) > np.iinfo(np.int64).max:
            raise ValueError(f"{self.where}: column {column!r} holds {values.max()}, which int64 cannot hold")
        return values.astype(np.int64)

    def shard_integers(self, number: int, column: str) -> NDArray[np.integer]:
        """Returns a column of one integer for each sequence of one shard: integers [n], of the encoding's type.

        Raises:
            ValueError: the column holds something else, or the shard is corrupt.
        """
        encoding = self.columns[column]
        if encoding not in INTEGERS:
            raise ValueError(f"{self.where}: column {column!r} is encoded as {encoding!r}, but integers are needed")
        return self._numbers(number, column, self._cells(number, column)[0], INTEGERS[encoding])

    def shard_lengths(self, number: int, column: str) -> NDArray[np.int64]:
        """Returns how many tokens the lists in a column of one shard have: int64 [n].

        Of arrays it reads their sizes, and only lists in JSON are decoded.

        Raises:
            ValueError: the column holds no lists of integers, or the shard is corrupt.
        """
        encoding = self.columns[column]
        found = array_type(encoding)
        if encoding != "json" and (found is None or (found[0] is not None and found[0].kind not in "iu")):
            raise ValueError(
                f"{self.where}: column {column!r} is encoded as {encoding!r}, but arrays or lists of integers are "
                "needed"
            )
        firsts, sizes = self._cells(number, column)
        where, mapped = self._shards[number].where, self._map(number)
        if found is None or found[0] is None or found[1] is not None:
            return np.array(
                [
                    num_integers(memoryview(mapped)[first : first + size], encoding, where, row)
                    for row, (first, size) in enumerate(zip(firsts.tolist(), sizes.tolist(), strict=True))
                ],
                dtype=np.int64,
            )
        shapes = self._numbers(number, column, firsts, np.dtype("u1"))  # one axis: 4 + log2 of its extent's size
        if (shapes >> 2 != 1).any():
            row = int((shapes >> 2 != 1).argmax())
            raise ValueError(f"{where}: sequence {row}, column {column!r} holds no list: {shapes[row] >> 2} axes")
        lengths = (sizes - 1 - (1 << (shapes & 3).astype(np.int64))) // found[0].itemsize
        if len(lengths) and int(lengths.min()) < 0:
            raise ValueError(
                f"{where}: sequence {int(lengths.argmin())}, column {column!r} has no bytes: it is corrupt"
            )
        return lengths

    def _cells(self, number: int, column: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns where a column's cells begin in one shard, and their sizes, in bytes: int64 [n] both."""
        shard, mapped, layout = self._shards[number], self._map(number), self._layouts[column]
        begins = np.frombuffer(mapped, "<u4", shard.num_sequences, 4).astype(np.int64)
        ends = np.frombuffer(mapped, "<u4", shard.num_sequences, 8).astype(np.int64)
        firsts = begins + 4 * self._num_sizes + layout.fixed_bytes_before
        for size in range(layout.variable_columns_before):
            firsts += self._numbers(number, column, begins + 4 * size, np.dtype("<u4"))
        sizes = np.full(len(firsts), layout.size_bytes or 0, dtype=np.int64)
        if layout.size_bytes is None:
            at = begins + 4 * layout.variable_columns_before
            sizes = self._numbers(number, column, at, np.dtype("<u4")).astype(np.int64)
        beyond = firsts + sizes > ends
        if beyond.any():
            row = int(beyond.argmax())
            raise ValueError(
                f"{shard.where}: sequence {row}, column {column!r} ends beyond the sequence: it is corrupt"
            )
        return firsts, sizes

    def _numbers(self, number: int, column: str, offsets: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[Any]:
        try:
            return _numbers_at(self._map(number), offsets, dtype)
        except IndexError:
            raise ValueError(
                f"{self._shards[number].where}: column {column!r} ends beyond the file: it is corrupt"
            ) from None

    def _map(self, number: int) -> mmap.mmap | bytes:
        """Maps a shard and checks its frame, or finds its map among the last ones."""
        mapped = self._open.pop(number, None)
        if mapped is None:
            mapped = _map_shard(self._shards[number])
        self._open[number] = mapped
        if len(self._open) > (1 if isinstance(self.path, str) else _MAX_OPEN_SHARDS):
            self._open.popitem(last=False)
        return mapped


def _map_shard(shard: Shard) -> mmap.mmap | bytes:
    if isinstance(shard.path, str):
        with open_binary(shard.path) as file:
            mapped: mmap.mmap | bytes = file.read()
    else:
        mapped = map_file(shard.path)
    if len(mapped) != shard.size_bytes:
        raise ValueError(
            f"{shard.where} has {len(mapped)} bytes, but its index says {shard.size_bytes}: it is truncated or replaced"
        )
    frame_bytes = 4 + 4 * (shard.num_sequences + 1)
    if len(mapped) < frame_bytes or struct.unpack_from("<I", mapped)[0] != shard.num_sequences:
        raise ValueError(f"{shard.where} does not hold the {shard.num_sequences} sequences that its index says")
    offsets = np.frombuffer(mapped, "<u4", shard.num_sequences + 1, 4)
    if offsets[0] < frame_bytes or offsets[-1] != len(mapped) or (offsets[1:] < offsets[:-1]).any():
        raise ValueError(f"{shard.where}: its sequences' offsets do not run to the file's end: it is corrupt")
    return mapped


def _numbers_at(mapped: mmap.mmap | bytes, offsets: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Reads numbers that need not be aligned: dtype [n], at byte offsets int64 [n]."""
    data = np.frombuffer(mapped, np.uint8)
    return data[offsets[:, None] + np.arange(dtype.itemsize)].view(dtype)[:, 0]
