"""The mask of xformers' memory-efficient attention, made from the layout.

Leaves calls of other variable-length kernels to `varlen`, and taking padding out of tensors to `unpadding`.
"""

from importlib import import_module
from typing import Any

from packhorse.client.batches.layout import LayoutLike, as_layout
from packhorse.client.masks.prefixes import refuse_prefixes


def build_block_diagonal_mask(where: LayoutLike, *, causal: bool) -> Any:
    """Builds the mask for `xformers.ops.memory_efficient_attention`.

    Example:
        >>> import torch
        >>> cu_seqlens = torch.tensor([0, 2, 3])  # sequences of 2 tokens and 1
        >>> build_block_diagonal_mask(cu_seqlens, causal=True)  # doctest: +SKIP
        BlockDiagonalCausalMask(...)

    Args:
        where: a batch, its layout, or host `cu_seqlens` of sequences that fill one row.
        causal: whether a token sees only itself and earlier tokens.

    Returns:
        `BlockDiagonalMask`, or with `causal` `BlockDiagonalCausalMask`, for query, key and value
        [1, tokens, heads, head size] of all sequences end to end, padding left out (see `Unpadding`).

    Raises:
        ImportError: xformers is not installed.
        ValueError: there is no layout in `where`, or its groups share prefixes.
    """
    layout = as_layout(where)
    refuse_prefixes(layout, "xformers' block-diagonal mask")
    try:
        attn_bias = import_module("xformers.ops.fmha.attn_bias")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "xformers":  # xformers is there, and lacks another package
            raise
        raise ImportError(
            "build_block_diagonal_mask needs xformers: install it (pip install xformers), or use varlen_attention or "
            "build_block_mask, which need only torch"
        ) from None
    mask = attn_bias.BlockDiagonalMask.from_seqlens(layout.lengths.tolist())
    return mask.make_causal() if causal else mask
