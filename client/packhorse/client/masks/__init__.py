"""Masks and inputs of attention kernels, made from the offsets of a batch.

Arguments that mean the same have the same name in all functions (`where`, `device`, `causal`, `window`). Given a batch
or its layout, no function reads tokens or waits for a device.
"""

from packhorse.client.masks.block_diagonal import build_block_diagonal_mask
from packhorse.client.masks.block_mask import build_block_mask
from packhorse.client.masks.dense import AttentionBiasBuffer, build_boolean_mask, build_packing_attention_bias
from packhorse.client.masks.label_offsets import build_packing_cu_seqlens
from packhorse.client.masks.labelled import build_labelled_mask
from packhorse.client.masks.offsets import VarlenOffsets, build_varlen_offsets
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
