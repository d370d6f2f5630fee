"""Paths of Megatron's files: of a pair `X.bin` and `X.idx`, and of a pair with its loss mask.

Leaves other files beside tokens to `formats.beside_tokens`, and the names of masks to `formats.loss_mask`.
"""

import os
from pathlib import Path
from typing import NamedTuple

from packhorse.formats.loss_mask import LOSS_MASK_SUFFIX


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


class MaskedPaths(NamedTuple):
    """The files of tokens with a loss mask, in the order in which they appear: once the last is there, all are."""

    mask_bin: Path
    mask_idx: Path
    token_bin: Path
    token_idx: Path


def masked_paths(path: str | os.PathLike[str]) -> MaskedPaths:
    """Returns the files of tokens with a loss mask for a path `X`, `X.bin` or `X.idx`."""
    token_bin, token_idx = megatron_paths(path)
    prefix = os.fspath(token_bin).removesuffix(".bin")
    return MaskedPaths(*megatron_paths(prefix + LOSS_MASK_SUFFIX), token_bin, token_idx)
