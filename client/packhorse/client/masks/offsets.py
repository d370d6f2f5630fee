"""Offsets for variable-length attention kernels, copied from the layout to the device.

Owns `cu_seqlens` on the device, and the int `max_seqlen`. Leaves offsets from labels to `label_offsets`, taking padding
out of tensors to `unpadding`, and attention itself to `varlen`.
"""

from dataclasses import dataclass

import numpy as np
import torch

from packhorse.client.batches.layout import LayoutLike, as_layout
from packhorse.client.masks.prefixes import refuse_prefixes
from packhorse.client.masks.transfer import transfer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VarlenOffsets:
    """The offsets for a variable-length attention kernel, the same for queries and keys. Legend: n sequences.

    Example:
        >>> from packhorse.client import PackLayout
        >>> layout = PackLayout.of_rows([2, 1, 3], [2, 3], 4)  # rows of 2 + 1 and 3 tokens
        >>> offsets = build_varlen_offsets(layout, "cpu")
        >>> offsets.cu_seqlens.tolist(), offsets.max_seqlen
        ([0, 2, 3, 6], 3)
        >>> offsets.cu_seqlens_padded.tolist()  # both rows end with a token of padding
        [0, 2, 4, 8]
    """

    cu_seqlens: torch.Tensor
    """Offsets of the sequences if their tokens are laid end to end without padding: int32 [n + 1]. Sequence i is
    [cu_seqlens[i], cu_seqlens[i + 1])."""
    max_seqlen: int
    """Length of the longest sequence in tokens, or more. A Python int, so that no code waits for a device to read it.
    """
    cu_seqlens_padded: torch.Tensor
    """Offsets of the sequences if the rows are laid end to end with their padding, as in Transformer Engine's THD
    layout: int32 [n + 1]."""


def build_varlen_offsets(
    where: LayoutLike,
    device: torch.device | str,
    *,
    num_sequences: int | None = None,
    max_seqlen: int | None = None,
) -> VarlenOffsets:
    """Copies a batch's offsets to the device, in one transfer that the host does not wait for.

    CUDA graphs and `torch.compile` need the same shapes and integers at every step: give `num_sequences` and
    `max_seqlen`. The last offset is then repeated, which adds empty sequences.

    Example:
        >>> build_varlen_offsets(np.array([0, 2, 3]), "cpu", num_sequences=4).cu_seqlens.tolist()  # two are empty
        [0, 2, 3, 3, 3]

    Args:
        where: a batch, its layout, or host `cu_seqlens` of sequences that fill one row.
        device: where attention runs.
        num_sequences: n, at least the number in the batch; None for that number.
        max_seqlen: at least the longest sequence of the batch, for example max_seq_len; None for the longest.

    Raises:
        ValueError: the batch has more sequences, or a longer one, or shared prefixes; or there is no layout in `where`.
    """
    layout = as_layout(where)
    refuse_prefixes(layout, "a variable-length kernel's cu_seqlens")
    if num_sequences is not None and num_sequences < layout.num_sequences:
        raise ValueError(
            f"the batch has {layout.num_sequences} sequences, more than num_sequences {num_sequences}; raise it, or "
            "plan with max_sequences_per_bin"
        )
    if max_seqlen is not None and max_seqlen < layout.max_seqlen:
        raise ValueError(f"the batch has a sequence of {layout.max_seqlen} tokens, more than max_seqlen {max_seqlen}")
    offsets = [layout.cu_seqlens, layout.cu_seqlens_padded]
    if num_sequences is not None:
        num_empty = num_sequences - layout.num_sequences
        offsets = [np.append(each, np.repeat(each[-1], num_empty)) for each in offsets]
    cu_seqlens, cu_seqlens_padded = transfer(offsets, torch.device(device))
    return VarlenOffsets(
        cu_seqlens=cu_seqlens,
        max_seqlen=layout.max_seqlen if max_seqlen is None else max_seqlen,
        cu_seqlens_padded=cu_seqlens_padded,
    )
