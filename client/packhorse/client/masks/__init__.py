"""Masks and kernels' inputs, made from the offsets of a batch.

Re-exports what the files of this package own: each makes one kind of input, in the same words (`where`, `device`,
`causal`, `window`), without looking at tokens and without waiting for a device.
"""

from packhorse.client.masks.bias import AttentionBiasBuffer, build_packing_attention_bias
from packhorse.client.masks.block_diagonal import build_block_diagonal_mask
from packhorse.client.masks.block_mask import build_block_mask
from packhorse.client.masks.boolean import build_boolean_mask, build_labelled_mask
from packhorse.client.masks.offsets import VarlenOffsets, build_packing_cu_seqlens, build_varlen_offsets
from packhorse.client.masks.unpadding import Unpadding, build_unpadding
from packhorse.client.masks.varlen import varlen_attention

__all__ = [
    "AttentionBiasBuffer",
    "Unpadding",
    "VarlenOffsets",
    "build_block_diagonal_mask",
    "build_block_mask",
    "build_boolean_mask",
    "build_labelled_mask",
    "build_packing_attention_bias",
    "build_packing_cu_seqlens",
    "build_unpadding",
    "build_varlen_offsets",
    "varlen_attention",
]
