"""Ranks of one run read one dataset: they compare what answered each, if there is a process group.

The ranks' first digest is kept in the store by which their process group was formed, so that no rank waits for another:
ranks of pipeline parallelism that load nothing take no part. Leaves a rank's own workers to `_progress`.
"""

import threading
from collections import Counter
from functools import partial
from typing import Any

import torch.distributed

from packhorse.client.connecting import Server
from packhorse.client.options import Run
from packhorse.client.transport.embedded import MemoryDatasets

_MADE: Counter[tuple[str, int, int]] = Counter()
"""How many datasets of a name, seed and world size this process has made: all ranks make them in the same order."""

_LOCK = threading.Lock()


def digest_of_ranks(server: Server, run: Run, world_size: int | None = None) -> str:
    """Returns the digest of the dataset that all ranks read; empty without a process group.

    Args:
        server: is asked for the dataset, once or twice.
        run: its dataset and seed.
        world_size: data-parallel, None for all of the process group; one rank alone compares nothing.

    Raises:
        DigestMismatchError: this rank's server has another dataset than the first rank's.
        PackhorseError: the server does not answer, or does not have it.
    """
    store = _store()
    if store is None or isinstance(server.target, MemoryDatasets):
        return ""
    world_size = torch.distributed.get_world_size() if world_size is None else world_size
    if world_size == 1:
        return ""
    with _LOCK:
        made = (run.dataset, run.seed, world_size)
        _MADE[made] += 1
        key = f"packhorse/{run.dataset}/{run.seed}/{world_size}/{_MADE[made]}"
    known = store.get(key).decode() if store.check([key]) else ""
    own = server.ask(partial(_digest_at, server, run.dataset, known))
    if known:
        return known
    agreed: str = store.compare_set(key, "", own).decode() or own
    if agreed != own:
        server.ask(partial(_digest_at, server, run.dataset, agreed))
    return agreed


def _digest_at(server: Server, name: str, digest: str) -> str:
    """Returns a dataset's digest; a DigestMismatchError if it must be another and its servers lack that."""
    with server.open() as client:
        if digest:
            client.bind(name, digest)
        return client.get_dataset(name).digest


def _store() -> Any:
    """The store of the process group; None without one."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()
