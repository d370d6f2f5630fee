"""Sequences and their loss masks on disk: two Megatron pairs with the same ids and lengths.

Owns writing both together, so that there are either both or none; leaves the layout's constants to `packhorse.formats`.
`X.bin`/`X.idx` hold the tokens, `X.loss_mask.bin`/`X.loss_mask.idx` a uint8 for each of them: 1 where it is trained on.
"""

import os
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from packhorse.formats import MegatronTokens, megatron_paths
from packhorse.formats.megatron_writer import COPIED_BYTES, write_index
from packhorse.formats.sequence_writer import SequenceWriter

LOSS_MASK_SUFFIX = ".loss_mask"
"""Between the tokens' prefix and `.bin`, `.idx`."""
_MASK_DTYPE = np.dtype("u1")


class MaskedTokenWriter(SequenceWriter):
    """Writes sequences with their loss masks one by one, as a context manager; after an exception nothing is left.

    Memory is 4 bytes a sequence and the files' buffers.

    Example:
        >>> with MaskedTokenWriter("chats", vocab_size=32_000) as writer:
        ...     writer.append([5, 7, 2], [False, True, True])
        >>> writer.num_tokens, writer.num_trained_tokens
        (3, 2)
    """

    def __init__(self, path: str | os.PathLike[str], *, vocab_size: int, overwrite: bool = False) -> None:
        super().__init__(path, vocab_size=vocab_size, overwrite=overwrite)
        self.loss_mask_idx_path = masked_paths(path)[1]
        self._num_trained_tokens = 0

    def _paths(self) -> list[Path]:
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
            ValueError: the tokens or the mask are not such a list.
        """
        ids, mask = self._checked(tokens), np.asarray(loss_mask)
        if mask.shape != ids.shape or mask.dtype != np.bool_:
            raise ValueError(
                f"sequence {len(self)} has {len(ids)} tokens and a loss mask of {mask.dtype} of shape {mask.shape}; "
                "a loss mask is one bool for each token"
            )
        mask_bin, _, token_bin, _ = self._files.files
        token_bin.write(ids.astype(self.dtype).tobytes())
        mask_bin.write(mask.astype(_MASK_DTYPE).tobytes())
        self._written.append(len(ids))
        self._num_tokens += len(ids)
        self._num_trained_tokens += int(np.count_nonzero(mask))

    def extend(self, path: str | os.PathLike[str]) -> None:
        """Adds all sequences of other files that were written with the same vocab_size.

        Args:
            path: their prefix.

        Raises:
            ValueError: tokens are of another type.
        """
        tokens, mask_path = MegatronTokens(path), masked_paths(path)[0]
        if tokens.dtype != self.dtype:
            raise ValueError(f"{tokens.path} holds {tokens.dtype}, and {self.idx_path} is to hold {self.dtype}")
        mask_bin, _, token_bin, _ = self._files.files
        with tokens.path.open("rb") as file:
            shutil.copyfileobj(file, token_bin, COPIED_BYTES)
        with mask_path.open("rb") as file:
            while chunk := file.read(COPIED_BYTES):
                mask_bin.write(chunk)
                self._num_trained_tokens += int(np.count_nonzero(np.frombuffer(chunk, _MASK_DTYPE)))
        self._count(np.array(tokens.lengths))

    def _finish(self) -> None:
        _, mask_index, _, token_index = self._files.files
        write_index(mask_index, self._lengths, _MASK_DTYPE)
        write_index(token_index, self._lengths, self.dtype)


def masked_paths(path: str | os.PathLike[str]) -> list[Path]:
    """Returns the four files of a prefix in the order in which they appear: with the tokens' index all are there."""
    token_bin, token_index = megatron_paths(path)
    prefix = os.fspath(token_bin)[: -len(".bin")]
    return [*megatron_paths(prefix + LOSS_MASK_SUFFIX), token_bin, token_index]
