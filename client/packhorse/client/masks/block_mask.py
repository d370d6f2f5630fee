"""FlexAttention's BlockMask, made from the offsets.

Owns which blocks of a row hold allowed pairs, and the lists of blocks that `BlockMask` keeps; leaves the rule inside a
segment to `_band`.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from packhorse.client.batches.layout import LayoutLike, PackLayout, as_layout
from packhorse.client.masks._band import Band
from packhorse.client.masks.prefixes import prefix_bounds, refuse_window
from packhorse.client.masks.transfer import segment_index, transfer

_HOST_ENTRIES = 1 << 13
"""The most entries of one kind of list that the host writes: 8 rows of 4,096 tokens in blocks of 128."""

MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(row, head, query, key) → whether the query may attend to the key, as FlexAttention asks."""


def build_block_mask(
    where: LayoutLike,
    device: torch.device | str,
    *,
    causal: bool,
    window: int | None = None,
    block_size: int | tuple[int, int] = 128,
    num_heads: int | None = None,
) -> BlockMask:
    """Builds the same BlockMask as `create_block_mask`, without evaluating every pair of tokens.

    Legend: B rows, L tokens in a row, H heads (1, which serves any number of them), Q and K blocks of queries and keys
    in a row. Every tensor equals that of `create_block_mask`, the undefined ends of its lists included; the work grows
    with B·Q·K, not with B·L². The host never waits for the device.

    If groups share prefixes (`shared_prefix`), `create_block_mask` itself makes the mask, from every pair.

    A token attends to its own segment (see `PackLayout.segments`), so padding attends to itself only and no softmax
    turns to NaN.

    Example:
        >>> mask = build_block_mask(np.array([0, 128, 256]), "cpu", causal=True)  # two sequences, a block of 128 each
        >>> mask.kv_indices[0, 0, :, 0].tolist()  # each block of queries sees its own keys only
        [0, 1]

    Args:
        where: a batch, its layout, or host `cu_seqlens` of sequences that fill one row.
        device: where attention runs.
        causal: whether a token sees only itself and earlier tokens.
        window: how far a token sees on either side, counting itself (|query − key| < window); None for no limit.
        block_size: tokens in a block, or (of queries, of keys).
        num_heads: H, where a kernel needs it; None for 1.

    Returns:
        A mask for `flex_attention(query, key, value, block_mask=…)` with query [B, heads, L, head size].

    Raises:
        ValueError: a block size, window or number of heads is below 1, or there is no layout in `where`.
    """
    layout = as_layout(where)
    band = Band.of(causal=causal, window=window)
    q_block, kv_block = (block_size, block_size) if isinstance(block_size, int) else block_size
    if min(q_block, kv_block) < 1:
        raise ValueError(f"block_size must be at least 1, got {block_size}")
    if num_heads is not None and num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, got {num_heads}")

    refuse_window(layout, window)
    if layout.shared_prefix:
        return _with_prefixes(layout, torch.device(device), band, (q_block, kv_block), num_heads)
    ranges = [
        _block_ranges(layout, band, q_block, kv_block),
        _block_ranges(layout, band.transposed(), kv_block, q_block),
    ]
    device = torch.device(device)
    kv_counts, kv_indices, q_counts, q_indices = _written_lists(ranges, num_heads or 1, device)
    return BlockMask(
        seq_lengths=(layout.row_tokens, layout.row_tokens),
        kv_num_blocks=kv_counts[0],
        kv_indices=kv_indices[0],
        full_kv_num_blocks=kv_counts[1],
        full_kv_indices=kv_indices[1],
        q_num_blocks=q_counts[0],
        q_indices=q_indices[0],
        full_q_num_blocks=q_counts[1],
        full_q_indices=q_indices[1],
        BLOCK_SIZE=(q_block, kv_block),
        mask_mod=_mask_mod(segment_index(layout, device), band),
    )


def _with_prefixes(
    layout: PackLayout, device: torch.device, band: Band, block_size: tuple[int, int], num_heads: int | None
) -> BlockMask:
    """Makes the mask from every pair, since queries that see a prefix see two ranges of keys."""
    own = _mask_mod(segment_index(layout, device), band)
    firsts, ends = prefix_bounds(layout, device)

    def mask_mod(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return own(row, head, query, key) | ((key >= firsts[row, query]) & (key < ends[row, query]))

    return create_block_mask(
        mask_mod,
        layout.num_rows,
        num_heads,
        layout.row_tokens,
        layout.row_tokens,
        device=device,
        BLOCK_SIZE=block_size,
    )


def _mask_mod(segments: torch.Tensor, band: Band) -> MaskMod:
    """Returns the rule for one pair, given segments int32 [B, L]."""
    least, most = band.least, band.most

    def mask_mod(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        allowed = segments[row, query] == segments[row, key]
        if least is not None:
            allowed = allowed & (query - key >= least)
        if most is not None:
            allowed = allowed & (query - key <= most)
        return allowed

    return mask_mod


def _block_ranges(layout: PackLayout, band: Band, block: int, other_block: int) -> NDArray[np.int64]:
    """Finds, for each block of a row, the other blocks with some allowed pairs, and those with allowed pairs only.

    The names are for blocks of queries and the keys that they see; a transposed band gives blocks of keys and the
    queries that see them. Query q sees one range of keys of its segment, with q in it, whose ends never move back as q
    grows. So the first and last query of a block give both ends of what any of its queries sees (blocks [a, b), which
    are listed) and of what all see (blocks [c, d), which are full, unless queries overhang the row). Where two segments
    meet in a block, no key is seen by all, and c ≥ d follows.

    Returns:
        int64 [2, 8, B, number of blocks]: partial list, full list; see `_ordered`.
    """
    first = np.arange(0, layout.row_tokens, block)
    last = np.minimum(first + block, layout.row_tokens) - 1
    from_first, to_first = _seen(layout, band, first)
    from_last, to_last = _seen(layout, band, last)
    a, b = from_first // other_block, -(-to_last // other_block)
    c, d = -(-from_last // other_block), to_first // other_block
    has_no_full = (c >= d) | (first + block > layout.row_tokens)
    c, d = np.where(has_no_full, b, c), np.where(has_no_full, b, d)
    return np.stack([_ordered(a, c, d, b), _ordered(c, d, d, d)])


def _seen(layout: PackLayout, band: Band, queries: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the first key that queries [k] of every row see, and the exclusive end: int64 [B, k] each."""
    row_starts = np.arange(layout.num_rows)[:, None] * layout.row_tokens
    segment = np.searchsorted(layout.segments, row_starts + queries, side="right")
    starts, ends = layout.segments[segment - 1] - row_starts, layout.segments[segment] - row_starts
    if band.most is not None:
        starts = np.maximum(starts, queries - band.most)
    if band.least is not None:
        ends = np.minimum(ends, queries - band.least + 1)
    return starts, ends


def _ordered(
    a: NDArray[np.int64], c: NDArray[np.int64], d: NDArray[np.int64], b: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Describes a list that has the blocks of [a, c) and [d, b) first, then all others, each part ascending.

    This is the order of `create_block_mask`, which sorts stably. Such a list is the ranges [a, c), [d, b), [0, a),
    [c, d) and everything from b on; within a range, index − slot is constant.

    Returns:
        int64 [8, …]: the ends of the first four ranges in the list, the second being the number of listed blocks; then
        index − slot in each of them. After the fourth it is 0.
    """
    listed = c - a + b - d
    return np.stack([c - a, listed, listed + a, b, a, d - c + a, -listed, d - b])


def _written_lists(ranges: list[NDArray[np.int64]], num_heads: int, device: torch.device) -> list[torch.Tensor]:
    """Returns counts and indices of the queries' lists, then of the keys', on the device.

    Short lists are written in host memory, because starting a dozen kernels takes longer.
    """
    num_rows, num_queries, num_keys = ranges[0].shape[2], ranges[0].shape[3], ranges[1].shape[3]
    is_small = num_rows * num_heads * num_queries * num_keys <= _HOST_ENTRIES
    of_queries, of_keys = transfer(ranges, torch.device("cpu") if is_small else device)
    lists = [*_lists(of_queries, num_keys, num_heads), *_lists(of_keys, num_queries, num_heads)]
    return transfer([part.numpy() for part in lists], device) if is_small else lists


def _lists(ranges: torch.Tensor, num_others: int, num_heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Writes lists of m entries from ranges int32 [2, 8, B, n]: counts int32 [2, B, H, n], indices [2, B, H, n, m]."""
    slot = torch.arange(num_others, dtype=torch.int32, device=ranges.device)
    parts = ranges[:, :, :, None, :, None].unbind(1)
    shift = torch.zeros_like(slot)
    for end, of_range in reversed(list(zip(parts[:4], parts[4:], strict=True))):
        shift = torch.where(slot < end, of_range, shift)
    counts, indices = ranges[:, 1, :, None], slot + shift
    return (
        counts.expand(-1, -1, num_heads, -1).contiguous(),
        indices.expand(-1, -1, num_heads, -1, -1).contiguous(),
    )
