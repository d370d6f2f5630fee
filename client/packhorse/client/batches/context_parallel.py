"""Which tokens a context-parallel rank computes.

Owns the order of chunks within each segment. The attention kernel exchanges keys and values.
"""

import torch


def context_parallel_indices(cu_seqlens: torch.Tensor, num_tokens: int, size: int, rank: int) -> torch.Tensor:
    """Returns the indices of one rank's tokens under context parallelism.

    Every segment is cut into 2·size equal chunks. Rank r takes chunks r and 2·size − 1 − r, so that causal attention
    costs each rank the same. Transformer Engine's `thd_get_partitioned_indices` gives the same indices; this function
    needs neither it nor a GPU, and waits for no device.

    Example:
        >>> offsets = torch.tensor([0, 8, 12])
        >>> context_parallel_indices(offsets, 12, size=2, rank=0).tolist()
        [0, 1, 6, 7, 8, 11]
        >>> context_parallel_indices(offsets, 12, size=2, rank=1).tolist()
        [2, 3, 4, 5, 9, 10]

    Args:
        cu_seqlens: offsets of segments, from 0 to `num_tokens`, each a multiple of 2·size tokens (`prepare --align`):
            integers [s + 1], on any device. They are not read back, and so not checked.
        num_tokens: T, a multiple of 2·size.
        size: context-parallel ranks.
        rank: this one, in [0, size).

    Returns:
        int64 [T / size], ascending within each segment; on the offsets' device.

    Raises:
        ValueError: the rank is outside [0, size), or `num_tokens` is no multiple of 2·size.
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank must be in [0, {size}), got {rank}")
    if size > 1 and num_tokens % (2 * size):
        raise ValueError(
            f"num_tokens {num_tokens} is no multiple of {2 * size}, as {size} context-parallel ranks need; prepare the "
            f"dataset with align={2 * size} and a max_seq_len that is a multiple"
        )
    offsets = cu_seqlens.to(torch.int64)
    index = torch.arange(num_tokens // size, device=offsets.device)
    if size == 1:
        return index
    shares = offsets // size  # offsets of each segment's tokens among this rank's
    segment = torch.searchsorted(shares[1:].contiguous(), index, right=True)
    start, share = offsets[segment], shares[segment]
    chunk = (shares[segment + 1] - share) // 2
    within = index - share
    # Between a rank's two chunks are those of the other ranks.
    return start + within + torch.where(within < chunk, rank, 2 * size - 2 - rank) * chunk
