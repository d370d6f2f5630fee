"""Megatron `.bin`/`.idx` token files: their layout, the type of their tokens, and reading them memory-mapped.

Leaves writing them to `formats.megatron_writer`.

Layout, little-endian. `.idx`: 9 bytes magic; u64 version 1; u8 dtype code; u64 S sequences; u64 D document indices;
at byte 34: int32[S] lengths in tokens; int64[S] byte offsets into `.bin`; int64[D] document indices (the first sequence
of each document, and S at the end); optionally int8[S] modes. `.bin`: the tokens, no header.
"""

import mmap
import os
import struct
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.arrays import CHUNK_ELEMENTS, first_descent
from packhorse.formats.mapping import MappedTokens, map_file
from packhorse.parameters import parameter

MAGIC = b"MMIDIDX\0\0"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("u1"),
    2: np.dtype("i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    6: np.dtype("<f8"),
    7: np.dtype("<f4"),
    8: np.dtype("<u2"),
}
"""Code in the header -> type of a token in `.bin`."""


class MegatronPaths(NamedTuple):
    """The two files of a pair."""

    bin_path: Path
    """`X.bin`, the tokens."""
    idx_path: Path
    """`X.idx`, their index."""


def megatron_paths(path: str | os.PathLike[str]) -> MegatronPaths:
    """Returns `X.bin` and `X.idx` of a path `X`, `X.bin` or `X.idx`.

    Example:
        >>> [path.name for path in megatron_paths("corpus.idx")]
        ['corpus.bin', 'corpus.idx']

    Args:
        path: the prefix `X`, or either file.
    """
    prefix = os.fspath(path)
    if prefix.endswith((".bin", ".idx")):
        prefix = prefix[:-4]
    return MegatronPaths(Path(prefix + ".bin"), Path(prefix + ".idx"))


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Returns the type that Megatron's own tools choose: uint16 for a vocabulary below 65,500 tokens, otherwise int32.

    Example:
        >>> token_dtype(32_000).name, token_dtype(128_256).name
        ('uint16', 'int32')

    Args:
        vocab_size: number of tokens.

    Raises:
        ValueError: vocab_size is not in [1, 2^31].
    """
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, Integral) or not 1 <= vocab_size <= 1 << 31:
        raise ValueError(parameter("vocab_size") + f" is {vocab_size!r}; it must be in [1, 2^31]")
    return np.dtype("<u2") if vocab_size < 65_500 else np.dtype("<i4")


class MegatronIndex:
    """A memory-mapped `.idx`. Legend: S sequences, D document indices.

    The arrays are read-only views of the file and not aligned in memory; copy one (`np.array(index.lengths)`) before
    handing it to code that needs alignment. Pickles by path and reopens when first used.

    Example:
        >>> index = MegatronIndex("corpus.idx")
        >>> index.lengths.tolist(), index.dtype.name
        ([5, 3, 3, 5], 'uint16')
    """

    def __init__(self, path: str | os.PathLike[str], *, bin_size_bytes: int | None = None) -> None:
        """Opens and checks an index; O(S) once.

        Args:
            path: `X.idx`, `X.bin` or the prefix `X`.
            bin_size_bytes: size of the `.bin`, which the sequences must fill; None leaves that unchecked.

        Raises:
            FileNotFoundError: there is no such index.
            ValueError: it is not a valid index, or does not fit the `.bin`; the message names the file and the fault.
        """
        self.path = megatron_paths(path).idx_path
        self._mapped: mmap.mmap | bytes | None = map_file(self.path)
        self._header = read_header(self._mapped[: HEADER.size], len(self._mapped), str(self.path))
        self.dtype = DTYPES[self._header.dtype_code]
        """Type of the tokens in `.bin`."""
        # Offsets and lengths, kept because making views takes longer than reading some rows.
        self._views: tuple[NDArray[np.int64], NDArray[np.int32]] | None = None
        self._check_contents(bin_size_bytes)

    def __len__(self) -> int:
        """Number of sequences, S."""
        return self._header.num_sequences

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None, "_views": None}

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Lengths in tokens: int32 [S]."""
        return np.frombuffer(self._buffer(), "<i4", len(self), HEADER.size)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where each sequence begins in `.bin`, in bytes: int64 [S]."""
        return np.frombuffer(self._buffer(), "<i8", len(self), HEADER.size + 4 * len(self))

    @property
    def document_indices(self) -> NDArray[np.int64]:
        """The first sequence of each document, and S at the end: int64 [D]."""
        return np.frombuffer(self._buffer(), "<i8", self._header.num_document_indices, HEADER.size + 12 * len(self))

    def ranges(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns where sequences begin in `.bin`, in bytes, and their lengths in tokens: int64 [len(rows)] each."""
        if self._views is None:
            self._views = self.offsets, self.lengths
        offsets, lengths = self._views
        return offsets[rows], lengths[rows].astype(np.int64)

    def _buffer(self) -> mmap.mmap | bytes:
        """Returns all bytes, mapped again after unpickling; a ValueError if the header has changed since."""
        if self._mapped is None:
            mapped = map_file(self.path)
            if read_header(mapped[: HEADER.size], len(mapped), str(self.path)) != self._header:
                raise ValueError(f"{self.path} has been replaced since it was first opened; open it again")
            self._mapped = mapped
        return self._mapped

    def refuse_sentences(self) -> None:
        """Raises a ValueError if a document has several sequences, as Megatron's `--split-sentences` writes.

        Packing takes each sequence by itself, so the sentences of a document would be shuffled apart.
        """
        indices = self.document_indices
        for begin in range(0, len(indices), CHUNK_ELEMENTS):
            some = indices[begin : begin + CHUNK_ELEMENTS + 1]
            of_several = np.flatnonzero(some[1:] - some[:-1] > 1)
            if of_several.size:
                at = int(of_several[0])
                raise ValueError(
                    f"{self.path}: document {begin + at} is {some[at + 1] - some[at]} sequences, such as the sentences "
                    "that --split-sentences makes, and packing would shuffle them apart. Join the sentences of each "
                    f"document: `packhorse tokenize --input {self.path} --output JOINED`, or write the pair again "
                    "without that flag"
                )

    def _check_contents(self, bin_size_bytes: int | None) -> None:
        """Checks that sequences lie end to end from byte 0, as long as the `.bin`, and checks the document indices."""
        lengths, offsets, itemsize = self.lengths, self.offsets, self.dtype.itemsize
        end_bytes = 0
        for begin in range(0, len(self), CHUNK_ELEMENTS):
            sizes_bytes = lengths[begin : begin + CHUNK_ELEMENTS].astype(np.int64) * itemsize
            some_offsets = offsets[begin : begin + CHUNK_ELEMENTS]
            negative = np.flatnonzero((sizes_bytes < 0) | (some_offsets < 0))
            if negative.size:
                at = begin + int(negative[0])
                raise ValueError(
                    f"{self.path}: sequence {at} has length {lengths[at]} and offset {offsets[at]}; "
                    "neither may be negative"
                )
            ends_bytes = end_bytes + np.cumsum(sizes_bytes)
            elsewhere = np.flatnonzero(some_offsets != ends_bytes - sizes_bytes)
            if elsewhere.size:
                at = int(elsewhere[0])
                raise ValueError(
                    f"{self.path}: sequence {begin + at} begins at byte {some_offsets[at]}, and the one before it ends "
                    f"at {ends_bytes[at] - sizes_bytes[at]}: sequences must be end to end, in order. The index is "
                    "damaged, or chooses from the sequences of another; write the pair again"
                )
            end_bytes = int(ends_bytes[-1])
        self._check_document_indices()
        if bin_size_bytes is not None and end_bytes != bin_size_bytes:
            raise ValueError(
                f"{self.path}: its {len(self)} sequences take {end_bytes} bytes, and the .bin has {bin_size_bytes}: "
                "one of the two files is truncated, older than the other, or from elsewhere"
            )

    def _check_document_indices(self) -> None:
        """Checks that document indices ascend from 0 to S."""
        indices = self.document_indices
        if not len(indices) or indices[0] != 0 or indices[-1] != len(self):
            found = f"{indices[0]} … {indices[-1]}" if len(indices) else "none"
            raise ValueError(f"{self.path}: document indices must run from 0 to {len(self)}; found {found}")
        descent = first_descent(indices)
        if descent is not None:
            raise ValueError(f"{self.path}: document index {descent} is below the one before it")


class MegatronTokens(MappedTokens):
    """The sequences of a Megatron `.bin`/`.idx` pair, memory-mapped. Legend: S sequences.

    Pickles by path and reopens when first used, so sending it to a spawned DataLoader worker takes a few bytes. A
    forked worker shares the read-only map.

    Example:
        >>> tokens = MegatronTokens("corpus.idx")
        >>> len(tokens), tokens.read(0, start=3).tolist()
        (4, [3, 4])
    """

    index: MegatronIndex

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens and checks the pair; O(S) once.

        Args:
            path: `X`, `X.bin` or `X.idx`.

        Raises:
            FileNotFoundError: one of the two files is missing.
            ValueError: the index is not valid or does not fit the `.bin`.
        """
        tokens, index = megatron_paths(path)
        for missing, there in ((tokens, index), (index, tokens)):
            if there.exists() and not missing.exists():
                raise FileNotFoundError(
                    f"{there} is there and {missing} is not: a Megatron token file is a pair; copy both into one folder"
                )
        size_bytes = tokens.stat().st_size
        super().__init__(tokens, MegatronIndex(path, bin_size_bytes=size_bytes), size_bytes)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Lengths in tokens: int32 [S], read-only and not aligned."""
        return self.index.lengths


class IndexHeader(NamedTuple):
    """What the header of an index says."""

    num_sequences: int
    num_document_indices: int
    dtype_code: int
    """Key of the tokens' type in DTYPES."""


def read_header(header: bytes, size_bytes: int, path: str) -> IndexHeader:
    """Reads the first HEADER.size bytes of an index; the lengths follow them, int32 [S].

    Raises:
        ValueError: the header is not valid, or does not fit the size of the file.
    """
    if size_bytes < HEADER.size:
        raise ValueError(f"{path} has {size_bytes} bytes, fewer than the {HEADER.size} of a Megatron index header")
    magic, version, code, num_sequences, num_document_indices = HEADER.unpack_from(header)
    if magic != MAGIC:
        raise ValueError(f"{path} is not a Megatron index: it begins with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise ValueError(f"{path} is a Megatron index of version {version}; only version {VERSION} is known")
    if code not in DTYPES:
        raise ValueError(f"{path} has the unknown dtype code {code}; known are {sorted(DTYPES)}")
    # Each sequence has 4 bytes for its length, 8 for its offset and perhaps 1 for its mode; a document index has 8.
    size = HEADER.size + 12 * num_sequences + 8 * num_document_indices
    if size_bytes not in (size, size + num_sequences):
        raise ValueError(
            f"{path} has {size_bytes} bytes, but {num_sequences} sequences and {num_document_indices} "
            f"document indices take {size} (or {size + num_sequences} with modes): it is truncated or altered"
        )
    return IndexHeader(num_sequences, num_document_indices, code)
