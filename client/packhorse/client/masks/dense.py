"""Dense masks: booleans for `scaled_dot_product_attention`, and additive biases.

Owns their values, on the host and on devices. Leaves writing host memory to `_block_writer`, labels that users give to
`_given_labels`, and kernels that take no dense mask to `block_mask` and `varlen`.

Legend: B rows, L tokens in a row.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from packhorse.client.batches.layout import LayoutLike, PackLayout, as_layout
from packhorse.client.masks._band import Band, pairs_of_equals
from packhorse.client.masks._block_writer import BlockWriter
from packhorse.client.masks._given_labels import layout_or_labels
from packhorse.client.masks._host_memory import allocate
from packhorse.client.masks.labelled import token_labels
from packhorse.client.masks.prefixes import fill_prefixes, refuse_window, with_prefixes
from packhorse.client.masks.token_index import segment_index
from packhorse.client.masks.transfer import move


def build_boolean_mask(
    where: LayoutLike,
    device: torch.device | str,
    *,
    causal: bool,
    window: int | None = None,
    head_dim: bool = True,
    mask_padding: bool = False,
) -> torch.Tensor:
    """Builds a boolean mask of the allowed pairs of positions.

    Legend: B rows, L tokens in a row. On a GPU the host does not wait.

    Example:
        >>> cu_seqlens = np.array([0, 2, 3])  # sequences of 2 tokens and 1
        >>> build_boolean_mask(cu_seqlens, "cpu", causal=True, head_dim=False)
        tensor([[[ True, False, False],
                 [ True,  True, False],
                 [False, False,  True]]])

    Args:
        where: a batch, its layout, or host `cu_seqlens` of sequences that fill one row.
        device: device of the mask.
        causal: whether a token sees only itself and earlier tokens.
        window: how far a token sees on either side, counting itself (|query − key| < window); None for no limit.
        head_dim: whether there is a dimension of size 1 for the heads.
        mask_padding: False: padding attends to itself, so that no row is all False and no softmax turns to NaN. True:
            padding, also in a sequence's room, attends to nothing and nothing attends to it; only for kernels and
            losses that accept such rows.

    Returns:
        bool [B, 1, L, L], or [B, L, L] without `head_dim`: query, then key; True if attention is allowed.

    Raises:
        ValueError: the window is below 1 or combined with shared prefixes, or there is no layout in `where`.
    """
    layout = as_layout(where)
    device = torch.device(device)
    band = Band.of(causal=causal, window=window)
    refuse_window(layout, window)
    if device.type == "cpu":
        mask = allocate((layout.num_rows, 1, layout.row_tokens, layout.row_tokens), torch.bool)
        starts = layout.starts if mask_padding else layout.segments[:-1]
        lengths = layout.lengths if mask_padding else np.diff(layout.segments)
        writer = BlockWriter(torch.bool, band, allowed=True, refused=False)
        writer.write_mask(mask, starts, lengths, is_zero=True)  # as `allocate` returns memory
        fill_prefixes(mask, layout, True)
    elif mask_padding:
        labels = token_labels(layout, device)
        pairs = pairs_of_equals(labels, band) & (labels != 0)[:, :, None]  # padding has the label 0
        mask = with_prefixes(pairs, layout)[:, None]
    else:
        mask = _pairs_on_device(layout, band, device)[:, None]
    return mask if head_dim else mask[:, 0]


def build_packing_attention_bias(
    where: PackLayout | Mapping[str, Any] | torch.Tensor,
    dtype: torch.dtype,
    device: torch.device | str,
    *,
    causal: bool | None = None,
    window: int | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Builds the additive attention bias that separates packed sequences.

    Legend: B rows, L tokens in a row. Build it once in a model's forward and pass it to every layer. It has L² values
    for each row: prefer offsets or a `BlockMask` if the kernel takes them.

    A position attends to all positions of its segment (with `causal`, only up to itself), and so always to itself.
    Padding attends to padding: no row is all −inf, and no softmax turns to NaN. On a GPU the host does not wait.

    Example:
        >>> layout = as_layout(np.array([0, 2, 3]))  # one row: sequences of 2 tokens and 1
        >>> build_packing_attention_bias(layout, torch.float32, "cpu", causal=True)
        tensor([[[[0., -inf, -inf],
                  [0., 0., -inf],
                  [-inf, -inf, 0.]]]])

    Args:
        where: a batch or its layout; or sequence_ids, integers [B, L] or [L], one label for each position, on any
            device. Positions of a row with equal labels are a segment, even if others lie between them; padding needs
            its own label.
        dtype: floating-point type of the bias, the one that attention runs in.
        device: device of the bias.
        causal: whether later positions are blocked too, as generating models need. Required for a batch or a layout;
            for labels, None means False, as in seqpack.
        window: how far a token sees on either side, counting itself (|query − key| < window); None for no limit.
        out: memory to write to and return, `dtype` [B, 1, L, L] on `device`, contiguous; None allocates it.

    Returns:
        `dtype` [B, 1, L, L]: 0 if attention is allowed, −inf if it is blocked; B is 1 for labels [L].

    Raises:
        TypeError: `causal` is missing for a batch or a layout.
        ValueError: `where` or `out` has another shape, `dtype` has no −inf, or the window is below 1 or combined with
            shared prefixes.
    """
    if causal is None and not isinstance(where, torch.Tensor):
        raise TypeError(
            "causal must be given for a batch or a layout: causal=True for models that predict the next token, "
            "causal=False for those that see all of a sequence"
        )
    device = torch.device(device)
    writer = _bias_writer(dtype, causal=bool(causal), window=window)
    source = layout_or_labels(where)
    if isinstance(source, PackLayout):
        refuse_window(source, window)
        num_rows, row_tokens = source.num_rows, source.row_tokens
    else:
        num_rows, row_tokens = source.shape
    shape = (num_rows, 1, row_tokens, row_tokens)
    if out is not None:
        _check_out(out, shape, dtype, device)

    if isinstance(source, PackLayout) and device.type == "cpu":
        bias = allocate(shape, dtype) if out is None else out
        is_zero = out is None  # as `allocate` returns memory
        writer.write_mask(bias, source.segments[:-1], np.diff(source.segments), is_zero=is_zero)
        fill_prefixes(bias, source, 0.0)
        return bias
    pairs = _pairs_on_device(source, writer.band, device)
    blocked = torch.full((), -torch.inf, dtype=dtype, device=device)
    return torch.where(pairs[:, None], torch.zeros_like(blocked), blocked, out=out)


def _pairs_on_device(source: PackLayout | torch.Tensor, band: Band, device: torch.device) -> torch.Tensor:
    """Returns the allowed pairs of a layout, or of labels [B, L], by comparing every pair: bool [B, L, L]."""
    if isinstance(source, torch.Tensor):
        return pairs_of_equals(move(source, device), band)
    return with_prefixes(pairs_of_equals(segment_index(source, device), band), source)


class AttentionBiasBuffer:
    """Host memory that the bias of each step reuses.

    For a new batch it clears the blocks of the last batch's segments and writes those of the new ones: Σ length² values
    instead of L² for each row, and no new memory. On a GPU it has no use, since PyTorch's allocator there reuses
    memory.

    A bias is valid until the next one is built. If autograd still needs it then, the backward pass raises an error.

    Example:
        >>> buffer = AttentionBiasBuffer(1, 3, torch.float32, causal=True)
        >>> buffer.build(as_layout(np.array([0, 2, 3])))
        tensor([[[[0., -inf, -inf],
                  [0., 0., -inf],
                  [-inf, -inf, 0.]]]])
    """

    def __init__(
        self, num_rows: int, row_tokens: int, dtype: torch.dtype, *, causal: bool, window: int | None = None
    ) -> None:
        """Allocates the memory.

        Args:
            num_rows: the largest number of rows in a batch, B.
            row_tokens: tokens in a row, L.
            dtype: floating-point type of the bias, the one that attention runs in.
            causal: whether later positions are blocked too.
            window: how far a token sees on either side, counting itself (|query − key| < window); None for no limit.

        Raises:
            ValueError: `dtype` has no −inf, or the window is below 1.
        """
        self._window = window
        self._writer = _bias_writer(dtype, causal=causal, window=window)
        self._bias = allocate((num_rows, 1, row_tokens, row_tokens), dtype).fill_(-torch.inf)
        self._built: PackLayout | None = None  # the batch whose bias the memory holds

    def __repr__(self) -> str:
        num_rows, _, row_tokens, _ = self._bias.shape
        return f"<AttentionBiasBuffer for {num_rows:,} rows of {row_tokens:,} tokens, {self._bias.dtype}>"

    def build(self, where: PackLayout | Mapping[str, Any]) -> torch.Tensor:
        """Builds the bias of a batch, as `build_packing_attention_bias` does.

        Args:
            where: a batch or its layout, of at most `num_rows` rows of `row_tokens` tokens.

        Returns:
            The rows in use, [B, 1, L, L]: the same memory every time.

        Raises:
            ValueError: there are more rows, rows have another length, or a window is combined with shared prefixes.
        """
        layout = as_layout(where)
        refuse_window(layout, self._window)
        num_rows, _, row_tokens, _ = self._bias.shape
        if layout.num_rows > num_rows or layout.row_tokens != row_tokens:
            raise ValueError(
                f"this buffer has {num_rows} rows of {row_tokens} tokens, the batch {layout.num_rows} of "
                f"{layout.row_tokens}; make one of the size that your batches have"
            )
        if self._built is not None:
            self._writer.clear_blocks(self._bias, self._built.segments)
            fill_prefixes(self._bias, self._built, -torch.inf)
        self._built = layout
        self._writer.write_blocks(self._bias, layout.segments)
        fill_prefixes(self._bias, layout, 0.0)
        # NumPy wrote the memory, which PyTorch did not notice: without this, a backward pass that needs the last bias
        # would silently use this one.
        if not self._bias.is_inference():
            torch.autograd.graph.increment_version(self._bias)
        return self._bias[: layout.num_rows]


def _bias_writer(dtype: torch.dtype, *, causal: bool, window: int | None) -> BlockWriter:
    """Returns the writer of biases: 0 for allowed pairs, −inf for others."""
    if not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating-point type, which has -inf; got {dtype}")
    return BlockWriter(dtype, Band.of(causal=causal, window=window), allowed=0.0, refused=-torch.inf)


def _check_out(out: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    """Refuses memory that cannot hold a bias of this shape and dtype on the device."""
    is_on_device = out.device.type == device.type and device.index in (None, out.device.index)
    if out.shape != shape or out.dtype != dtype or not is_on_device or not out.is_contiguous():
        raise ValueError(
            f"out must be contiguous {dtype} {list(shape)} on {device}; got {out.dtype} {list(out.shape)} with strides "
            f"{list(out.stride())} on {out.device}"
        )
