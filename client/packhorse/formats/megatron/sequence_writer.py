"""`SequenceWriter`: what the writers of Megatron pairs, with and without loss masks, have in common.

Owns checking sequences, counting them, and files that appear together or not at all. Leaves what is written when to
`writer` and `masked_writer`, and the layout to `layout`.
"""

import os
import shutil
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.formats.megatron.layout import token_dtype
from packhorse.formats.megatron.paths import megatron_paths
from packhorse.formats.megatron.tokens import MegatronTokens
from packhorse.parameters import parameter
from packhorse.storage import AtomicFiles

COPIED_BYTES = 1 << 22
"""Bytes copied at a time from another pair."""


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
        self._written_lengths = array("i")  # C ints, 4 bytes each, because there may be billions of sequences
        self._num_tokens = 0
        self._files = AtomicFiles(self._paths(), overwrite=overwrite)  # `_paths` needs the paths above

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
        """Returns one sequence as an array; a ValueError if it is not a list of token ids in the vocabulary."""
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
        """Copies all tokens of another pair to `out`, and counts its sequences; a ValueError for another token type.

        Ids are not checked: the caller promises that the other pair has the same vocab_size.
        """
        if tokens.dtype != self.dtype:
            raise ValueError(f"{tokens.path} holds {tokens.dtype}, and {self.bin_path} is to hold {self.dtype}")
        with tokens.path.open("rb") as file:
            shutil.copyfileobj(file, out, COPIED_BYTES)
        self._count(tokens.lengths)

    def _count(self, lengths: NDArray[np.integer]) -> None:
        """Counts sequences of these lengths as written."""
        self._written_lengths.frombytes(lengths.astype(np.intc).tobytes())
        self._num_tokens += int(lengths.sum(dtype=np.int64))
