"""Megatron `.bin`/`.idx` token files, written.

Owns streaming a corpus into the pair; leaves the layout's constants and reading to `megatron`.
"""

import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.formats.mapping import CHUNK_ELEMENTS
from packhorse.formats.megatron import (
    DTYPES,
    HEADER,
    MAGIC,
    VERSION,
    MegatronTokens,
)
from packhorse.formats.sequence_writer import SequenceWriter

COPIED_BYTES = 1 << 22
"""How much is copied at once where one file takes up another."""
_BUFFERED_TOKENS = 1 << 18


class MegatronWriter(SequenceWriter):
    """Writes sequences one by one, each a document of its own, as a context manager.

    The files are written beside their final paths and renamed at the end: after an exception nothing is left. Memory is
    4 bytes a sequence and a buffer.

    Example:
        >>> with MegatronWriter("written", vocab_size=32_000) as writer:
        ...     writer.append([1, 2, 3])
        >>> [path.name for path in (writer.bin_path, writer.idx_path)]
        ['written.bin', 'written.idx']
    """

    def __init__(self, path: str | os.PathLike[str], *, vocab_size: int, overwrite: bool = False) -> None:
        super().__init__(path, vocab_size=vocab_size, overwrite=overwrite)
        self._buffer = np.empty(_BUFFERED_TOKENS, dtype=self.dtype)
        self._buffered = 0

    def _paths(self) -> list[Path]:
        return [self.bin_path, self.idx_path]

    def append(self, tokens: ArrayLike) -> None:
        """Adds one sequence.

        Args:
            tokens: integers [n], n at least 1, each in [0, vocab_size).

        Raises:
            ValueError: the tokens are not such a list.
        """
        values = self._checked(tokens)
        self._write(values)
        self._written.append(len(values))
        self._num_tokens += len(values)

    def append_many(self, tokens: NDArray[np.integer], lengths: NDArray[np.integer]) -> None:
        """Adds several sequences at once, which costs less than one by one.

        Example:
            >>> with MegatronWriter("many", vocab_size=32_000) as writer:
            ...     writer.append_many(np.array([1, 2, 3]), np.array([2, 1]))
            >>> len(writer)
            2

        Args:
            tokens: of all of them, end to end: integers [T], each in [0, vocab_size).
            lengths: of each, at least 1: integers [n], T together.

        Raises:
            ValueError: the two do not fit, or a token is out of range.
        """
        if int(lengths.sum()) != len(tokens) or (len(lengths) and int(lengths.min()) < 1):
            raise ValueError(f"{len(lengths)} lengths of at least 1 must sum up to the {len(tokens)} tokens given")
        if len(tokens):
            self._check_ids(tokens, f"one of the sequences {len(self)} to {len(self) + len(lengths) - 1} holds")
        self._write(tokens)
        self._count(lengths)

    def extend(self, tokens: MegatronTokens) -> None:
        """Adds all sequences of another pair, which was written with the same vocab_size.

        Example:
            >>> with MegatronWriter("twice", vocab_size=32_000) as writer:
            ...     writer.extend(MegatronTokens("corpus.idx"))
            ...     writer.extend(MegatronTokens("corpus.idx"))
            >>> len(writer), writer.num_tokens
            (8, 32)

        Args:
            tokens: sequences that lie end to end in their `.bin`.

        Raises:
            ValueError: they are of another type.
        """
        if tokens.dtype != self.dtype:
            raise ValueError(f"{tokens.path} holds {tokens.dtype}, and {self.bin_path} is to hold {self.dtype}")
        self._flush()
        with tokens.path.open("rb") as file:
            shutil.copyfileobj(file, self._files.files[0], COPIED_BYTES)
        self._count(np.array(tokens.lengths))

    def _finish(self) -> None:
        self._flush()
        write_index(self._files.files[1], self._lengths, self.dtype)

    def _write(self, values: np.ndarray) -> None:
        if self._buffered + len(values) > len(self._buffer):
            self._flush()
        if len(values) > len(self._buffer):
            self._files.files[0].write(values.astype(self.dtype).tobytes())
            return
        self._buffer[self._buffered : self._buffered + len(values)] = values
        self._buffered += len(values)

    def _flush(self) -> None:
        self._files.files[0].write(self._buffer[: self._buffered].tobytes())
        self._buffered = 0


def write_index(file: BinaryIO, lengths: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Writes an index of sequences end to end, each a document of its own; memory is bounded by a chunk."""
    code = next(code for code, known in DTYPES.items() if known == dtype)
    file.write(HEADER.pack(MAGIC, VERSION, code, len(lengths), len(lengths) + 1))
    chunks = [lengths[begin : begin + CHUNK_ELEMENTS] for begin in range(0, len(lengths), CHUNK_ELEMENTS)]
    for chunk in chunks:
        file.write(chunk.astype("<i4").tobytes())
    offset_bytes = 0
    for chunk in chunks:
        sizes_bytes = chunk.astype(np.int64) * dtype.itemsize
        file.write((offset_bytes + np.cumsum(sizes_bytes) - sizes_bytes).astype("<i8").tobytes())
        offset_bytes += int(sizes_bytes.sum())
    for begin in range(0, len(lengths) + 1, CHUNK_ELEMENTS):
        file.write(np.arange(begin, min(begin + CHUNK_ELEMENTS, len(lengths) + 1), dtype="<i8").tobytes())
