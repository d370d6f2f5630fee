"""How the tokens of a row are divided over context-parallel ranks: zigzag, contiguous, or blocks dealt by work.

Owns the indices of each rank's tokens, and what a row must be for each layout. A rank's tensors are in `context`.
"""

from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client import PackLayout

ContextParallelLayout = Literal["zigzag", "contiguous", "blocks"]
"""How the tokens of a row are divided over ranks; see `context_parallel_indices`."""

BLOCK_TOKENS = 128
"""Tokens of a block of layout `blocks`, as FlexAttention's blocks have."""


def context_parallel_indices(
    cu_seqlens: torch.Tensor,
    num_tokens: int,
    size: int,
    rank: int | None = None,
    *,
    layout: ContextParallelLayout = "zigzag",
    block_tokens: int = BLOCK_TOKENS,
    restore: bool = False,
) -> torch.Tensor:
    """Returns the indices of one rank's tokens under context parallelism, or of all ranks' tokens, rank by rank.

    `zigzag` cuts every segment into 2·size equal chunks. Rank r takes chunks r and 2·size − 1 − r, so that causal
    attention costs each rank the same. Transformer Engine's `thd_get_partitioned_indices` gives the same indices; this
    function needs neither it nor a GPU.

    `contiguous` cuts the row into `size` equal shares, and gives rank r share r; linear attention needs this order.

    `blocks` cuts the row into blocks of `block_tokens` tokens, without regard to segments. Every rank gets the same
    number of blocks, with about the same causal attention to compute. Segments need no alignment. This is for attention
    that reads a mask and all keys, such as FlexAttention; ring attention needs `zigzag`.

    The function does not wait for a device.

    Example:
        >>> offsets = torch.tensor([0, 8, 12])
        >>> context_parallel_indices(offsets, 12, size=2, rank=0).tolist()
        [0, 1, 6, 7, 8, 11]
        >>> context_parallel_indices(torch.tensor([0, 3, 8]), 8, 2, layout="blocks", block_tokens=2).tolist()
        [0, 1, 6, 7, 2, 3, 4, 5]

    Args:
        cu_seqlens: offsets of segments (a segment is the room of a sequence), from 0 to `num_tokens`: integers [s + 1].
            For `zigzag` each must be a multiple of 2·size (`prepare --align`). Offsets are checked only if they are in
            host memory, because reading them from a device would wait for it. For `blocks` they must be in host memory.
            The padding at a row's end must be a segment too, except for `contiguous`.
        num_tokens: T, a multiple of 2·size for `zigzag`, of size for `contiguous`, of size·block_tokens for `blocks`.
        size: number of context-parallel ranks.
        rank: this rank, in [0, size). None for all ranks' indices end to end, in `size` equal shares.
        layout: `zigzag`, `contiguous` or `blocks`.
        block_tokens: tokens of a block, for `blocks`; FlexAttention's blocks have 128.
        restore: whether to return the inverse permutation: `row[indices][inverse]` is the row. Only without a rank.

    Returns:
        int64 [T / size], or [T] without a rank; on the offsets' device. A rank's indices ascend within each segment.

    Raises:
        ValueError: an argument is out of range, `num_tokens` or an offset is not the multiple that the layout needs,
            offsets do not ascend from 0 to `num_tokens`, or they are on a device with layout `blocks`.
    """
    if layout not in get_args(ContextParallelLayout):
        raise ValueError(f"layout must be one of {', '.join(get_args(ContextParallelLayout))}; got {layout!r}")
    if size < 1 or block_tokens < 1:
        raise ValueError(f"size and block_tokens must be at least 1, got {size} and {block_tokens}")
    if rank is not None and not 0 <= rank < size:
        raise ValueError(f"rank must be in [0, {size}), got {rank}")
    if rank is not None and restore:
        raise ValueError("restore is the inverse of all ranks' indices; leave rank out")
    _check_multiple(num_tokens, size, layout, block_tokens)
    _check_offsets(cu_seqlens, num_tokens, size, layout)
    if rank is not None and layout == "zigzag" and size > 1:
        return _zigzag(cu_seqlens, num_tokens, size, rank)  # without the other ranks' indices
    indices = _of_all_ranks(cu_seqlens, num_tokens, size, layout, block_tokens)
    if rank is not None:
        share = num_tokens // size
        return indices[rank * share : (rank + 1) * share]
    return indices.argsort() if restore else indices


def _of_all_ranks(
    cu_seqlens: torch.Tensor, num_tokens: int, size: int, layout: ContextParallelLayout, block_tokens: int
) -> torch.Tensor:
    """Returns the indices of all ranks' tokens, rank by rank: int64 [T]."""
    if size == 1 or layout == "contiguous":
        return torch.arange(num_tokens, device=cu_seqlens.device)
    if layout == "blocks":
        return torch.from_numpy(_dealt_blocks(cu_seqlens, num_tokens, size, block_tokens))
    return torch.cat([_zigzag(cu_seqlens, num_tokens, size, rank) for rank in range(size)])


def _check_multiple(num_tokens: int, size: int, layout: ContextParallelLayout, block_tokens: int) -> None:
    """Refuses a row that `layout` cannot divide equally over ranks."""
    unit = {"zigzag": 2 * size, "contiguous": size, "blocks": size * block_tokens}[layout]
    if size == 1 or not num_tokens % unit:
        return
    way_out = {
        "zigzag": f"prepare the dataset with align={unit} and a max_seq_len that is a multiple",
        "contiguous": "prepare the dataset with a max_seq_len that is a multiple",
        "blocks": "prepare the dataset with a max_seq_len that is a multiple, or take smaller block_tokens",
    }[layout]
    raise ValueError(
        f"num_tokens {num_tokens} is not a multiple of {unit}, as {size} context-parallel ranks need in layout "
        f"{layout!r}; {way_out}"
    )


def _check_offsets(cu_seqlens: torch.Tensor, num_tokens: int, size: int, layout: ContextParallelLayout) -> None:
    """Refuses offsets that `layout` cannot divide; offsets on a device are not checked."""
    if not isinstance(cu_seqlens, torch.Tensor) or cu_seqlens.dim() != 1 or not len(cu_seqlens):
        shape = list(cu_seqlens.shape) if isinstance(cu_seqlens, torch.Tensor) else type(cu_seqlens).__name__
        raise ValueError(f"cu_seqlens must be a tensor of integers [segments + 1], got {shape}")
    if size == 1 or cu_seqlens.device.type != "cpu":
        return
    offsets = cu_seqlens.numpy()
    end = int(offsets[-1])
    if offsets[0] != 0 or (np.diff(offsets) < 0).any() or end > num_tokens:
        raise ValueError(
            f"cu_seqlens must ascend from 0 to num_tokens {num_tokens}, got offsets from {offsets[0]} to "
            f"{offsets.max()}"
        )
    if layout != "contiguous" and end != num_tokens:
        raise ValueError(
            f"cu_seqlens ends at {end}, and the row has num_tokens {num_tokens}: append it, so that the padding at the "
            "row's end is a segment of its own"
        )
    unit = 2 * size
    if layout == "zigzag" and (wrong := np.flatnonzero(offsets % unit)).size:
        i = int(wrong[0])
        raise ValueError(
            f"cu_seqlens[{i}] is {offsets[i]}, no multiple of {unit}, as {size} context-parallel ranks need in layout "
            f"'zigzag': prepare the dataset with align={unit}, or take layout 'blocks'"
        )


def _zigzag(cu_seqlens: torch.Tensor, num_tokens: int, size: int, rank: int) -> torch.Tensor:
    """Returns the indices of a rank's tokens: of each segment the chunks rank and 2 · size - 1 - rank."""
    offsets = cu_seqlens.to(torch.int64)
    index = torch.arange(num_tokens // size, device=offsets.device)  # among this rank's tokens
    own_offsets = offsets // size  # of the segments, among this rank's tokens: [0, 8, 12] over 2 ranks -> [0, 4, 6]
    segment = torch.searchsorted(own_offsets[1:].contiguous(), index, right=True)
    start, own_start = offsets[segment], own_offsets[segment]
    chunk = (own_offsets[segment + 1] - own_start) // 2  # tokens of a chunk of each token's segment
    within = index - own_start  # index of each token in the rank's share of its segment
    # A rank's second chunk is 2 · size - 1 - rank chunks into its segment, and 1 chunk into the rank's share of it.
    return start + within + torch.where(within < chunk, rank, 2 * size - 2 - rank) * chunk


def _dealt_blocks(cu_seqlens: torch.Tensor, num_tokens: int, size: int, block_tokens: int) -> NDArray[np.int64]:
    """Returns the indices of all ranks' tokens in layout `blocks`, rank by rank.

    In each round every rank gets one of the `size` heaviest blocks that are left: the rank with the least work so far
    gets the heaviest, and so on. With 8 ranks and 32,768 tokens of documents of lognormal lengths, no rank has more
    than 1.001 times the mean work. PyTorch's `_PTRRLoadBalancer`, which deals in alternating order, gives up to 1.025.
    """
    segments = PackLayout.of_cu_seqlens(cu_seqlens)
    tokens_of_blocks = np.arange(num_tokens).reshape(-1, block_tokens)  # [blocks, block_tokens]
    # A token attends to the tokens of its segment up to and including itself.
    num_keys = np.arange(num_tokens) + 1 - segments.starts.repeat(segments.lengths)
    work = num_keys.reshape(tokens_of_blocks.shape).sum(axis=1)  # [blocks]
    rounds = np.argsort(-work, kind="stable").reshape(-1, size)  # [rounds, size]: blocks, heaviest first
    work_of_rank = np.zeros(size, dtype=np.int64)
    blocks_of_rank = np.empty((size, len(rounds)), dtype=np.int64)
    for number, dealt in enumerate(rounds):
        lightest_first = np.argsort(work_of_rank, kind="stable")  # [size]: ranks
        blocks_of_rank[lightest_first, number] = dealt
        work_of_rank[lightest_first] += work[dealt]
    blocks_of_rank.sort(axis=1)
    return tokens_of_blocks[blocks_of_rank].ravel()
