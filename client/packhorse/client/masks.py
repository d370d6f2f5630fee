"""Attention masks and offsets of packed rows, from their `sequence_ids`.

Owns the functions that seqpack's users know, on any device; leaves `sequence_ids`, and offsets known from the plan, to
`batch`. Where a batch already carries `cu_seqlens` and `max_seqlen`, use those: they cost nothing.
"""

import torch


def build_packing_attention_bias(
    sequence_ids: torch.Tensor,
    dtype: torch.dtype,
    device: torch.device | str,
    *,
    causal: bool = False,
) -> torch.Tensor:
    """Builds the additive attention bias that keeps packed sequences apart.

    Legend: B bins, L tokens in a row. Build it once in a model's forward and hand it to every layer.

    A position attends to all positions of its row with the same label (with `causal`, to those not after it), and so
    always to itself. Padding attends to padding: no row is all -inf, and no softmax turns to NaN.

    Args:
        sequence_ids: integers [B, L] or [L], one label for each position; padding needs a label of its own.
        dtype: floating-point type of the bias, the one attention runs in.
        device: where the bias is wanted; labels are moved there.
        causal: also blocks every later position.

    Returns:
        `dtype` [B, 1, L, L]: 0 where attention is allowed, -inf where it is blocked; B is 1 for labels [L].

    Raises:
        ValueError: `sequence_ids` has another shape, or `dtype` has no -inf.
    """
    if not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating-point type, which has -inf; got {dtype}")
    labels = _rows("sequence_ids", sequence_ids).to(device)
    is_blocked = labels[:, None, :, None] != labels[:, None, None, :]
    if causal:
        index = torch.arange(labels.shape[1], device=labels.device)
        is_blocked |= index[:, None] < index
    blocked = torch.full((), float("-inf"), dtype=dtype, device=labels.device)
    return torch.where(is_blocked, blocked, torch.zeros_like(blocked))


def build_packing_cu_seqlens(
    sequence_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, int]:
    """Builds the offsets that variable-length attention kernels take (FlashAttention's `cu_seqlens`).

    Legend: B bins, L tokens in a row, n sequences. Sequence i covers [cu_seqlens[i], cu_seqlens[i + 1]) of the rows'
    tokens laid end to end, those that `attention_mask` takes out left out, as in
    `hidden.flatten(0, 1)[attention_mask.flatten().bool()]`.

    Neighbouring positions of a row with equal labels belong to one sequence, after masked-out positions are taken out;
    two rows never share one. The work stays on the labels' device; the host waits for it once, at the end, for two
    integers: n, which the result's shape needs, and the longest length. Where even that is too much, take the offsets
    that a batch carries.

    Args:
        sequence_ids: integers [B, L] or [L], one label for each position.
        attention_mask: bool or integers of the same shape, non-zero on tokens and 0 on padding; None where every
            position is a token.

    Returns:
        `cu_seqlens`, int32 [n + 1] on the labels' device, and `max_seqlen`, the longest sequence in tokens; `[0]` and 0
        where there is no token.

    Raises:
        ValueError: `sequence_ids` is not [B, L] or [L], or `attention_mask` has another shape.
    """
    labels = _rows("sequence_ids", sequence_ids)
    num_positions = labels.numel()
    device = labels.device
    if attention_mask is not None and attention_mask.shape != sequence_ids.shape:
        raise ValueError(
            f"attention_mask must have the shape of sequence_ids, {list(sequence_ids.shape)}; "
            f"got {list(attention_mask.shape)}"
        )
    if num_positions == 0:
        return torch.zeros(1, dtype=torch.int32, device=device), 0

    position = torch.arange(num_positions, device=device)
    if attention_mask is None:
        is_token = torch.ones(num_positions, dtype=torch.bool, device=device)
        is_first = torch.ones_like(labels, dtype=torch.bool)
        is_first[:, 1:] = labels[:, 1:] != labels[:, :-1]
        is_first = is_first.reshape(-1)
    else:
        is_token = attention_mask.to(device).reshape(-1) != 0
        flat_labels = labels.reshape(-1)
        row_start = position[:: labels.shape[1], None].expand_as(labels).reshape(-1)
        # Before a row's first token lies one of an earlier row or, in the first row, -1.
        last_token = torch.where(is_token, position, -1).cummax(0).values
        previous = torch.cat([last_token.new_full((1,), -1), last_token[:-1]])
        follows = (previous >= row_start) & (flat_labels.index_select(0, previous.clamp(min=0)) == flat_labels)
        is_first = is_token & ~follows

    # Everything keeps a size that the host knows. Firsts write their offset at their sequence's index, all others
    # behind the part that is kept, where no two meet; slots after the last sequence hold the total.
    num_up_to = is_token.cumsum(0)
    num_before = num_up_to - is_token.long()
    sequence = is_first.cumsum(0) - 1
    offsets = num_up_to[-1].expand(2 * num_positions + 1).clone()
    offsets.scatter_(0, torch.where(is_first, sequence, position + num_positions + 1), num_before)
    offsets = offsets[: num_positions + 1]
    num_sequences, max_seqlen = torch.stack([sequence[-1] + 1, offsets.diff().max()]).tolist()
    return offsets[: num_sequences + 1].to(torch.int32), max_seqlen


def _rows(name: str, labels: torch.Tensor) -> torch.Tensor:
    if labels.dim() == 1:
        return labels.unsqueeze(0)
    if labels.dim() != 2:
        raise ValueError(f"{name} must have shape [B, L] or [L], got {list(labels.shape)}")
    return labels
