"""Writing Megatron `.bin`/`.idx` token files, with or without loss masks beside them.

Owns checking sequences and streaming them into files that appear together or not at all; leaves the layout and reading
to `formats.megatron`. A loss mask is a pair with the same ids and lengths: `X.loss_mask.bin`/`X.loss_mask.idx` hold a
uint8 for each token, 1 where it is trained on.
"""

import os
import shutil
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.formats.arrays import CHUNK_ELEMENTS
from packhorse.formats.loss_mask import LOSS_MASK_SUFFIX
from packhorse.formats.megatron import DTYPES, HEADER, MAGIC, VERSION, MegatronTokens, megatron_paths, token_dtype
from packhorse.parameters import parameter
from packhorse.storage import AtomicFiles

_MASK_DTYPE = np.dtype("u1")
_COPIED_BYTES = 1 << 22
"""Bytes copied at a time from another pair."""
_BUFFERED_TOKENS = 1 << 18
"""Tokens collected before they are written."""


class SequenceWriter(ABC):
    """A context manager that writes a Megatron pair, and perhaps more files; after an exception no file is left."""

    def __init__(self, path: str | os.PathLike[str], *, vocab_size: int, overwrite: bool = False) -> None:
        """Begins the files.

        Args:
            path: `X`, `X.bin` or `X.idx`.
            vocab_size: token ids are in [0, vocab_size); below 65,500 they take 2 bytes each, otherwise 4.
            overwrite: whether to replace existing files.

        Raises:
            FileExistsError: one of the files is there and overwrite is False.
            ValueError: vocab_size is out of range.
        """
        self.dtype = token_dtype(vocab_size)
        self.bin_path, self.idx_path = megatron_paths(path)
        self._vocab_size = vocab_size
        self._written_lengths = array("i")  # of each sequence
        self._num_tokens = 0
        self._files = AtomicFiles(self._paths(), overwrite=overwrite)

    @abstractmethod
    def _paths(self) -> Sequence[Path]:
        """Returns the files in the order in which they appear; the tokens' index is last, so it proves the rest."""

    @abstractmethod
    def _finish(self) -> None:
        """Writes what is still buffered, and the indices."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._files.discard()
        else:
            self.close()

    def __len__(self) -> int:
        """Number of sequences written."""
        return len(self._written_lengths)

    @property
    def num_tokens(self) -> int:
        """Number of tokens written."""
        return self._num_tokens

    def close(self) -> None:
        """Finishes, syncs and renames all files; the context manager calls it."""
        try:
            self._finish()
        except BaseException:
            self._files.discard()
            raise
        self._files.publish()

    @property
    def _lengths(self) -> NDArray[np.intc]:
        """Lengths of the sequences written: intc [n]."""
        return np.frombuffer(self._written_lengths, dtype=np.intc) if len(self) else np.empty(0, dtype=np.intc)

    def _checked(self, tokens: ArrayLike) -> NDArray[np.integer]:
        """Returns one sequence as an array; a ValueError if it is not a list of integers."""
        values = np.asarray(tokens)
        if values.ndim != 1 or not 1 <= len(values) < 1 << 31 or not np.issubdtype(values.dtype, np.integer):
            raise ValueError(
                f"sequence {len(self)} is a {values.dtype} array of shape {values.shape}; "
                "a sequence is a list of at least one and fewer than 2^31 integers"
            )
        self._check_ids(values, f"sequence {len(self)} holds")
        return values

    def _check_ids(self, values: NDArray[Any], what: str) -> None:
        """Refuses a token id outside [0, vocab_size) with a ValueError that begins with `what`."""
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= self._vocab_size:
            raise ValueError(
                f"{what} the token id {low if low < 0 else high}; with "
                + parameter("vocab_size")
                + f" {self._vocab_size} ids are in [0, {self._vocab_size})"
            )

    def _copy(self, tokens: MegatronTokens, out: BinaryIO) -> None:
        """Copies all tokens of another pair to `out`; a ValueError if they are of another type."""
        if tokens.dtype != self.dtype:
            raise ValueError(f"{tokens.path} holds {tokens.dtype}, and {self.bin_path} is to hold {self.dtype}")
        with tokens.path.open("rb") as file:
            shutil.copyfileobj(file, out, _COPIED_BYTES)
        self._count(np.array(tokens.lengths))

    def _count(self, lengths: NDArray[np.integer]) -> None:
        """Counts sequences of these lengths as written."""
        self._written_lengths.frombytes(lengths.astype(np.intc).tobytes())
        self._num_tokens += int(lengths.sum(dtype=np.int64))


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
        self._buffered = 0

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
        if len(tokens):
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


class MaskedTokenWriter(SequenceWriter):
    """Writes sequences with their loss masks one by one. A context manager.

    Files appear at the end, as a whole; after an exception none is left. Memory is 4 bytes a sequence and the files'
    buffers.

    Example:
        >>> with MaskedTokenWriter("chats", vocab_size=32_000) as writer:
        ...     writer.append([5, 7, 2], [False, True, True])
        >>> writer.num_tokens, writer.num_trained_tokens
        (3, 2)
    """

    def __init__(self, path: str | os.PathLike[str], *, vocab_size: int, overwrite: bool = False) -> None:
        super().__init__(path, vocab_size=vocab_size, overwrite=overwrite)
        self.loss_mask_idx_path = masked_paths(path).mask_idx
        self._mask_bin, self._mask_idx, self._token_bin, self._token_idx = self._files.files
        self._num_trained_tokens = 0

    def _paths(self) -> Sequence[Path]:
        return masked_paths(self.idx_path)

    @property
    def num_trained_tokens(self) -> int:
        """Number of tokens written whose mask is 1."""
        return self._num_trained_tokens

    def append(self, tokens: ArrayLike, loss_mask: ArrayLike) -> None:
        """Adds one sequence.

        Args:
            tokens: integers [n], n at least 1, each in [0, vocab_size).
            loss_mask: bool [n].

        Raises:
            ValueError: the tokens or the mask have another form.
        """
        ids, mask = self._checked(tokens), np.asarray(loss_mask)
        if mask.shape != ids.shape or mask.dtype != np.bool_:
            raise ValueError(
                f"sequence {len(self)} has {len(ids)} tokens and a loss mask of {mask.dtype} of shape {mask.shape}; "
                "a loss mask is one bool for each token"
            )
        self._token_bin.write(ids.astype(self.dtype).tobytes())
        self._mask_bin.write(mask.astype(_MASK_DTYPE).tobytes())
        self._written_lengths.append(len(ids))
        self._num_tokens += len(ids)
        self._num_trained_tokens += int(np.count_nonzero(mask))

    def extend(self, path: str | os.PathLike[str]) -> None:
        """Adds all sequences and loss masks of other files of the same vocab_size.

        Args:
            path: the other files' prefix `X`, or their `X.bin` or `X.idx`.

        Raises:
            ValueError: their tokens are of another type.
        """
        self._copy(MegatronTokens(path), self._token_bin)
        with masked_paths(path).mask_bin.open("rb") as file:
            while chunk := file.read(_COPIED_BYTES):
                self._mask_bin.write(chunk)
                self._num_trained_tokens += int(np.count_nonzero(np.frombuffer(chunk, _MASK_DTYPE)))

    def _finish(self) -> None:
        write_index(self._mask_idx, self._lengths, _MASK_DTYPE)
        write_index(self._token_idx, self._lengths, self.dtype)


class MaskedPaths(NamedTuple):
    """The files of tokens with a loss mask, in the order in which they appear."""

    mask_bin: Path
    mask_idx: Path
    token_bin: Path
    token_idx: Path


def masked_paths(path: str | os.PathLike[str]) -> MaskedPaths:
    """Returns the files of tokens with a loss mask for a path `X`, `X.bin` or `X.idx`."""
    token_bin, token_idx = megatron_paths(path)
    prefix = os.fspath(token_bin).removesuffix(".bin")
    return MaskedPaths(*megatron_paths(prefix + LOSS_MASK_SUFFIX), token_bin, token_idx)


def write_index(file: BinaryIO, lengths: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Writes the index of sequences that lie end to end, each its own document; needs memory for one chunk only."""
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
