"""Which data-parallel rank this process is.

Owns the look at torch.distributed and at the launcher's environment; leaves dataloader workers to `dataset`.
"""

import os

import torch.distributed


def find_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Returns (rank, world_size): as given, else of the process group, else of RANK and WORLD_SIZE, else (0, 1).

    Raises:
        ValueError: only one of the two is given, or rank is outside [0, world_size).
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"give rank and world_size both or neither, got rank={rank}, world_size={world_size}")
    if rank is None or world_size is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        else:
            rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in [0, {world_size}), got {rank}")
    return rank, world_size
