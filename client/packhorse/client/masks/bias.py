"""The dense additive bias: 0 where attention is allowed, −inf where it is not.

Owns the bias and memory to use again for it; leaves writing blocks to `_host_blocks`, and masks of booleans to
`boolean`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from packhorse.client.batches.layout import PackLayout, as_layout
from packhorse.client.masks._band import Band
from packhorse.client.masks._host_blocks import BlockWriter, allocate
from packhorse.client.masks.boolean import as_rows, layout_of_labels
from packhorse.client.masks.on_device import move, pairs_of_equals, segment_index, with_prefixes
from packhorse.client.masks.prefixes import fill_prefixes, refuse_window


def build_packing_attention_bias(
    where: PackLayout | Mapping[str, Any] | torch.Tensor,
    dtype: torch.dtype,
    device: torch.device | str,
    *,
    causal: bool | None = None,
    window: int | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Builds the additive attention bias that keeps packed sequences apart.

    Legend: B rows, L tokens in a row. Build it once in a model's forward and hand it to every layer. It takes L² values
    a row: where a kernel takes offsets or a `BlockMask`, give it those.

    A position attends to all positions of its segment (with `causal`, to those not after it), and so always to itself.
    Padding attends to padding: no row is all −inf, and no softmax turns to NaN. On a GPU the host does not wait.

    Example:
        >>> layout = as_layout(np.array([0, 2, 3]))  # one row: sequences of 2 tokens and 1
        >>> build_packing_attention_bias(layout, torch.float32, "cpu", causal=True)
        tensor([[[[0., -inf, -inf],
                  [0., 0., -inf],
                  [-inf, -inf, 0.]]]])

    Args:
        where: a batch or its layout, which cost no look at any token; or sequence_ids, integers [B, L] or [L], one
            label for each position, on any device. Positions of a row with equal labels are a segment, even apart;
            padding needs a label of its own.
        dtype: floating-point type of the bias, the one attention runs in.
        device: where the bias is wanted.
        causal: True also blocks every later position, as generating models want it; False does not. It must be said for
            a batch or a layout; labels alone mean False where it is not, as seqpack takes them.
        window: tokens that a token sees on either side, itself included (|query − key| < window); None for all.
        out: memory to write to and return, `dtype` [B, 1, L, L] on `device`, contiguous; None for fresh memory.

    Returns:
        `dtype` [B, 1, L, L]: 0 where attention is allowed, −inf where it is blocked; B is 1 for labels [L].

    Raises:
        TypeError: `causal` is not said for a batch or a layout.
        ValueError: `where` or `out` has another shape, `dtype` has no −inf, or the window is below 1 or goes with
            shared prefixes.
    """
    _check_dtype(dtype)
    device = torch.device(device)
    band = Band.of(causal=_is_causal(where, causal), window=window)
    known = _known(where)
    if isinstance(known, PackLayout):
        refuse_window(known, window)
    num_rows, row_tokens = (known.num_rows, known.row_tokens) if isinstance(known, PackLayout) else known.shape
    shape = (num_rows, 1, row_tokens, row_tokens)
    if out is not None:
        _check_out(out, shape, dtype, device)

    if device.type == "cpu" and isinstance(known, PackLayout):
        bias = allocate(shape, dtype) if out is None else out
        segments = known.segments
        _writer(dtype, band).write_all(bias, segments[:-1], np.diff(segments), is_zero=out is None)
        fill_prefixes(bias, known, 0.0)
        return bias
    labels = segment_index(known, device) if isinstance(known, PackLayout) else move(known, device)
    pairs = pairs_of_equals(labels, band)
    is_allowed = (with_prefixes(pairs, known) if isinstance(known, PackLayout) else pairs)[:, None]
    blocked = torch.full((), -torch.inf, dtype=dtype, device=device)
    return torch.where(is_allowed, torch.zeros_like(blocked), blocked, out=out)


class AttentionBiasBuffer:
    """Memory for the bias of one step after the other, in host memory.

    Between two batches only the blocks of the one are taken back and those of the next written: Σ length² values, not
    L² a row, and no fresh memory. On a GPU there is no use for it: its allocator keeps memory anyway.

    A bias is good until the next one is built. Where autograd still needs the earlier one then, it says so.

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
        """Takes the memory.

        Args:
            num_rows: the most rows that a batch has, B.
            row_tokens: tokens in a row, L.
            dtype: floating-point type of the bias, the one attention runs in.
            causal: whether every later position is blocked too.
            window: tokens that a token sees on either side, itself included (|query − key| < window); None for all.

        Raises:
            ValueError: `dtype` has no −inf, or the window is below 1.
        """
        _check_dtype(dtype)
        self._window = window
        self._writer = _writer(dtype, Band.of(causal=causal, window=window))
        self._bias = allocate((num_rows, 1, row_tokens, row_tokens), dtype).fill_(-torch.inf)
        self._segments = np.zeros(1, dtype=np.int32)
        self._built: PackLayout | None = None

    def __repr__(self) -> str:
        num_rows, _, row_tokens, _ = self._bias.shape
        return f"<AttentionBiasBuffer for {num_rows:,} rows of {row_tokens:,} tokens, {self._bias.dtype}>"

    def build(self, where: PackLayout | Mapping[str, Any]) -> torch.Tensor:
        """Builds the bias of a batch, as `build_packing_attention_bias` does.

        Args:
            where: a batch or its layout, of at most so many rows of so many tokens.

        Returns:
            The rows in use, [B, 1, L, L]: the same memory every time.

        Raises:
            ValueError: rows are more, or of another length, or a window goes with shared prefixes.
        """
        layout = as_layout(where)
        refuse_window(layout, self._window)
        num_rows, _, row_tokens, _ = self._bias.shape
        if layout.num_rows > num_rows or layout.row_tokens != row_tokens:
            raise ValueError(
                f"this buffer has {num_rows} rows of {row_tokens} tokens, the batch {layout.num_rows} of "
                f"{layout.row_tokens}; make one of the size that your batches have"
            )
        self._writer.clear(self._bias, self._segments[:-1], np.diff(self._segments))
        if self._built is not None:
            fill_prefixes(self._bias, self._built, -torch.inf)
        self._segments, self._built = layout.segments, layout
        self._writer.write(self._bias, self._segments[:-1], np.diff(self._segments))
        fill_prefixes(self._bias, layout, 0.0)
        # Written behind PyTorch's back: without this a backward pass would use the wrong bias in silence.
        if not self._bias.is_inference():
            torch.autograd.graph.increment_version(self._bias)
        return self._bias[: layout.num_rows]


def _is_causal(where: PackLayout | Mapping[str, Any] | torch.Tensor, causal: bool | None) -> bool:
    if causal is None and not isinstance(where, torch.Tensor):
        raise TypeError(
            "causal must be said for a batch or a layout: causal=True for models that predict the next token, "
            "causal=False for those that see all of a sequence"
        )
    return bool(causal)


def _known(where: PackLayout | Mapping[str, Any] | torch.Tensor) -> PackLayout | torch.Tensor:
    """The layout where it can be known without waiting for a device, else labels [B, L]."""
    if not isinstance(where, torch.Tensor):
        return as_layout(where)
    labels = as_rows("sequence_ids", where)
    return (layout_of_labels(labels) if labels.device.type == "cpu" else None) or labels


def _writer(dtype: torch.dtype, band: Band) -> BlockWriter:
    return BlockWriter(dtype, band, allowed=0.0, refused=-torch.inf)


def _check_dtype(dtype: torch.dtype) -> None:
    if not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating-point type, which has -inf; got {dtype}")


def _check_out(out: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    is_there = out.device.type == device.type and device.index in (None, out.device.index)
    if out.shape != shape or out.dtype != dtype or not is_there or not out.is_contiguous():
        raise ValueError(
            f"out must be contiguous {dtype} {list(shape)} on {device}; got {out.dtype} {list(out.shape)} with strides "
            f"{list(out.stride())} on {out.device}"
        )
