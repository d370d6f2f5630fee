"""`MegatronWriter`: sequences one by one into a pair `.bin` and `.idx`.

Leaves checking and counting them to `sequence_writer`, and loss masks to `masked_writer`.
"""

import os
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.formats.megatron.layout import write_index
from packhorse.formats.megatron.sequence_writer import SequenceWriter
from packhorse.formats.megatron.tokens import MegatronTokens

_BUFFERED_TOKENS = 1 << 18
"""Tokens collected before they are written."""


class MegatronWriter(SequenceWriter):
    """Writes sequences one by one, each as a document. A context manager.

    Files appear at the end, as a whole; after an exception none is left. Memory is 4 bytes a sequence and a buffer.

    Example:
        >>> with MegatronWriter("written", vocab_size=32_000) as writer:
        ...     writer.append([1, 2, 3])
        >>> [path.name for path in (writer.bin_path, writer.idx_path)]
        ['written.bin', 'written.idx']
    """

    def __init__(self, path: str | os.PathLike[str], *, vocab_size: int, overwrite: bool = False) -> None:
        super().__init__(path, vocab_size=vocab_size, overwrite=overwrite)
        self._bin, self._idx = self._files.files
        self._buffer = np.empty(_BUFFERED_TOKENS, dtype=self.dtype)
        self._buffered = 0  # tokens in the buffer that are not in the file yet

    def _paths(self) -> list[Path]:
        return [self.bin_path, self.idx_path]

    def append(self, tokens: ArrayLike) -> None:
        """Adds one sequence.

        Args:
            tokens: integers [n], n at least 1, each in [0, vocab_size).

        Raises:
            ValueError: the tokens are not such integers.
        """
        values = self._checked(tokens)
        self._write(values)
        self._written_lengths.append(len(values))
        self._num_tokens += len(values)

    def append_many(self, tokens: NDArray[np.integer], lengths: NDArray[np.integer]) -> None:
        """Adds several sequences together, which is faster than one by one.

        Example:
            >>> with MegatronWriter("many", vocab_size=32_000) as writer:
            ...     writer.append_many(np.array([1, 2, 3]), np.array([2, 1]))
            >>> len(writer)
            2

        Args:
            tokens: all tokens, end to end: integers [T], each in [0, vocab_size).
            lengths: length of each sequence, at least 1: integers [n] with the sum T.

        Raises:
            ValueError: the two do not fit each other, or a token is out of range.
        """
        if int(lengths.sum()) != len(tokens) or (len(lengths) and int(lengths.min()) < 1):
            raise ValueError(f"{len(lengths)} lengths must each be at least 1 and sum to the {len(tokens)} tokens")
        if len(tokens):  # else there is no least id; the text begins the error's message
            self._check_ids(tokens, f"one of the sequences {len(self)} to {len(self) + len(lengths) - 1} holds")
        self._write(tokens)
        self._count(lengths)

    def extend(self, tokens: MegatronTokens) -> None:
        """Adds all sequences of another pair of the same vocab_size.

        Example:
            >>> with MegatronWriter("twice", vocab_size=32_000) as writer:
            ...     writer.extend(MegatronTokens("corpus.idx"))
            ...     writer.extend(MegatronTokens("corpus.idx"))
            >>> len(writer), writer.num_tokens
            (8, 32)

        Args:
            tokens: the other pair; its sequences lie end to end in its `.bin`.

        Raises:
            ValueError: its tokens are of another type.
        """
        self._flush()
        self._copy(tokens, self._bin)

    def _finish(self) -> None:
        self._flush()
        write_index(self._idx, self._lengths, self.dtype)

    def _write(self, values: np.ndarray) -> None:
        """Adds tokens to the buffer, or to the file directly if they are more than the buffer holds."""
        if self._buffered + len(values) > len(self._buffer):
            self._flush()
        if len(values) > len(self._buffer):
            self._bin.write(values.astype(self.dtype).tobytes())
            return
        self._buffer[self._buffered : self._buffered + len(values)] = values
        self._buffered += len(values)

    def _flush(self) -> None:
        self._bin.write(self._buffer[: self._buffered].tobytes())
        self._buffered = 0
