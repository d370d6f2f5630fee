"""Which tokens a context-parallel rank computes.

Owns the layouts: the order in which the tokens of a row are dealt to ranks. The attention kernel exchanges keys and
values.
"""

from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.batches.layout import PackLayout

ContextParallelLayout = Literal["zigzag", "contiguous", "blocks"]


def context_parallel_indices(
    cu_seqlens: torch.Tensor,
    num_tokens: int,
    size: int,
    rank: int | None = None,
    *,
    layout: ContextParallelLayout = "zigzag",
    block_tokens: int = 128,
    restore: bool = False,
) -> torch.Tensor:
    """Returns the indices of one rank's tokens under context parallelism, or those of all ranks.

    `zigzag` cuts every segment into 2·size equal chunks. Rank r takes chunks r and 2·size − 1 − r, so that causal
    attention costs each rank the same. Transformer Engine's `thd_get_partitioned_indices` gives the same indices; this
    function needs neither it nor a GPU.

    `contiguous` gives rank r the r-th of `size` equal parts of the row, as linear attention reads it.

    `blocks` cuts the row into blocks of `block_tokens`, wherever segments end, and deals them so that each rank has as
    many blocks and about as much causal attention to compute. Segments need no alignment. It is for attention that
    reads a mask and all keys, as FlexAttention does; ring attention needs `zigzag`.

    Nothing waits for a device.

    Example:
        >>> offsets = torch.tensor([0, 8, 12])
        >>> context_parallel_indices(offsets, 12, size=2, rank=0).tolist()
        [0, 1, 6, 7, 8, 11]
        >>> context_parallel_indices(torch.tensor([0, 3, 8]), 8, 2, layout="blocks", block_tokens=2).tolist()
        [0, 1, 6, 7, 2, 3, 4, 5]

    Args:
        cu_seqlens: offsets of segments, from 0 to `num_tokens`: integers [s + 1]. For `zigzag` each must be a multiple
            of 2·size (`prepare --align`); they may be on any device, and are not checked, because that would wait for
            it. For `blocks` they must be in host memory.
        num_tokens: T, a multiple of 2·size for `zigzag`, of size for `contiguous`, of size·block_tokens for `blocks`.
        size: context-parallel ranks.
        rank: this one, in [0, size). None: all ranks' indices end to end, so that part r of `size` equal parts is rank
            r's.
        layout: `zigzag`, `contiguous` or `blocks`.
        block_tokens: tokens of a block; FlexAttention's blocks have 128. Only `blocks` reads it.
        restore: whether to return the inverse instead: `row[indices][inverse]` is the row. Only without a rank.

    Returns:
        int64 [T / size], or [T] without a rank; on the offsets' device. A rank's indices ascend within each segment.

    Raises:
        ValueError: an argument is out of range, `num_tokens` is not such a multiple, or `blocks` finds offsets on a
            device, or offsets that do not ascend from 0 to `num_tokens`.
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
    if size == 1 or layout == "contiguous":
        index = torch.arange(num_tokens, device=cu_seqlens.device)
    elif layout == "blocks":
        index = torch.from_numpy(_dealt_blocks(cu_seqlens, num_tokens, size, block_tokens))
    elif rank is not None:
        return _zigzag(cu_seqlens, num_tokens, size, rank)
    else:
        index = torch.cat([_zigzag(cu_seqlens, num_tokens, size, each) for each in range(size)])
    if rank is not None:
        return index[rank * (num_tokens // size) : (rank + 1) * (num_tokens // size)]
    return index.argsort() if restore else index


def _check_multiple(num_tokens: int, size: int, layout: ContextParallelLayout, block_tokens: int) -> None:
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


def _zigzag(cu_seqlens: torch.Tensor, num_tokens: int, size: int, rank: int) -> torch.Tensor:
    offsets = cu_seqlens.to(torch.int64)
    index = torch.arange(num_tokens // size, device=offsets.device)
    shares = offsets // size  # offsets of each segment's tokens among this rank's
    segment = torch.searchsorted(shares[1:].contiguous(), index, right=True)
    start, share = offsets[segment], shares[segment]
    chunk = (shares[segment + 1] - share) // 2
    within = index - share
    # Between a rank's two chunks are those of the other ranks.
    return start + within + torch.where(within < chunk, rank, 2 * size - 2 - rank) * chunk


def _dealt_blocks(cu_seqlens: torch.Tensor, num_tokens: int, size: int, block_tokens: int) -> NDArray[np.int64]:
    """Returns all ranks' indices: round by round, the rank with the least work so far gets the heaviest block left.

    At 8 ranks and 32,768 tokens of lognormal documents no rank has more than 1.001 of the mean work. Dealing to and
    fro, as PyTorch's `_PTRRLoadBalancer` does, gives up to 1.025.
    """
    segments = PackLayout.of_cu_seqlens(cu_seqlens)
    if segments.num_tokens != num_tokens:
        raise ValueError(f"cu_seqlens must end with num_tokens {num_tokens}, and end with {segments.num_tokens}")
    index = np.arange(num_tokens).reshape(-1, block_tokens)
    # A token attends to those of its segment up to itself.
    keys = index.ravel() + 1 - segments.starts.repeat(segments.lengths)
    work = keys.reshape(index.shape).sum(axis=1)
    rounds = np.argsort(-work, kind="stable").reshape(-1, size)
    of_rank = np.zeros(size, dtype=np.int64)
    blocks = np.empty((size, len(rounds)), dtype=np.int64)
    for i, dealt in enumerate(rounds):
        lightest_first = np.argsort(of_rank, kind="stable")
        blocks[lightest_first, i] = dealt
        of_rank[lightest_first] += work[dealt]
    blocks.sort(axis=1)
    return index[blocks].ravel()
