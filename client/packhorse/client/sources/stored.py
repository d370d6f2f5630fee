"""Token files of `packhorse.formats` as sources: Megatron pairs and flat files with boundaries, memory-mapped.

Owns where a sequence lies in the map; leaves the files' layouts to `packhorse.formats` and copying to `_spans`.
"""

import os
from itertools import repeat
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from packhorse.client.sources._ids import RowLookup, refuse_row_numbers
from packhorse.client.sources._spans import Spans, SpanSource
from packhorse.client.sources.base import TokenSourceError
from packhorse.formats import FlatTokens, MegatronIndex, MegatronTokens
from packhorse.formats.mapping import map_file


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
