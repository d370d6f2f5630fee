"""Which dataloader worker of its rank this process is: `current_worker`."""

from typing import NamedTuple

from torch.utils.data import get_worker_info


class Worker(NamedTuple):
    """One of a rank's dataloader workers."""

    number: int
    """Its number, in [0, num_workers)."""
    num_workers: int
    """Number of workers of the rank."""


def current_worker() -> Worker:
    """Returns the worker that this process is; worker 0 of 1 if it is not a dataloader worker."""
    info = get_worker_info()
    return Worker(info.id, info.num_workers) if info else Worker(0, 1)
