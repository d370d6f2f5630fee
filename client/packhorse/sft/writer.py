"""Sequences and their loss masks on disk: two Megatron pairs with the same ids and lengths.

Owns writing both together, so that there are either both or none; leaves the layout's constants to `packhorse.formats`.
`X.bin`/`X.idx` hold the tokens, `X.loss_mask.bin`/`X.loss_mask.idx` a uint8 for each of them: 1 where it is trained on.
"""

import os
import shutil
from array import array
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import ArrayLike

from packhorse.formats import MegatronTokens, megatron_paths, token_dtype
from packhorse.formats.atomic import AtomicFiles
from packhorse.formats.megatron_writer import COPIED_BYTES, write_index

LOSS_MASK_SUFFIX = ".loss_mask"
"""Between the tokens' prefix and `.bin`, `.idx`."""
_MASK_DTYPE = np.dtype("u1")


class MaskedTokenWriter:
    """Writes sequences with their loss masks one by one, as a context manager; after an exception nothing is left.

    Memory is 4 bytes a sequence and the files' buffers.

    Example:
        >>> with MaskedTokenWriter("chats", vocab_size=32_000) as writer:
        ...     writer.append([5, 7, 2], [False, True, True])
        >>> writer.num_tokens, writer.num_trained_tokens
        (3, 2)
    """

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
        self.idx_path = megatron_paths(path)[1]
        self.loss_mask_idx_path = masked_paths(path)[1]
        self._vocab_size = vocab_size
        self._lengths = array("i")
        self._num_tokens = 0
        self._num_trained_tokens = 0
        self._files = AtomicFiles(masked_paths(path), overwrite=overwrite)

    def __enter__(self) -> "MaskedTokenWriter":
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
        return len(self._lengths)

    @property
    def num_tokens(self) -> int:
        """Number of tokens written."""
        return self._num_tokens

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
        ids, mask = np.asarray(tokens), np.asarray(loss_mask)
        if ids.ndim != 1 or not 1 <= len(ids) < 1 << 31 or not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(
                f"sequence {len(self)} is a {ids.dtype} array of shape {ids.shape}; a sequence is a list of integers"
            )
        if not 0 <= int(ids.min()) <= int(ids.max()) < self._vocab_size:
            raise ValueError(f"sequence {len(self)} holds a token id outside [0, {self._vocab_size})")
        if mask.shape != ids.shape or mask.dtype != np.bool_:
            raise ValueError(
                f"sequence {len(self)} has {len(ids)} tokens and a loss mask of {mask.dtype} of shape {mask.shape}; "
                "a loss mask is one bool for each token"
            )
        mask_bin, _, token_bin, _ = self._files.files
        token_bin.write(ids.astype(self.dtype).tobytes())
        mask_bin.write(mask.astype(_MASK_DTYPE).tobytes())
        self._lengths.append(len(ids))
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
        lengths = np.array(tokens.lengths)
        self._lengths.frombytes(lengths.astype(np.intc).tobytes())
        self._num_tokens += int(lengths.sum(dtype=np.int64))

    def close(self) -> None:
        """Writes the indices, syncs and renames all four files; the context manager calls it."""
        try:
            _, mask_index, _, token_index = self._files.files
            lengths = np.frombuffer(self._lengths, np.intc) if len(self) else np.empty(0, np.intc)
            write_index(mask_index, lengths, _MASK_DTYPE)
            write_index(token_index, lengths, self.dtype)
        except BaseException:
            self._files.discard()
            raise
        self._files.publish()


def masked_paths(path: str | os.PathLike[str]) -> list[Path]:
    """Returns the four files of a prefix in the order in which they appear: with the tokens' index all are there."""
    token_bin, token_index = megatron_paths(path)
    prefix = os.fspath(token_bin)[: -len(".bin")]
    return [*megatron_paths(prefix + LOSS_MASK_SUFFIX), token_bin, token_index]
