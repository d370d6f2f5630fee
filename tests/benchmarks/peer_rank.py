"""A rank of `bench_peer_ranks`: reads batches of one data-parallel rank in one of several ways, and prints seconds.

Ways: "stream", each rank its own; "collective", the first reads and sends; "memory", no reading at all, but what a
copy out of memory that the ranks of a node share would take.
"""

import sys
import time
from itertools import count, islice
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from packhorse.client import LoaderOptions, create_packed_dataloader


def main(address: str, folder: Path, rank: int, num_ranks: int, way: str, num_batches: int) -> None:
    """Reads some batches, then measures `num_batches`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=num_ranks)
    loader = create_packed_dataloader(
        address,
        "tokens",
        batch_size=8,
        loader=LoaderOptions(
            num_workers=0, rank=(0, 1), device="cpu", peers=dist.group.WORLD if way == "collective" else None
        ),
    )
    batches = (batch for _ in count() for batch in loader)
    first = next(batches)
    size = sum(value.nbytes for value in first.values() if isinstance(value, torch.Tensor))
    dist.barrier()
    began = time.perf_counter()
    if way == "memory":
        shared = np.memmap(folder / "shared", np.uint8, "r", shape=(size,))
        for _ in range(num_batches):
            np.array(shared)
            dist.barrier()
    else:
        for _ in islice(batches, num_batches):
            pass
        dist.barrier()
    if rank == 0:
        print(time.perf_counter() - began, size)
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
