"""FlexAttention's BlockMask, made from the offsets.

Owns finding which blocks of a row hold allowed pairs, and writing the lists of blocks of a `BlockMask`. Leaves the rule
inside a segment to `_band`, and shared prefixes to `prefixes`.

Each block of queries has two lists of blocks of keys: partial blocks, in which some pairs are allowed, and full blocks,
in which all are. Each block of keys has the same two lists of blocks of queries, for the backward pass.

Legend: B rows, L tokens in a row, H heads, Q and K blocks of queries and keys in a row.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from packhorse.client.batches.layout import LayoutLike, PackLayout, as_layout
from packhorse.client.masks._band import Band
from packhorse.client.masks.prefixes import prefix_bounds, refuse_window
from packhorse.client.masks.token_index import segment_index
from packhorse.client.masks.transfer import transfer

_HOST_ENTRIES = 1 << 13
"""The most entries (B·H·Q·K) of lists that are written in host memory: 8 rows of 4,096 tokens in blocks of 128 have as
many, 8 · 32 · 32."""

MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""FlexAttention's function from (row, head, query, key) to whether the query may attend to the key."""


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

    Legend: B rows, L tokens in a row, H heads (1 serves any number of heads), Q and K blocks of queries and keys in a
    row. Every tensor equals that of `create_block_mask`, even the unused ends of its lists. The work grows with B·Q·K,
    not with B·L². The host never waits for the device.

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
        num_heads: H, if a kernel needs it; None for 1.

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
    of_queries = _find_lists(layout, band, q_block, kv_block)
    of_keys = _find_lists(layout, band.transposed(), kv_block, q_block)
    device = torch.device(device)
    kv_counts, kv_indices, q_counts, q_indices = _lists_on_device(of_queries, of_keys, num_heads or 1, device)
    return BlockMask(  # of each pair, the partial list comes first
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
    """Makes the mask by `create_block_mask`: a query that sees a prefix sees two ranges of keys, not one."""
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
    """Returns FlexAttention's rule for one pair, given the segment of each token, int32 [B, L]."""
    least, most = band.least, band.most

    def mask_mod(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        allowed = segments[row, query] == segments[row, key]
        if least is not None:
            allowed = allowed & (query - key >= least)
        if most is not None:
            allowed = allowed & (query - key <= most)
        return allowed

    return mask_mod


def _find_lists(layout: PackLayout, band: Band, block: int, other_block: int) -> NDArray[np.int64]:
    """Finds, for each block of queries, its partial and its full blocks of keys.

    With a transposed band it finds the blocks of queries for each block of keys; read the names accordingly.

    A query sees one range of keys, which holds the query itself and does not leave its segment. Neither end of the
    range moves back as the query advances. So the first and the last query of a block determine two ranges:

    - [a, b): blocks of keys of which some query sees some key. They run from the first query's first key to the last
      query's end.
    - [c, d): blocks of keys of which every query sees every key: the full blocks. They run from the last query's first
      key to the first query's end.

    [a, c) and [d, b) are the partial blocks. If two segments meet in the block, no key is seen by all of its queries,
    and c ≥ d follows: there are no full blocks. The same holds for a block that extends beyond the row's end.

    Returns:
        int64 [2, 8, B, number of blocks]: the partial list, then the full list, each by the 8 `_list_numbers`.
    """
    first = np.arange(0, layout.row_tokens, block)
    last = np.minimum(first + block, layout.row_tokens) - 1
    from_first, to_first = _seen(layout, band, first)
    from_last, to_last = _seen(layout, band, last)
    a, b = from_first // other_block, -(-to_last // other_block)  # the ends rounded outwards: some keys
    c, d = -(-from_last // other_block), to_first // other_block  # the ends rounded inwards: all keys
    has_no_full = (c >= d) | (first + block > layout.row_tokens)
    c, d = np.where(has_no_full, b, c), np.where(has_no_full, b, d)
    partial, full = _list_numbers(a, c, d, b), _list_numbers(c, d, d, d)  # [a, c) and [d, b); [c, d) and nothing
    return np.stack([partial, full])


def _seen(layout: PackLayout, band: Band, queries: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the first key that each of some queries sees in every row, and the exclusive end: int64 [B, k] each.

    `queries` are positions in a row: int64 [k].
    """
    row_starts = np.arange(layout.num_rows)[:, None] * layout.row_tokens
    next_segment = np.searchsorted(layout.segments, row_starts + queries, side="right")  # after each query's: [B, k]
    starts, ends = layout.segments[next_segment - 1] - row_starts, layout.segments[next_segment] - row_starts
    if band.most is not None:
        starts = np.maximum(starts, queries - band.most)
    if band.least is not None:
        ends = np.minimum(ends, queries - band.least + 1)
    return starts, ends


def _list_numbers(
    a: NDArray[np.int64], c: NDArray[np.int64], d: NDArray[np.int64], b: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Returns the eight numbers of a list of block indices, from which `_write_lists` writes it on the device.

    The list has the blocks of [a, c) and [d, b) first, and then all others, which a kernel does not read; each part is
    ascending. That is the order of `create_block_mask`, which sorts stably. So the list is the ranges [a, c), [d, b),
    [0, a), [c, d) and everything from b on. Within a range, block index − place in the list is constant.

    Returns:
        int64 [8, …]: the places at which the first four ranges end, of which the second is also the number of blocks
        that a kernel reads; then index − place in each of the four. From b on it is 0.
    """
    listed = c - a + b - d
    return np.stack([c - a, listed, listed + a, b, a, d - c + a, -listed, d - b])


def _lists_on_device(
    of_queries: NDArray[np.int64], of_keys: NDArray[np.int64], num_heads: int, device: torch.device
) -> list[torch.Tensor]:
    """Returns [counts, indices] of the queries' lists and [counts, indices] of the keys' lists, on the device.

    Short lists are written in host memory, because starting a dozen kernels would take longer.

    Args:
        of_queries: the numbers of each block of queries, from `_find_lists`: int64 [2, 8, B, Q].
        of_keys: those of each block of keys: int64 [2, 8, B, K].
        num_heads: H.
        device: the device of the result.
    """
    num_rows, num_q_blocks, num_kv_blocks = of_queries.shape[2], of_queries.shape[3], of_keys.shape[3]
    is_small = num_rows * num_heads * num_q_blocks * num_kv_blocks <= _HOST_ENTRIES
    q_numbers, kv_numbers = transfer([of_queries, of_keys], torch.device("cpu") if is_small else device)
    lists = [
        *_write_lists(q_numbers, num_kv_blocks, num_heads),
        *_write_lists(kv_numbers, num_q_blocks, num_heads),
    ]
    return transfer([part.numpy() for part in lists], device) if is_small else lists


def _write_lists(numbers: torch.Tensor, num_others: int, num_heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Writes the lists of n blocks from the numbers of `_list_numbers`.

    Args:
        numbers: these numbers for the partial and the full list: int32 [2, 8, B, n].
        num_others: m, the entries of each list.
        num_heads: H.

    Returns:
        Numbers of listed blocks, int32 [2, B, H, n], and the lists, int32 [2, B, H, n, m].
    """
    place = torch.arange(num_others, dtype=torch.int32, device=numbers.device)  # in a list: [m]
    each_number = numbers[:, :, :, None, :, None].unbind(1)  # eight of [2, B, 1, n, 1]
    range_ends, range_shifts = each_number[:4], each_number[4:]
    # From the last range to the first, since a place before an earlier range's end is before the later ends too.
    shift = torch.zeros_like(place)
    for range_end, range_shift in reversed(list(zip(range_ends, range_shifts, strict=True))):
        shift = torch.where(place < range_end, range_shift, shift)
    counts, indices = numbers[:, 1, :, None], place + shift  # number 1 is that of the blocks that a kernel reads
    return (
        counts.expand(-1, -1, num_heads, -1).contiguous(),
        indices.expand(-1, -1, num_heads, -1, -1).contiguous(),
    )
