"""Offsets for variable-length kernels, found in labels of tokens as seqpack does: `build_packing_cu_seqlens`.

Owns also the shapes that labels may have (`as_rows`). It is for labels that users have; a batch's offsets are known
from its layout, which is in `offsets`.

Legend: B rows, L tokens in a row.
"""

import numpy as np
import torch


def build_packing_cu_seqlens(
    sequence_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, int]:
    """Builds FlashAttention's `cu_seqlens` from labels of tokens; for a batch, `build_varlen_offsets` needs no labels.

    Legend: B rows, L tokens in a row, n sequences. Sequence i covers [cu_seqlens[i], cu_seqlens[i + 1]) of the rows'
    tokens laid end to end, without those that `attention_mask` takes out, as in
    `hidden.flatten(0, 1)[attention_mask.flatten().bool()]`.

    After masked positions are taken out, neighbouring positions of a row with equal labels are one sequence; no
    sequence is in two rows. The work stays on the labels' device. The host waits for a GPU once, at the end, for two
    integers: n, which the result's shape needs, and the longest length.

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
    """Returns the offsets and the longest length of labels [B, L] in host memory, by NumPy."""
    row_tokens = labels.shape[1]
    of_tokens = labels.numpy().reshape(-1)
    if attention_mask is None:
        is_first = np.ones(len(of_tokens), dtype=np.bool_)
        np.not_equal(of_tokens[1:], of_tokens[:-1], out=is_first[1:])
        is_first[::row_tokens] = True  # a row's first token, whatever the label before it
    else:
        positions = np.flatnonzero(attention_mask.numpy())
        of_tokens, rows = of_tokens[positions], positions // row_tokens
        is_first = np.ones(len(positions), dtype=np.bool_)
        is_first[1:] = (of_tokens[1:] != of_tokens[:-1]) | (rows[1:] != rows[:-1])
    cu_seqlens = np.append(np.flatnonzero(is_first), len(of_tokens)).astype(np.int32)
    return torch.from_numpy(cu_seqlens), int(np.diff(cu_seqlens).max(initial=0))


def _scan_device(labels: torch.Tensor, attention_mask: torch.Tensor | None) -> tuple[torch.Tensor, int]:
    """Returns the same as `_scan_host` for labels on a device, which the host waits for only at the end."""
    positions = torch.arange(labels.numel(), device=labels.device)
    if attention_mask is None:
        is_token = torch.ones(labels.numel(), dtype=torch.bool, device=labels.device)
        is_first = torch.ones_like(labels, dtype=torch.bool)
        is_first[:, 1:] = labels[:, 1:] != labels[:, :-1]
        return _offsets_of_firsts(is_first.reshape(-1), is_token, positions)
    is_token = attention_mask.reshape(-1) != 0
    return _offsets_of_firsts(_is_first_token(labels, is_token, positions), is_token, positions)


def _is_first_token(labels: torch.Tensor, is_token: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Returns whether each position is a sequence's first token, after masked positions are taken out: bool [B · L].

    Args:
        labels: integers [B, L].
        is_token: whether each position is a token: bool [B · L].
        positions: 0, 1, 2, …: int64 [B · L].
    """
    flat_labels = labels.reshape(-1)
    row_start = positions[:: labels.shape[1], None].expand_as(labels).reshape(-1)  # of each position's row
    # `previous` is the position of the last token before each position; for a row's first token it is in an earlier
    # row, or -1.
    last_token = torch.where(is_token, positions, -1).cummax(0).values
    previous = torch.cat([last_token.new_full((1,), -1), last_token[:-1]])
    follows = (previous >= row_start) & (flat_labels.index_select(0, previous.clamp(min=0)) == flat_labels)
    return is_token & ~follows


def _offsets_of_firsts(
    is_first: torch.Tensor, is_token: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, int]:
    """Returns the offsets and the longest length of sequences whose first tokens are known.

    The host does not know n, so it allocates for the most sequences possible, one for each position. A sequence's first
    token writes its offset at the sequence's index. All other positions write to an unused part at the end, each at a
    different index. Indices after the last sequence hold the total.

    Args:
        is_first: whether each position is a sequence's first token: bool [B · L].
        is_token: whether it is a token: bool [B · L].
        positions: 0, 1, 2, …: int64 [B · L].
    """
    num_positions = len(positions)
    num_up_to = is_token.cumsum(0)
    num_before = num_up_to - is_token.long()  # tokens before each position: a first token's offset
    sequence = is_first.cumsum(0) - 1  # index of each position's sequence; −1 before the first
    # Entries [0, B · L] are the offsets; the B · L entries after them are the unused part.
    offsets = num_up_to[-1].expand(2 * num_positions + 1).clone()
    offsets.scatter_(0, torch.where(is_first, sequence, num_positions + 1 + positions), num_before)
    offsets = offsets[: num_positions + 1]
    num_sequences, max_seqlen = torch.stack([sequence[-1] + 1, offsets.diff().max()]).tolist()
    return offsets[: num_sequences + 1].to(torch.int32), max_seqlen


def as_rows(name: str, labels: torch.Tensor) -> torch.Tensor:
    """Returns labels [B, L] or [L] as [B, L].

    Raises:
        ValueError: they have another shape.
    """
    if labels.dim() == 1:
        return labels.unsqueeze(0)
    if labels.dim() != 2:
        raise ValueError(f"{name} must have shape [B, L] or [L], got {list(labels.shape)}")
    return labels
