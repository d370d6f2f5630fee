"""Dense masks: booleans for `scaled_dot_product_attention`, additive biases, and labels of sequences.

Owns their values and how host memory is written, one block for each segment; leaves kernels that take no dense mask to
`block_mask` and `varlen`.
"""

import contextlib
import math
import mmap
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.batches.layout import LayoutLike, PackLayout, as_layout
from packhorse.client.masks.visibility import (
    Band,
    fill_prefixes,
    move,
    pairs_of_equals,
    refuse_prefixes,
    refuse_window,
    segment_index,
    token_labels,
    with_prefixes,
)

_HUGE_PAGE_BYTES = 2 << 20
_BYTES_FOR_THREADS = 8 << 20


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
        device: where the mask is wanted.
        causal: whether a token sees only itself and earlier tokens.
        window: how far a token sees on either side, counting itself (|query − key| < window); None for no limit.
        head_dim: whether there is a dimension of size 1 for the heads.
        mask_padding: False: padding attends to itself, so that no row is all False and no softmax turns to NaN. True:
            padding attends to nothing and nothing attends to it, padding in a sequence's room included; for kernels
            and losses that accept such rows.

    Returns:
        bool [B, 1, L, L], or [B, L, L] without `head_dim`: query, then key; True where attention is allowed.

    Raises:
        ValueError: the window is below 1 or combined with shared prefixes, or there is no layout in `where`.
    """
    layout = as_layout(where)
    device = torch.device(device)
    band = Band.of(causal=causal, window=window)
    refuse_window(layout, window)
    if device.type == "cpu":
        mask = allocate((layout.num_rows, 1, layout.row_tokens, layout.row_tokens), torch.bool)
        starts, lengths = (
            (layout.starts, layout.lengths) if mask_padding else (layout.segments[:-1], np.diff(layout.segments))
        )
        BlockWriter(torch.bool, band, allowed=True, refused=False).write_all(mask, starts, lengths, is_zero=True)
        fill_prefixes(mask, layout, True)
    elif mask_padding:
        labels = token_labels(layout, device)
        mask = with_prefixes(pairs_of_equals(labels, band) & (labels != 0)[:, :, None], layout)[:, None]
    else:
        mask = with_prefixes(pairs_of_equals(segment_index(layout, device), band), layout)[:, None]
    return mask if head_dim else mask[:, 0]


def build_labelled_mask(
    where: LayoutLike, device: torch.device | str, *, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    """Builds the mask that numbers each token's sequence: LLaMA-Factory's neat packing, JAX's segment ids.

    Example:
        >>> build_labelled_mask(PackLayout.of_rows(np.array([2, 1]), np.array([2]), 4), "cpu")
        tensor([[1, 1, 2, 0]])

    Args:
        where: a batch, its layout, or host `cu_seqlens` of sequences that fill one row.
        device: device of the mask; the host does not wait for a GPU.
        dtype: integer type of the labels.

    Returns:
        `dtype` [B, L]: 1, 2, 3, … for the sequences of each row, 0 for padding, also for padding in a sequence's room.

    Raises:
        ValueError: there is no layout in `where`, or its groups share prefixes.
    """
    layout = as_layout(where)
    refuse_prefixes(layout, "a labelled mask")
    return token_labels(layout, torch.device(device)).to(dtype)


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
    for each row: prefer offsets or a `BlockMask` where the kernel takes them.

    A position attends to all positions of its segment (with `causal`, to those not after it), and so always to itself.
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
        `dtype` [B, 1, L, L]: 0 where attention is allowed, −inf where it is blocked; B is 1 for labels [L].

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
    known = _layout_or_labels(where)
    if isinstance(known, PackLayout):
        refuse_window(known, window)
    num_rows, row_tokens = (known.num_rows, known.row_tokens) if isinstance(known, PackLayout) else known.shape
    shape = (num_rows, 1, row_tokens, row_tokens)
    if out is not None:
        _check_out(out, shape, dtype, device)

    if device.type == "cpu" and isinstance(known, PackLayout):
        bias = allocate(shape, dtype) if out is None else out
        segments = known.segments
        writer.write_all(bias, segments[:-1], np.diff(segments), is_zero=out is None)
        fill_prefixes(bias, known, 0.0)
        return bias
    labels = segment_index(known, device) if isinstance(known, PackLayout) else move(known, device)
    pairs = pairs_of_equals(labels, writer.band)
    is_allowed = (with_prefixes(pairs, known) if isinstance(known, PackLayout) else pairs)[:, None]
    blocked = torch.full((), -torch.inf, dtype=dtype, device=device)
    return torch.where(is_allowed, torch.zeros_like(blocked), blocked, out=out)


class AttentionBiasBuffer:
    """Host memory that the bias of each step reuses.

    Between two batches only the blocks of the first are cleared and those of the second written: Σ length² values, not
    L² for each row, and no fresh memory. On a GPU it has no use, since PyTorch's allocator keeps memory there.

    A bias is valid until the next one is built. Autograd raises an error where it still needs the earlier one.

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
        self._segments = np.zeros(1, dtype=np.int32)
        self._built: PackLayout | None = None

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
        self._writer.write(self._bias, self._segments, clear=True)
        if self._built is not None:
            fill_prefixes(self._bias, self._built, -torch.inf)
        self._segments, self._built = layout.segments, layout
        self._writer.write(self._bias, self._segments)
        fill_prefixes(self._bias, layout, 0.0)
        # PyTorch did not see the writing: without this a backward pass would silently use the wrong bias.
        if not self._bias.is_inference():
            torch.autograd.graph.increment_version(self._bias)
        return self._bias[: layout.num_rows]


def _layout_or_labels(where: PackLayout | Mapping[str, Any] | torch.Tensor) -> PackLayout | torch.Tensor:
    """Returns the layout where it can be known without waiting for a device, else labels [B, L]."""
    if not isinstance(where, torch.Tensor):
        return as_layout(where)
    labels = as_rows("sequence_ids", where)
    return (layout_of_labels(labels) if labels.device.type == "cpu" else None) or labels


def _bias_writer(dtype: torch.dtype, *, causal: bool, window: int | None) -> "BlockWriter":
    if not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating-point type, which has -inf; got {dtype}")
    return BlockWriter(dtype, Band.of(causal=causal, window=window), allowed=0.0, refused=-torch.inf)


def _check_out(out: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    is_there = out.device.type == device.type and device.index in (None, out.device.index)
    if out.shape != shape or out.dtype != dtype or not is_there or not out.is_contiguous():
        raise ValueError(
            f"out must be contiguous {dtype} {list(shape)} on {device}; got {out.dtype} {list(out.shape)} with strides "
            f"{list(out.stride())} on {out.device}"
        )


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


def layout_of_labels(labels: torch.Tensor) -> PackLayout | None:
    """Returns a layout without padding whose segments are the ranges of equal labels, integers [B, L] in host memory.

    None if two ranges of a row have the same label, which no layout can express.
    """
    rows = labels.numpy()
    if rows.size == 0:
        return None
    is_first = np.ones(rows.shape, dtype=np.bool_)
    is_first[:, 1:] = rows[:, 1:] != rows[:, :-1]
    starts = np.flatnonzero(is_first)
    row_ends = np.cumsum(is_first.sum(axis=1))
    rows_of, of_runs = starts // rows.shape[1], rows.reshape(-1)[starts]
    order = np.lexsort((of_runs, rows_of))
    is_again = (np.diff(rows_of[order]) == 0) & (np.diff(of_runs[order]) == 0)
    if is_again.any():
        return None
    return PackLayout.of_rows(np.diff(starts, append=rows.size), row_ends, rows.shape[1])


def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns fresh host memory, all zero, in huge pages where the system has them.

    Dense masks are so large that the allocator asks the system for fresh pages every time. Half of the time would then
    go into page faults, one for every 4 KiB.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < _HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel built without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


class BlockWriter:
    """Writes one value inside segments and another outside.

    Inside, allowed pairs depend on the distance alone, so every block is a corner of one matrix, whose rows are slices
    of one line: nothing is computed for a block, and the line stays in the processor's first cache. Masks are
    contiguous [B, 1, L, L] in host memory; large ones are written by as many threads as PyTorch has.
    """

    def __init__(self, dtype: torch.dtype, band: Band, *, allowed: float, refused: float) -> None:
        self.band = band
        # Bits are copied, whatever they mean: NumPy has no bfloat16.
        self._bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        values = torch.tensor([allowed, refused], dtype=dtype)
        self._allowed, self._refused = values.view(self._bits).numpy()

    def write_all(
        self, mask: torch.Tensor, starts: NDArray[np.integer], lengths: NDArray[np.integer], *, is_zero: bool
    ) -> None:
        """Writes each element of a mask once.

        Args:
            mask: the mask.
            starts: index in B·L of each segment's first token: integers [k]. Tokens outside segments are left alone.
            lengths: tokens of each segment: integers [k]; no segment crosses into the next row.
            is_zero: whether the mask is all zero, so that zeros need not be written.
        """
        corner, line = self._corner(int(lengths.max(initial=0))), np.full(mask.shape[-1], self._refused)
        has_inside = not (is_zero and self.band.is_everything and self._allowed == 0)
        has_outside = not (is_zero and self._refused == 0)

        def write(row: NDArray[Any], first: int, length: int) -> None:
            queries, stop = row[first : first + length], first + length
            if has_outside:
                queries[:, :first] = line[:first]
                queries[:, stop:] = line[stop:]
            if has_inside:
                queries[:, first:stop] = corner[:length, :length]

        self._each(mask, starts, lengths, write)

    def write(self, mask: torch.Tensor, segments: NDArray[np.integer], *, clear: bool = False) -> None:
        """Writes the blocks of segments, offsets [k + 1], and nothing outside; or clears those written before."""
        lengths = np.diff(segments)
        size = int(lengths.max(initial=0))
        block = np.broadcast_to(np.full(size, self._refused), (size, size)) if clear else self._corner(size)

        def write(row: NDArray[Any], first: int, length: int) -> None:
            row[first : first + length, first : first + length] = block[:length, :length]

        self._each(mask, segments[:-1], lengths, write)

    def _each(
        self,
        mask: torch.Tensor,
        starts: NDArray[np.integer],
        lengths: NDArray[np.integer],
        work: Callable[[NDArray[Any], int, int], None],
    ) -> None:
        rows = mask.view(self._bits).numpy()[:, 0]
        rows_of, firsts = np.divmod(starts, mask.shape[-1])
        ranges = list(zip(rows_of.tolist(), firsts.tolist(), lengths.tolist(), strict=True))

        def work_on(some: list[tuple[int, int, int]]) -> None:
            for row, first, length in some:
                work(rows[row], first, length)

        num_threads = 1 if mask.nbytes < _BYTES_FOR_THREADS else torch.get_num_threads()
        if num_threads == 1:
            work_on(ranges)
        else:  # made each time: idle threads would not survive a fork
            with ThreadPoolExecutor(num_threads) as threads:
                list(threads.map(work_on, [ranges[i::num_threads] for i in range(num_threads)]))

    def _corner(self, size: int) -> NDArray[Any]:
        """Returns the block of the longest segment, [size, size]; its corners are the blocks of shorter ones."""
        if size == 0:
            return np.empty((0, 0), dtype=self._allowed.dtype)
        line = np.where(self.band.allows(np.arange(size - 1, -size, -1)), self._allowed, self._refused)
        return np.lib.stride_tricks.sliding_window_view(line, size)[::-1]
