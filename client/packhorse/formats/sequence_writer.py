"""What writers of sequences share: the files appear together or not at all, and every token is in the vocabulary.

Owns the checks of a sequence, and the lengths written so far; leaves which files there are, and what they hold, to
the writers.
"""

import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.formats.megatron import megatron_paths, token_dtype
from packhorse.storage import AtomicFiles


class SequenceWriter(ABC):
    """A context manager that writes a Megatron pair of tokens, and perhaps more; after an exception nothing is left."""

    def __init__(self, path: str | os.PathLike[str], *, vocab_size: int, overwrite: bool = False) -> None:
        """Begins the files.

        Args:
            path: `X`, `X.bin` or `X.idx`.
            vocab_size: token ids are in [0, vocab_size); below 65,500 they take 2 bytes each, else 4.
            overwrite: whether files already there are replaced.

        Raises:
            FileExistsError: one of the files is there and overwrite is False.
            ValueError: vocab_size is out of range.
        """
        self.dtype = token_dtype(vocab_size)
        self.bin_path, self.idx_path = megatron_paths(path)
        self._vocab_size = vocab_size
        self._written = array("i")
        self._num_tokens = 0
        self._files = AtomicFiles(self._paths(), overwrite=overwrite)

    @abstractmethod
    def _paths(self) -> Sequence[Path]:
        """Returns the files; the tokens' index last, since it is what a reader looks for."""

    @abstractmethod
    def _finish(self) -> None:
        """Writes what is still to be written when all sequences are there."""

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
        return len(self._written)

    @property
    def num_tokens(self) -> int:
        """Number of tokens written."""
        return self._num_tokens

    def close(self) -> None:
        """Writes what is left, syncs and renames all files; the context manager calls it."""
        try:
            self._finish()
        except BaseException:
            self._files.discard()
            raise
        self._files.publish()

    @property
    def _lengths(self) -> NDArray[np.intc]:
        """Of the sequences written: intc [n]."""
        return np.frombuffer(self._written, dtype=np.intc) if len(self) else np.empty(0, dtype=np.intc)

    def _checked(self, tokens: ArrayLike) -> NDArray[np.integer]:
        """Returns one sequence as an array; a ValueError where it is none."""
        values = np.asarray(tokens)
        if values.ndim != 1 or not 1 <= len(values) < 1 << 31 or not np.issubdtype(values.dtype, np.integer):
            raise ValueError(
                f"sequence {len(self)} is a {values.dtype} array of shape {values.shape}; "
                "a sequence is a list of at least one and fewer than 2^31 integers"
            )
        self._check_ids(values, f"sequence {len(self)} holds")
        return values

    def _check_ids(self, values: NDArray[Any], what: str) -> None:
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= self._vocab_size:
            raise ValueError(
                f"{what} the token id {low if low < 0 else high}; "
                f"with vocab_size {self._vocab_size} ids are in [0, {self._vocab_size})"
            )

    def _count(self, lengths: NDArray[np.integer]) -> None:
        """Notes that sequences of these lengths were written."""
        self._written.frombytes(lengths.astype(np.intc).tobytes())
        self._num_tokens += int(lengths.sum(dtype=np.int64))
