"""How a loss mask is named: `X.loss_mask.bin` and its index, beside the tokens `X.bin`.

Owns only names, of files and of objects in a store; leaves writing the pair to `formats.megatron_writer`, and reading
it to the sources of a client.
"""

from typing import NamedTuple

LOSS_MASK_SUFFIX = ".loss_mask"
"""Between the tokens' prefix and `.bin`, `.idx`."""

_ENDINGS = (".bin.boundaries", ".boundaries", ".bin", ".idx")


class MaskFiles(NamedTuple):
    """Where a mask lies, if there is one: its values, and either index of them."""

    values: str
    megatron_index: str
    flat_boundaries: str


def mask_files(tokens: str) -> MaskFiles:
    """Returns the paths or URLs of the loss mask of a token file, `X.bin` or a flat file of any name.

    Example:
        >>> mask_files("s3://bucket/sft.bin").megatron_index
        's3://bucket/sft.loss_mask.idx'
    """
    values = f"{tokens.removesuffix('.bin')}{LOSS_MASK_SUFFIX}.bin"
    return MaskFiles(values, f"{values.removesuffix('.bin')}.idx", f"{values}.boundaries")


def tokens_of_mask(path: str) -> str:
    """Returns the prefix of the tokens that a file with this name is the loss mask of; empty if it is named otherwise.

    Example:
        >>> tokens_of_mask("data/sft.loss_mask.idx"), tokens_of_mask("data/sft.idx")
        ('data/sft', '')
    """
    ending = next((each for each in _ENDINGS if path.endswith(each)), "")
    prefix = path.removesuffix(ending)
    return prefix.removesuffix(LOSS_MASK_SUFFIX) if prefix.endswith(LOSS_MASK_SUFFIX) else ""
