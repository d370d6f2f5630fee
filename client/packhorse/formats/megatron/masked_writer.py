"""`MaskedTokenWriter`: sequences and their loss masks one by one into two Megatron pairs.

A loss mask is a pair with the same ids and lengths: `X.loss_mask.bin` and `X.loss_mask.idx` hold a uint8 for each
token, 1 where it is trained on. Leaves checking and counting sequences to `sequence_writer`.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from packhorse.formats.megatron.layout import write_index
from packhorse.formats.megatron.paths import masked_paths
from packhorse.formats.megatron.sequence_writer import COPIED_BYTES, SequenceWriter
from packhorse.formats.megatron.tokens import MegatronTokens

_MASK_DTYPE = np.dtype("u1")
"""Type of a mask's values."""


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
        self._mask_bin, self._mask_idx, self._token_bin, self._token_idx = self._files.files  # in the order of `_paths`
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
            path: the other files' prefix `X`, or their `X.bin` or `X.idx`. That their mask is as long as their
                tokens is not checked.

        Raises:
            FileNotFoundError: a file of the tokens is missing, or the mask's `.bin`; its `.idx` is not read.
            ValueError: their tokens are of another type.
        """
        self._copy(MegatronTokens(path), self._token_bin)
        with masked_paths(path).mask_bin.open("rb") as file:
            while chunk := file.read(COPIED_BYTES):
                self._mask_bin.write(chunk)
                self._num_trained_tokens += int(np.count_nonzero(np.frombuffer(chunk, _MASK_DTYPE)))

    def _finish(self) -> None:
        write_index(self._mask_idx, self._lengths, _MASK_DTYPE)
        write_index(self._token_idx, self._lengths, self.dtype)
