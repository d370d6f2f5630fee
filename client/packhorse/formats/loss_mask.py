"""The names of a loss mask's files: `X.loss_mask.bin` and its index, beside the tokens `X.bin`.

Owns only names, of files and of objects in a store; leaves writing the pair to `formats.megatron`, and choosing
which mask belongs to tokens to `packhorse.tokens.loss_mask`.
"""

from typing import NamedTuple

LOSS_MASK_SUFFIX = ".loss_mask"
"""Part of a name between the tokens' prefix and `.bin` or `.idx`."""

_ENDINGS = (".bin.boundaries", ".boundaries", ".bin", ".idx")
"""Endings of a mask's files; ".bin.boundaries" comes before ".boundaries", with which it ends too."""


class MaskFiles(NamedTuple):
    """The paths or URLs of a mask, if there is one: its values, and one of two kinds of index."""

    values: str
    megatron_index: str
    """The `.idx`, if the mask is a Megatron pair."""
    flat_boundaries: str
    """The `.boundaries`, if the mask is a flat file."""


def mask_files(tokens: str) -> MaskFiles:
    """Returns the paths or URLs of the loss mask of a token file, `X.bin` or a flat file of any name.

    Example:
        >>> mask_files("s3://bucket/sft.bin").megatron_index
        's3://bucket/sft.loss_mask.idx'
    """
    values = f"{tokens.removesuffix('.bin')}{LOSS_MASK_SUFFIX}.bin"
    return MaskFiles(values, f"{values.removesuffix('.bin')}.idx", f"{values}.boundaries")


def tokens_of_mask(path: str) -> str:
    """Returns the prefix of the tokens to which a loss mask of this name belongs; empty if the name is not a mask's.

    Example:
        >>> tokens_of_mask("data/sft.loss_mask.idx"), tokens_of_mask("data/sft.idx")
        ('data/sft', '')
    """
    ending = next((ending for ending in _ENDINGS if path.endswith(ending)), "")
    prefix = path.removesuffix(ending)
    return prefix.removesuffix(LOSS_MASK_SUFFIX) if prefix.endswith(LOSS_MASK_SUFFIX) else ""
