"""All ranks of a run read the same dataset: with a process group, they compare the digests that servers gave them.

The first rank that asks writes its digest to the store by which the process group was formed, and the others compare
theirs with it. So no rank waits for another, and ranks that load nothing, as in pipeline parallelism, need not take
part. Leaves the workers of one rank to `workers/digests`, and a client's own answers to `transport/one_dataset`.
"""

import threading
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import torch.distributed

from packhorse.client.connecting import Server
from packhorse.client.memory_datasets import MemoryDatasets
from packhorse.client.options import Run

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_NUM_MADE: Counter[tuple[str, int, int]] = Counter()
"""(name, seed, world size) → how many such datasets this process has made. The number is part of the store's key, since
a run may make a dataset several times; all ranks make them in the same order."""

_LOCK = threading.Lock()


def digest_of_ranks(server: Server, run: Run, world_size: int | None = None) -> str:
    """Returns the digest of the dataset that all ranks read; empty if nothing is to be compared.

    That is so without a process group, for a single rank, and for `MemoryDatasets`, which each rank makes itself.

    Args:
        server: the server to ask for the dataset, once or twice.
        run: the dataset and its seed.
        world_size: the number of data-parallel ranks; None for the process group's size.

    Raises:
        DigestMismatchError: this rank's server has another dataset than the first rank's.
        PackhorseError: the server does not answer, or does not have the dataset.
    """
    store = _store()
    if store is None or isinstance(server.target, MemoryDatasets):
        return ""
    world_size = torch.distributed.get_world_size() if world_size is None else world_size
    if world_size == 1:
        return ""
    with _LOCK:
        same_run = (run.dataset, run.seed, world_size)
        _NUM_MADE[same_run] += 1
        key = f"packhorse/{run.dataset}/{run.seed}/{world_size}/{_NUM_MADE[same_run]}"
    known = store.get(key).decode() if store.check([key]) else ""
    own = server.ask(partial(_digest_at, server, run.dataset, known))
    if known:
        return known
    # Writes `own` only if no rank has written since. An empty answer, the value before, would mean that it did.
    agreed: str = store.compare_set(key, "", own).decode() or own
    if agreed != own:
        server.ask(partial(_digest_at, server, run.dataset, agreed))
    return agreed


def _digest_at(server: Server, name: str, digest: str) -> str:
    """Returns a dataset's digest; raises a DigestMismatchError if no server has the dataset with a given `digest`."""
    with server.open() as client:
        if digest:
            client.bind(name, digest)
        return client.get_dataset(name).digest


def _store() -> "Store | None":
    """Returns the key-value store of the process group; None without a process group."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    from torch.distributed import distributed_c10d  # here, since a torch without distributed does not have it

    store: Store = distributed_c10d._get_default_store()  # PyTorch gives it under no public name
    return store
