"""The epochs and assignments that streams share, as long as there is room for them.

Owns how a request's coordinates become a source and an assignment, and the memory that those kept take together. What
is dropped is made again when it is asked for, so nothing depends on what is kept.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias, TypeVar

from packhorse.epoch import Assignment, SkipSource, Source
from packhorse.server.faults import invalid_field
from packhorse.server.served import Served, SizedSource
from packhorse.topology import Skips, Topology

_Kept = TypeVar("_Kept", SizedSource, Assignment)
_Key: TypeAlias = tuple["weakref.ref[Served]", *tuple[object, ...]]
"""Its first part is weak: what the catalog lets go of is not kept open here."""

MOST_BYTES = 64 << 20
"""What kept epochs take together: their parameters, a few words for each distinct length."""

MOST_ASSIGNMENTS = 16
"""Assignments that are kept: one for each run, and for each seed of a run whose ranks are independent."""


class Epochs:
    """Makes sources and assignments, and keeps those used last. Safe to be used by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._views: OrderedDict[_Key, SizedSource] = OrderedDict()
        self._assignments: OrderedDict[_Key, Assignment] = OrderedDict()

    def source(self, served: Served, seed: int, epoch: int, skips: Skips) -> Source:
        """Returns an epoch of a dataset, without what is skipped."""
        whole = self.whole(served, seed, epoch)
        return SkipSource(whole, skips) if skips else whole

    def whole(self, served: Served, seed: int, epoch: int) -> SizedSource:
        """Returns an epoch of a dataset; a ServiceError where a mixture has none of that number."""

        def make() -> SizedSource:
            try:
                return served.epoch(epoch, seed)
            except ValueError as error:
                raise invalid_field("epoch", str(error)) from None

        return self._kept(self._views, (weakref.ref(served), seed, epoch), make)

    def assignment(self, served: Served, seed: int, epoch: int, skips: Skips, topology: Topology) -> Assignment:
        """Returns the assignment that all ranks and workers of a run share; one worker or many makes no difference."""
        shape = topology if topology.workers_per_rank == 1 else replace(topology, workers_per_rank=1)
        key = (weakref.ref(served), seed, epoch, skips, shape)

        def make() -> Assignment:
            return Assignment(self.source(served, seed, epoch, skips), shape, seed=seed, epoch=epoch)

        return self._kept(self._assignments, key, make)

    def _kept(self, kept: "OrderedDict[_Key, _Kept]", key: _Key, make: Callable[[], _Kept]) -> _Kept:
        with self._lock:
            found = kept.get(key)
            if found is not None:
                kept.move_to_end(key)
                return found
        made = make()
        with self._lock:
            for gone in [each for each in kept if each[0]() is None]:
                del kept[gone]
            found = kept.setdefault(key, made)  # of two threads that made it, the first wins
            while len(self._views) > 1 and sum(view.num_bytes for view in self._views.values()) > MOST_BYTES:
                self._views.popitem(last=False)
            while len(self._assignments) > MOST_ASSIGNMENTS:
                self._assignments.popitem(last=False)
            return found
