"""Epochs, their assignments, and what the streams of a run share: made once, for all requests that need them.

Owns the caches, because a thousand ranks of a run open their streams at the same time. Leaves computing what the
streams of a run share to `stream_request`.
"""

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from packhorse.dataset import Takedown
from packhorse.epoch import Assignment, SkipSource, Source
from packhorse.server.base.faults import invalid_field
from packhorse.server.datasets.protocols import Dataset, SizedSource
from packhorse.server.methods import requests
from packhorse.storage import BoundedCache
from packhorse.topology import Skips, Topology

MOST_BYTES = 64 << 20
"""Memory of all cached epochs. An epoch's parameters are a few words for each distinct length."""

_LEAST_BYTES = 4096
"""Memory that is counted for an epoch beside its parameters."""

MOST_ASSIGNMENTS = 16
"""Cached assignments: one for each run, and for each seed of a run whose ranks are independent."""

MOST_RUNS = 64
"""Runs whose topology and header are cached: all ranks and workers of a run ask for the same."""

_Run = TypeVar("_Run")
_Key: TypeAlias = tuple["weakref.ref[Dataset]", *tuple[object, ...]]
"""Key of a cache: the dataset, then seed, epoch and so on. The reference is weak, so that no cache keeps a dataset open
that the catalog no longer has."""


class Epochs:
    """Makes epochs, assignments and runs, and caches those used last. Safe to be used by many threads."""

    def __init__(self) -> None:
        self._epochs: BoundedCache[_Key, SizedSource] = BoundedCache(
            MOST_BYTES, lambda epoch: _LEAST_BYTES + epoch.num_bytes
        )
        self._assignments: BoundedCache[_Key, Assignment] = BoundedCache(MOST_ASSIGNMENTS)
        self._runs: BoundedCache[_Key, Any] = BoundedCache(MOST_RUNS)
        self._gone: list[object] = []  # references to datasets that were closed since a cache was last used

    def source(self, dataset: Dataset, seed: int, epoch: int, skips: Skips) -> Source:
        """Returns an epoch of a dataset, without the skipped positions."""
        whole = self.whole(dataset, seed, epoch)
        return SkipSource(whole, skips) if skips else whole

    def whole(self, dataset: Dataset, seed: int, epoch: int) -> SizedSource:
        """Returns a whole epoch of a dataset; raises a ServiceError if a mixture has no epoch of that number."""
        requests.check_epoch(dataset, epoch)

        def make() -> SizedSource:
            try:
                return dataset.epoch(epoch, seed)
            except ValueError as error:
                raise invalid_field("epoch", str(error)) from None

        return self._epochs.get(self._key(dataset, seed, epoch), make)

    def assignment(self, dataset: Dataset, seed: int, epoch: int, skips: Skips, topology: Topology) -> Assignment:
        """Returns the assignment that all ranks and workers of a run share; the number of workers does not matter."""
        one_worker = topology if topology.workers_per_rank == 1 else replace(topology, workers_per_rank=1)

        def make() -> Assignment:
            return Assignment(self.source(dataset, seed, epoch, skips), one_worker, seed=seed, epoch=epoch)

        return self._assignments.get(self._key(dataset, seed, epoch, skips, one_worker), make)

    def run(self, dataset: Dataset, takedown: Takedown, request: bytes, make: Callable[[], _Run]) -> _Run:
        """Returns what the streams of a run share, from the cache or from `make`.

        `request` is the part of their requests that they share.
        """
        run: _Run = self._runs.get(self._key(dataset, takedown, request), make)
        return run

    def _key(self, dataset: Dataset, *coordinates: object) -> _Key:
        """Returns a cache's key, after removing what belongs to datasets that were closed."""
        if self._gone:
            self._gone.clear()
            for cache in (self._epochs, self._assignments, self._runs):
                cache.drop(_is_of_closed_dataset)
        return (weakref.ref(dataset, self._gone.append), *coordinates)


def _is_of_closed_dataset(key: _Key) -> bool:
    dataset, *_ = key
    return dataset() is None
