"""The multiples of tokens that Megatron's context and tensor parallelism and its number formats need.

Owns the multiple of a segment, that of a batch, and the check of segments. Leaves the keys of batches to `megatron` and
`megatron_lm`.
"""

from math import lcm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_TOKENS_OF_RECIPE = {"bf16": 1, "delayed": 16, "tensorwise": 16, "blockwise": 128, "mxfp8": 32}
"""Recipe of a number format → the multiple that each rank's number of tokens must be."""


def segment_multiple(context_parallel_size: int, tensor_parallel_size: int) -> int:
    """Returns the multiple of tokens that every segment must be, so that parallel ranks can share it.

    Args:
        context_parallel_size: CP, the ranks that share a sequence.
        tensor_parallel_size: TP, the tensor-parallel ranks, if sequence parallelism is used; else 1.

    Raises:
        ValueError: a size is below 1.
    """
    sizes = {"context_parallel_size": context_parallel_size, "tensor_parallel_size": tensor_parallel_size}
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if context_parallel_size == 1:
        return tensor_parallel_size
    # 2·CP equal chunks; and the part of each of the CP ranks, which is two of them, in TP equal parts.
    return lcm(2 * context_parallel_size, context_parallel_size * tensor_parallel_size)


class Alignment(NamedTuple):
    """The multiples that parallelism and number format need."""

    sequence: int
    """Each sequence's room is a multiple of this many tokens: `prepare(align=…)`."""
    total: int
    """A batch's tokens are a multiple of this number: `total_multiple_of`, or rows with such a max_seq_len."""


def alignment_for(recipe: str = "bf16", tp: int = 1, cp: int = 1) -> Alignment:
    """Returns the multiples that each sequence, and the tokens of a batch, must have.

    Each sequence: context parallelism cuts it into 2·CP chunks, and sequence parallelism cuts a rank's part of it into
    TP (`get_thd_batch_on_this_cp_rank` and `thd_get_partitioned_indices`; SkyRL#2108). The number format does not
    matter here. The total: each rank's T / (CP·TP) tokens are a dimension of its matrix products, and must be a
    multiple of 16 for delayed and tensorwise scaling, of 128 for blockwise (NeMo-RL#1884, ms-swift#9722), and of 32 for
    MXFP8 (Megatron's `get_fp8_align_size`).

    Example:
        >>> alignment_for("blockwise")
        Alignment(sequence=1, total=128)
        >>> alignment_for("mxfp8", tp=2, cp=4)
        Alignment(sequence=8, total=256)

    Args:
        recipe: as Megatron's `--fp8-recipe`: `delayed`, `tensorwise`, `blockwise`, `mxfp8`; or `bf16`.
        tp: tensor-parallel ranks if sequence parallelism is used, otherwise 1.
        cp: context-parallel ranks.

    Raises:
        ValueError: the recipe is unknown, or a number is below 1.
    """
    if recipe not in _TOKENS_OF_RECIPE:
        raise ValueError(f"recipe must be one of {', '.join(_TOKENS_OF_RECIPE)}; got {recipe!r}")
    for name, value in (("tp", tp), ("cp", cp)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    sequence = segment_multiple(cp, tp)
    return Alignment(sequence, lcm(sequence, tp * cp * _TOKENS_OF_RECIPE[recipe]))


def check_segments(segments: NDArray[np.int64], align: int) -> None:
    """Checks that context and tensor parallelism can divide every segment evenly.

    Args:
        segments: tokens of each segment: int64 [s].
        align: the multiple that each must be.

    Raises:
        ValueError: a segment is not a multiple; the text says how to prepare the dataset.
    """
    if (segments % align).any():
        raise ValueError(
            f"a segment of {segments[segments % align > 0][0]} tokens is not a multiple of {align}, as this context "
            f"and tensor parallelism needs; prepare the dataset with align={align} and a max_seq_len that is a multiple"
        )
