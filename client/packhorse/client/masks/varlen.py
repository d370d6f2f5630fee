"""Attention over sequences laid end to end: the offsets that kernels take, and calls into these kernels.

Owns `cu_seqlens` and `max_seqlen` on the device, from the plan or from labels as seqpack finds them, taking padding out
of tensors and putting it back, and which kernel (PyTorch's, FlashAttention's, xformers') is called and how.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any, Literal

import numpy as np
import torch

from packhorse.client.batches.layout import LayoutLike, as_layout
from packhorse.client.masks.dense import as_rows
from packhorse.client.masks.visibility import Band, refuse_prefixes, transfer


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unpadding:
    """Removes the padding of a batch's tensors, and adds it again, on one device. Legend: B rows, L tokens in a row.

    Make it once for each batch, and use it for every tensor. Gradients pass both ways, and the host never waits.

    Example:
        >>> from packhorse.client import PackLayout
        >>> unpadding = build_unpadding(PackLayout.of_rows([2], [1], 4), "cpu")
        >>> tokens = unpadding.unpad(torch.tensor([[7, 8, 0, 0]]))
        >>> tokens.tolist(), unpadding.pad(tokens).tolist()
        ([7, 8], [[7, 8, 0, 0]])
    """

    num_rows: int
    """B."""
    row_tokens: int
    """L."""
    num_tokens: int
    """Tokens of all sequences, padding left out."""
    indices: torch.Tensor
    """Where each token lies in the rows end to end: int32 [num_tokens], ascending."""

    def unpad(self, padded: torch.Tensor) -> torch.Tensor:
        """Returns the tokens [num_tokens, …] of padded rows [B, L, …].

        Raises:
            ValueError: the rows have another shape.
        """
        if padded.shape[:2] != (self.num_rows, self.row_tokens):
            raise ValueError(
                f"the tensor must have shape [{self.num_rows}, {self.row_tokens}, ...], as the layout says; "
                f"got {list(padded.shape)}"
            )
        return padded.flatten(0, 1).index_select(0, self.indices)

    def pad(self, tokens: torch.Tensor, *, fill: float = 0) -> torch.Tensor:
        """Returns rows [B, L, …] of the tokens [num_tokens, …], padded with `fill`.

        Raises:
            ValueError: there are more tokens or fewer.
        """
        if tokens.shape[:1] != (self.num_tokens,):
            raise ValueError(
                f"the tensor must have shape [{self.num_tokens}, ...], as the layout says; got {list(tokens.shape)}"
            )
        rows = tokens.new_full((self.num_rows * self.row_tokens, *tokens.shape[1:]), fill)
        rows = rows.index_copy(0, self.indices.long(), tokens)
        return rows.view(self.num_rows, self.row_tokens, *tokens.shape[1:])


def build_unpadding(where: LayoutLike, device: torch.device | str) -> Unpadding:
    """Finds the tokens of a batch, from its offsets.

    Example:
        >>> from packhorse.client import PackLayout
        >>> layout = PackLayout.of_rows([2, 1, 3], [2, 3], 4)  # rows of 2 + 1 and 3 tokens
        >>> build_unpadding(layout, "cpu").indices.tolist()  # all positions but 3 and 7, which are padding
        [0, 1, 2, 4, 5, 6]

    Args:
        where: a batch, its layout, or host `cu_seqlens` of sequences that fill one row.
        device: where the tensors are.

    Raises:
        ValueError: there is no layout in `where`.
    """
    layout = as_layout(where)
    shifts = np.repeat(layout.starts - layout.cu_seqlens[:-1], layout.lengths)
    (indices,) = transfer([np.arange(layout.num_tokens) + shifts], torch.device(device))
    return Unpadding(
        num_rows=layout.num_rows,
        row_tokens=layout.row_tokens,
        num_tokens=layout.num_tokens,
        indices=indices,
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


Kernel = Literal["auto", "torch", "flash"]


def varlen_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    where: VarlenOffsets | LayoutLike,
    *,
    causal: bool,
    window: int | None = None,
    scale: float | None = None,
    kernel: Kernel = "auto",
) -> torch.Tensor:
    """Attends within each sequence of a packed batch.

    Example:
        >>> offsets = build_varlen_offsets(torch.tensor([0, 2, 3]), "cuda")  # doctest: +SKIP
        >>> query = key = value = torch.randn(3, 8, 64, device="cuda", dtype=torch.bfloat16)  # doctest: +SKIP
        >>> varlen_attention(query, key, value, offsets, causal=True).shape  # doctest: +SKIP
        torch.Size([3, 8, 64])

    Args:
        query: [tokens, heads, head size], of all sequences end to end without padding (see `Unpadding`); float16 or
            bfloat16 on a GPU.
        key: [tokens, KV heads, head size]; heads are a multiple of KV heads.
        value: as `key`.
        where: offsets on the device, best built once for all layers of a batch; or a batch, its layout, or host
            `cu_seqlens`.
        causal: whether a token sees only itself and earlier tokens.
        window: how far a token sees on either side, counting itself (|query − key| < window); None for no limit.
        scale: factor for scores; None for 1/√(head size).
        kernel: "flash" is `flash_attn_varlen_func` of flash-attn, "torch" is `torch.nn.attention.varlen.varlen_attn`;
            "auto" takes the first if it is installed.

    Returns:
        [tokens, heads, head size].

    Raises:
        ImportError: the kernel is not installed, or torch is older than 2.11.
        ValueError: tensors have other shapes or are on a device without kernels, the window is below 1, or there is no
            layout in `where`.
    """
    if kernel not in ("auto", *_KERNELS):
        raise ValueError(f"kernel must be auto, {' or '.join(_KERNELS)}; got {kernel!r}")
    if not query.dim() == key.dim() == value.dim() == 3:
        raise ValueError(
            "query, key and value must be [tokens, heads, head size], without padding; take it out with "
            f"build_unpadding(batch, device).unpad(...). Got {list(query.shape)}, {list(key.shape)} and "
            f"{list(value.shape)}"
        )
    band = Band.of(causal=causal, window=window)
    _refuse_devices_without_kernels(query.device)
    if kernel == "auto":
        kernel = "flash" if find_spec("flash_attn") else "torch"
    offsets = where if isinstance(where, VarlenOffsets) else build_varlen_offsets(where, query.device)
    return _KERNELS[kernel](query, key, value, offsets, band, scale)


def build_block_diagonal_mask(where: LayoutLike, *, causal: bool) -> Any:
    """Builds the mask for `xformers.ops.memory_efficient_attention`.

    Example:
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
        if (error.name or "").partition(".")[0] != "xformers":
            raise
        raise ImportError(
            "build_block_diagonal_mask needs xformers: install it (pip install xformers), or use varlen_attention or "
            "build_block_mask, which need torch alone"
        ) from None
    mask = attn_bias.BlockDiagonalMask.from_seqlens(layout.lengths.tolist())
    return mask.make_causal() if causal else mask


def _refuse_devices_without_kernels(device: torch.device) -> None:
    if device.type == "cpu":
        raise ValueError(
            "variable-length attention kernels run on GPUs only; on the CPU use scaled_dot_product_attention with "
            "build_packing_attention_bias or build_boolean_mask, or flex_attention with build_block_mask"
        )


def _by_torch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: VarlenOffsets,
    band: Band,
    scale: float | None,
) -> torch.Tensor:
    try:
        varlen = import_module("torch.nn.attention.varlen")
    except ModuleNotFoundError:
        raise ImportError(
            f"torch {torch.__version__} has no torch.nn.attention.varlen; install a newer one, or flash-attn"
        ) from None
    known = signature(varlen.varlen_attn).parameters
    if "window_size" not in known:
        raise ImportError(
            f"varlen_attn of torch {torch.__version__} takes no window_size; install torch 2.11 or newer, or flash-attn"
        )
    options: dict[str, Any] = {"scale": scale, "window_size": _reach(band)}
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and "enable_gqa" in known:
        options["enable_gqa"] = True
    elif groups > 1:  # torch 2.11 wants as many heads of keys as of queries
        key, value = (states.repeat_interleave(groups, 1) for states in (key, value))
    return varlen.varlen_attn(
        query,
        key,
        value,
        offsets.cu_seqlens,
        offsets.cu_seqlens,
        offsets.max_seqlen,
        offsets.max_seqlen,
        **options,
    )


def _by_flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: VarlenOffsets,
    band: Band,
    scale: float | None,
) -> torch.Tensor:
    try:
        flash_attn = import_module("flash_attn")
    except ModuleNotFoundError:
        raise ImportError('flash_attn is not installed: install flash-attn, or choose kernel="torch"') from None
    return flash_attn.flash_attn_varlen_func(
        query,
        key,
        value,
        offsets.cu_seqlens,
        offsets.cu_seqlens,
        offsets.max_seqlen,
        offsets.max_seqlen,
        softmax_scale=scale,
        causal=band.least == 0,
        window_size=_reach(band),
    )


def _reach(band: Band) -> tuple[int, int]:
    """Returns how many tokens one sees before and after itself, −1 for all, as both kernels take `window_size`."""
    return -1 if band.most is None else band.most, -1 if band.least is None else -band.least


_KERNELS: dict[str, Callable[..., torch.Tensor]] = {"flash": _by_flash, "torch": _by_torch}
