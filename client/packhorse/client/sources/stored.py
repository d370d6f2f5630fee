"""Token files of `packhorse.formats` as sources: Megatron pairs and flat files with boundaries, memory-mapped.

Owns where a sequence lies in the map; leaves the files' layouts to `packhorse.formats` and copying to `_spans`.
"""

import os
from collections import OrderedDict
from itertools import repeat
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from packhorse.client.sources._lists import RowLookup, refuse_row_numbers
from packhorse.client.sources._spans import Spans, SpanSource
from packhorse.client.sources.base import TokenSourceError
from packhorse.client.sources.fetched import CachedObject, FetchedAhead, StoreCache, joined
from packhorse.formats import FlatTokens, MdsShards, MegatronIndex, MegatronTokens
from packhorse.formats.mapping import map_file
from packhorse.formats.object_store import for_each


class SequenceAddresses(Protocol):
    """Where an index says that sequences lie. Legend: S sequences asked for."""

    dtype: np.dtype[Any]
    """Of a token."""

    def __len__(self) -> int:
        """How many sequences there are."""
        ...

    def __call__(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where some begin, in bytes, and how many tokens they have: int64 [S] each."""
        ...


class MegatronAddresses:
    """Those of a Megatron index; it pickles by path."""

    def __init__(self, index: MegatronIndex) -> None:
        self._index = index
        self._arrays: tuple[NDArray[np.int64], NDArray[np.int32]] | None = None
        self.dtype = index.dtype

    def __len__(self) -> int:
        return len(self._index)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": None}

    def __call__(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See `SequenceAddresses`."""
        if self._arrays is None:
            self._arrays = self._index.offsets, self._index.lengths
        offsets, lengths = self._arrays
        return offsets[rows], lengths[rows].astype(np.int64)


class FlatAddresses:
    """Those of boundaries beside a flat file; it pickles by path."""

    def __init__(self, boundaries_path: Path, num_sequences: int, dtype: np.dtype[Any]) -> None:
        self._path = boundaries_path
        self._num_sequences = num_sequences
        self._ends: NDArray[np.int64] | None = None
        self.dtype = dtype

    def __len__(self) -> int:
        return self._num_sequences

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ends": None}

    def __call__(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """See `SequenceAddresses`."""
        # Not FlatTokens.lengths, which every worker process would compute and hold for the whole file.
        if self._ends is None:
            self._ends = np.frombuffer(map_file(self._path), "<i8")
        if not len(rows):
            return rows, rows
        firsts = self._ends[rows - 1]
        firsts *= rows > 0  # before row 0 stands the last one's end
        return firsts * self.dtype.itemsize, self._ends[rows] - firsts


class StoredSource(SpanSource):
    """A source over one token file, whose ids are the indices of its sequences."""

    def __init__(self, where: str, addresses: SequenceAddresses) -> None:
        if addresses.dtype.kind not in "iu":
            raise TokenSourceError(f"{where}: holds {addresses.dtype}, but tokens are integers")
        self._where = where
        self._addresses = addresses
        self._dtype = addresses.dtype
        self._lookup = RowLookup(where, len(addresses))

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def where(self) -> str:
        """The token file."""
        return self._where

    def for_ids(self, id_column: str) -> Self:
        """Returns itself where ids are row numbers; see `TokenSource.for_ids`."""
        if id_column:
            refuse_row_numbers(
                self.where,
                id_column,
                "holds no ids, only rows",
                "Pass an Arrow or Parquet file that has the column, or a dict from id to tokens",
            )
        return self

    def origin(self, sequence_id: int) -> str:
        """The row of the token file."""
        (row,) = self._lookup.rows(np.array([sequence_id])).tolist()
        return f"row {row} of {self.where}"


class _MappedSource(StoredSource):
    """One over a file on disk.

    Forks share the map; a pickled source carries paths only, and maps the files itself when first used.
    """

    def __init__(self, tokens: MegatronTokens | FlatTokens, addresses: SequenceAddresses) -> None:
        super().__init__(str(tokens.path), addresses)
        self._tokens = tokens
        self._mapped: memoryview | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}

    def _spans(self, ids: NDArray[np.int64]) -> Spans:
        rows = self._lookup.rows(ids)
        if self._mapped is None:
            if len(self):
                self._tokens.read(0, 0, 0)  # the formats' own check that the file is still the one first opened
            self._mapped = memoryview(map_file(self._tokens.path))
        firsts, lengths = self._addresses(rows)
        return Spans(repeat(self._mapped), firsts, lengths)


class MegatronSource(_MappedSource):
    """Tokens of a Megatron `.bin`/`.idx` pair, memory-mapped; a sequence's id is its index.

    Example:
        >>> MegatronSource("corpus.idx").lengths(np.array([0, 1])).tolist()
        [5, 3]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens the pair.

        Args:
            path: the `.idx`, the `.bin` or their common prefix.

        Raises:
            FileNotFoundError: one of the two files is missing.
            ValueError: the index is not valid or does not fit the `.bin`.
            TokenSourceError: the file holds floating-point numbers.
        """
        tokens = MegatronTokens(path)
        super().__init__(tokens, MegatronAddresses(tokens.index))


class FlatSource(_MappedSource):
    """Tokens of a flat memmap with `.boundaries` beside it; a sequence's id is its index.

    Example:
        >>> from packhorse.formats import write_flat_tokens
        >>> num_sequences = write_flat_tokens("flat-source.bin", [[1, 2, 3], [4]], dtype="uint16")
        >>> FlatSource("flat-source.bin").read(0).tolist()
        [1, 2, 3]
    """

    def __init__(self, path: str | os.PathLike[str], dtype: DTypeLike | None = None) -> None:
        """Opens the file and its boundaries.

        Args:
            path: the token file; the boundaries lie at the same path with `.boundaries` appended.
            dtype: uint16 or uint32; None finds it from the size of the file and the last boundary.

        Raises:
            FileNotFoundError: one of the two files is missing.
            ValueError: the two do not fit each other or the dtype.
        """
        tokens = FlatTokens(path, dtype=dtype)
        super().__init__(tokens, FlatAddresses(tokens.boundaries_path, len(tokens), tokens.dtype))


_MOST_OPEN_SHARDS = 1024


class StoredShards:
    """The cells of shards in a store; it pickles by URL."""

    def __init__(self, shards: MdsShards, store: StoreCache) -> None:
        """Takes the index.

        Args:
            shards: opened by URL.
            store: how the store is read.
        """
        self._shards = shards
        self._store = store
        self._objects: OrderedDict[int, tuple[CachedObject, NDArray[np.uint32]]] = OrderedDict()
        self._blocks: FetchedAhead[tuple[int, int], memoryview] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_objects": OrderedDict(), "_blocks": None}

    def cell(self, index: int, column: str) -> memoryview:
        """Returns the bytes of one column of one sequence; see `MdsShards.cell`."""
        number, begin, end = self._span(index)
        sequence = joined(lambda block: self._opened_blocks().get((number, block)), begin, end, self._store.block_bytes)
        return self._shards.cell_of(memoryview(sequence), column, f"{self._shards.where_of(number)}: sequence {index}")

    def expect(self, rows: NDArray[np.int64]) -> None:
        """Begins to fetch the blocks of sequences, in their order."""
        numbers, rows_there = self._shards.shards_of(rows)
        chosen = np.unique(numbers)
        begins, ends = np.empty_like(rows), np.empty_like(rows)
        # Several at a time: each is a wait for its size and its offsets, before any block can be asked for.
        for number, (_, offsets) in zip(chosen.tolist(), for_each(chosen.tolist(), self._opened), strict=True):
            here = numbers == number
            begins[here], ends[here] = offsets[rows_there[here]], offsets[rows_there[here] + 1]
        size = self._store.block_bytes
        firsts, lasts = begins // size, -(-ends // size)
        several = lasts - firsts
        blocks = np.repeat(firsts, several) + np.arange(several.sum()) - np.repeat(several.cumsum() - several, several)
        of_shards = np.repeat(numbers, several)
        _, at = np.unique(of_shards * (1 << 32) + blocks, return_index=True)
        at.sort()
        self._opened_blocks().expect(list(zip(of_shards[at].tolist(), blocks[at].tolist(), strict=True)))

    def _span(self, index: int) -> tuple[int, int, int]:
        """The shard of a sequence, and [begin, end) of its bytes there."""
        number, row = self._shards.shard_of(index)
        _, offsets = self._opened(number)
        begin, end = offsets[row : row + 2].tolist()
        return number, begin, end

    def _opened(self, number: int) -> tuple[CachedObject, NDArray[np.uint32]]:
        """A shard, and where its sequences begin: uint32 [n + 1]."""
        found = self._objects.get(number)
        if found is None:
            url, num_sequences = self._shards.shards[number]
            stored = CachedObject(str(url), self._store)
            frame = np.frombuffer(stored.object.read(0, 4 + 4 * (num_sequences + 1)), "<u4")
            if frame[0] != num_sequences or (frame[2:] < frame[1:-1]).any() or frame[-1] > stored.size_bytes:
                raise ValueError(
                    f"{self._shards.where_of(number)} does not hold the {num_sequences} sequences that its index says"
                )
            found = self._objects[number] = stored, frame[1:]
            while len(self._objects) > _MOST_OPEN_SHARDS:
                self._objects.popitem(last=False)
        return found

    def _opened_blocks(self) -> "FetchedAhead[tuple[int, int], memoryview]":
        if self._blocks is None or self._blocks.process != os.getpid():
            ahead = self._store.read_ahead_bytes // self._store.block_bytes
            self._blocks = FetchedAhead(lambda key: self._opened(key[0])[0].block(key[1]), ahead=ahead)
        return self._blocks
