"""`MegatronIndex`: a memory-mapped `.idx`, checked when it is opened.

Leaves the header, and what the bytes mean, to `layout`.
"""

import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.arrays import CHUNK_ELEMENTS, first_descent
from packhorse.formats.mapping import map_file
from packhorse.formats.megatron.layout import DTYPES, HEADER, read_header
from packhorse.formats.megatron.paths import megatron_paths


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
        self._mapped: mmap.mmap | bytes | None = map_file(self.path)  # None after unpickling, until it is needed
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
        return np.frombuffer(self._buffer(), "<i4", count=len(self), offset=HEADER.size)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where each sequence begins in `.bin`, in bytes: int64 [S]."""
        after_lengths = HEADER.size + 4 * len(self)
        return np.frombuffer(self._buffer(), "<i8", count=len(self), offset=after_lengths)

    @property
    def document_indices(self) -> NDArray[np.int64]:
        """The first sequence of each document, and S at the end: int64 [D]."""
        after_offsets = HEADER.size + (4 + 8) * len(self)
        return np.frombuffer(self._buffer(), "<i8", count=self._header.num_document_indices, offset=after_offsets)

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
            # Of each document of the chunk: indices [0, 1, 3] -> 1 and 2 sequences.
            num_sequences = np.diff(indices[begin : begin + CHUNK_ELEMENTS + 1])
            of_several = np.flatnonzero(num_sequences > 1)
            if of_several.size:
                at = int(of_several[0])
                raise ValueError(
                    f"{self.path}: document {begin + at} is {num_sequences[at]} sequences, such as the sentences "
                    "that --split-sentences makes, and packing would shuffle them apart. Join the sentences of each "
                    f"document: `packhorse tokenize --input {self.path} --output JOINED`, or write the pair again "
                    "without that flag"
                )

    def _check_contents(self, bin_size_bytes: int | None) -> None:
        """Checks the sequences, the document indices, and that the sequences are as long as the `.bin`."""
        end_bytes = self._checked_end_bytes()
        self._check_document_indices()
        if bin_size_bytes is not None and end_bytes != bin_size_bytes:
            raise ValueError(
                f"{self.path}: its {len(self)} sequences take {end_bytes} bytes, and the .bin has {bin_size_bytes}: "
                "one of the two files is truncated, older than the other, or from elsewhere"
            )

    def _checked_end_bytes(self) -> int:
        """Returns where the last sequence ends, in bytes; a ValueError unless all lie end to end from byte 0."""
        lengths, offsets, itemsize = self.lengths, self.offsets, self.dtype.itemsize
        end_bytes = 0  # of the chunks before
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
        return end_bytes

    def _check_document_indices(self) -> None:
        """Checks that document indices ascend from 0 to S."""
        indices = self.document_indices
        if not len(indices) or indices[0] != 0 or indices[-1] != len(self):
            found = f"{indices[0]} … {indices[-1]}" if len(indices) else "none"
            raise ValueError(f"{self.path}: document indices must run from 0 to {len(self)}; found {found}")
        descent = first_descent(indices)
        if descent is not None:
            raise ValueError(f"{self.path}: document index {descent} is below the one before it")
