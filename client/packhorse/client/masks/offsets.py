"""Offsets for variable-length attention kernels.

Owns `cu_seqlens` and `max_seqlen` on the device, from the plan or from labels as seqpack finds them; leaves taking
padding out of tensors to `unpadding`, and attention itself to `varlen`.
"""

from dataclasses import dataclass

import numpy as np
import torch

from packhorse.client.batches.layout import LayoutLike, as_layout
from packhorse.client.masks.dense import as_rows
from packhorse.client.masks.visibility import refuse_prefixes, transfer


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
    """Sequence i covers [cu_seqlens[i], cu_seqlens[i + 1]) of the tokens laid end to end, padding left out: int32
    [n + 1]."""
    max_seqlen: int
    """The longest sequence in tokens, or more. A Python int, so that no kernel waits for it."""
    cu_seqlens_padded: torch.Tensor
    """Where sequences lie in the rows laid end to end, padding left in, as in Transformer Engine's THD layout: int32
    [n + 1]."""


def build_varlen_offsets(
    where: LayoutLike,
    device: torch.device | str,
    *,
    num_sequences: int | None = None,
    max_seqlen: int | None = None,
) -> VarlenOffsets:
    """Copies a batch's offsets to the device, in one transfer that the host does not wait for.

    CUDA graphs and `torch.compile` want the same shapes and integers at every step: give `num_sequences` and
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


def build_packing_cu_seqlens(
    sequence_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, int]:
    """Builds FlashAttention's `cu_seqlens` from labels of tokens; for a batch, `build_varlen_offsets` needs no labels.

    Legend: B bins, L tokens in a row, n sequences. Sequence i covers [cu_seqlens[i], cu_seqlens[i + 1]) of the rows'
    tokens laid end to end, without those that `attention_mask` takes out, as in
    `hidden.flatten(0, 1)[attention_mask.flatten().bool()]`.

    Neighbouring positions of a row with equal labels belong to one sequence, once masked positions are taken out; two
    rows never share one. The work stays on the labels' device. A GPU is waited for once, at the end, for two integers:
    n, which the result's shape needs, and the longest length.

    Example:
        >>> cu_seqlens, max_seqlen = build_packing_cu_seqlens(torch.tensor([[0, 0, 1], [0, 0, 0]]))
        >>> cu_seqlens.tolist(), max_seqlen
        ([0, 2, 3, 6], 3)

    Args:
        sequence_ids: integers [B, L] or [L], one label for each position.
        attention_mask: bool or integers of the same shape, non-zero on tokens and 0 on padding; None if every position
            is a token.

    Returns:
        `cu_seqlens`, int32 [n + 1] on the labels' device, and `max_seqlen`, the longest sequence in tokens; `[0]` and 0
        without any token.

    Raises:
        ValueError: `sequence_ids` is not [B, L] or [L], or `attention_mask` has another shape.
    """
    labels = as_rows("sequence_ids", sequence_ids)
    if attention_mask is not None and attention_mask.shape != sequence_ids.shape:
        raise ValueError(
            f"attention_mask must have the shape of sequence_ids, {list(sequence_ids.shape)}; "
            f"got {list(attention_mask.shape)}"
        )
    if labels.numel() == 0:
        return torch.zeros(1, dtype=torch.int32, device=labels.device), 0
    if labels.device.type == "cpu":
        return _scan_host(labels, None if attention_mask is None else attention_mask.cpu())
    return _scan_device(labels, None if attention_mask is None else attention_mask.to(labels.device))


def _scan_host(labels: torch.Tensor, attention_mask: torch.Tensor | None) -> tuple[torch.Tensor, int]:
    row_tokens = labels.shape[1]
    of_tokens = labels.numpy().reshape(-1)
    if attention_mask is None:
        is_first = np.ones(len(of_tokens), dtype=np.bool_)
        np.not_equal(of_tokens[1:], of_tokens[:-1], out=is_first[1:])
        is_first[::row_tokens] = True
    else:
        positions = np.flatnonzero(attention_mask.numpy())
        of_tokens, rows = of_tokens[positions], positions // row_tokens
        is_first = np.ones(len(positions), dtype=np.bool_)
        is_first[1:] = (of_tokens[1:] != of_tokens[:-1]) | (rows[1:] != rows[:-1])
    cu_seqlens = np.append(np.flatnonzero(is_first), len(of_tokens)).astype(np.int32)
    return torch.from_numpy(cu_seqlens), int(np.diff(cu_seqlens).max(initial=0))


def _scan_device(labels: torch.Tensor, attention_mask: torch.Tensor | None) -> tuple[torch.Tensor, int]:
    num_positions = labels.numel()
    position = torch.arange(num_positions, device=labels.device)
    if attention_mask is None:
        is_token = torch.ones(num_positions, dtype=torch.bool, device=labels.device)
        is_first = torch.ones_like(labels, dtype=torch.bool)
        is_first[:, 1:] = labels[:, 1:] != labels[:, :-1]
        is_first = is_first.reshape(-1)
    else:
        is_token = attention_mask.reshape(-1) != 0
        flat_labels = labels.reshape(-1)
        row_start = position[:: labels.shape[1], None].expand_as(labels).reshape(-1)
        # Before a row's first token lies one of an earlier row or, in the first row, -1.
        last_token = torch.where(is_token, position, -1).cummax(0).values
        previous = torch.cat([last_token.new_full((1,), -1), last_token[:-1]])
        follows = (previous >= row_start) & (flat_labels.index_select(0, previous.clamp(min=0)) == flat_labels)
        is_first = is_token & ~follows

    # Every size is known to the host. First tokens write their offset at their sequence's index, all others past the
    # part that is kept, each at an index of its own; slots after the last sequence hold the total.
    num_up_to = is_token.cumsum(0)
    num_before = num_up_to - is_token.long()
    sequence = is_first.cumsum(0) - 1
    offsets = num_up_to[-1].expand(2 * num_positions + 1).clone()
    offsets.scatter_(0, torch.where(is_first, sequence, position + num_positions + 1), num_before)
    offsets = offsets[: num_positions + 1]
    num_sequences, max_seqlen = torch.stack([sequence[-1] + 1, offsets.diff().max()]).tolist()
    return offsets[: num_sequences + 1].to(torch.int32), max_seqlen
