"""The epochs and assignments that streams share, as long as there is room for them.

Owns how a request's coordinates become a source and an assignment, and the memory that those kept take together. What
is dropped is made again when it is asked for, so nothing depends on what is kept.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeAlias, TypeVar

from packhorse.epoch import Assignment, SkipSource, Source
from packhorse.server.base.faults import invalid_field
from packhorse.server.datasets.served import Served, SizedSource
from packhorse.server.methods.requests import check_epoch
from packhorse.topology import Skips, Topology

_Value = TypeVar("_Value")
_Key: TypeAlias = tuple["weakref.ref[Served]", *tuple[object, ...]]
"""Its first part is weak: what the catalog lets go of is not kept open here."""

MOST_BYTES = 64 << 20
"""What kept epochs take together: their parameters, a few words for each distinct length."""

_LEAST_BYTES = 4096
"""What is counted for an epoch beside its parameters."""

MOST_ASSIGNMENTS = 16
"""Assignments that are kept: one for each run, and for each seed of a run whose ranks are independent."""


MOST_RUNS = 64
"""What is kept of so many runs beside their bins: all ranks and workers of a run ask for the same."""


class _Kept(Generic[_Value]):
    """The values used last, of what the catalog still holds. Safe to be used by many threads.

    Args:
        most: what they take together, where there is more than one.
        size_of: what one takes; the same each time.
    """

    def __init__(self, most: int, size_of: Callable[[_Value], int]) -> None:
        self._most = most
        self._size_of = size_of
        self._lock = threading.Lock()
        self._values: OrderedDict[_Key, _Value] = OrderedDict()
        self._size = 0
        self._gone: list[object] = []  # datasets that were let go of since values were put in

    def get(self, served: Served, of_what: tuple[object, ...], make: Callable[[], _Value]) -> _Value:
        """Returns a dataset's value, making it where it is not there."""
        key: _Key = (weakref.ref(served, self._gone.append), *of_what)
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
                return found
        made = make()
        with self._lock:
            if self._gone:
                self._gone.clear()
                for gone in [each for each in self._values if each[0]() is None]:
                    self._size -= self._size_of(self._values.pop(gone))
            if key not in self._values:  # of two threads that made it, the first wins
                self._values[key] = made
                self._size += self._size_of(made)
            found = self._values[key]
            while len(self._values) > 1 and self._size > self._most:
                self._size -= self._size_of(self._values.popitem(last=False)[1])
            return found


class Epochs:
    """Makes sources and assignments, and keeps those used last. Safe to be used by many threads."""

    def __init__(self) -> None:
        self._views: _Kept[SizedSource] = _Kept(MOST_BYTES, lambda view: _LEAST_BYTES + view.num_bytes)
        self._assignments: _Kept[Assignment] = _Kept(MOST_ASSIGNMENTS, lambda _assignment: 1)
        self._runs: _Kept[Any] = _Kept(MOST_RUNS, lambda _run: 1)

    def source(self, served: Served, seed: int, epoch: int, skips: Skips) -> Source:
        """Returns an epoch of a dataset, without what is skipped."""
        whole = self.whole(served, seed, epoch)
        return SkipSource(whole, skips) if skips else whole

    def whole(self, served: Served, seed: int, epoch: int) -> SizedSource:
        """Returns an epoch of a dataset; a ServiceError where a mixture has none of that number."""
        check_epoch(served, epoch)

        def make() -> SizedSource:
            try:
                return served.epoch(epoch, seed)
            except ValueError as error:
                raise invalid_field("epoch", str(error)) from None

        return self._views.get(served, (seed, epoch), make)

    def assignment(self, served: Served, seed: int, epoch: int, skips: Skips, topology: Topology) -> Assignment:
        """Returns the assignment that all ranks and workers of a run share; one worker or many makes no difference."""
        shape = topology if topology.workers_per_rank == 1 else replace(topology, workers_per_rank=1)

        def make() -> Assignment:
            return Assignment(self.source(served, seed, epoch, skips), shape, seed=seed, epoch=epoch)

        return self._assignments.get(served, (seed, epoch, skips, shape), make)

    def run(self, served: Served, of_what: tuple[object, ...], make: Callable[[], _Value]) -> _Value:
        """Returns what is kept of a run, making it where it is not there.

        Args:
            served: the dataset; what is made must not hold it.
            of_what: what tells the run from others.
            make: returns it.
        """
        found: _Value = self._runs.get(served, of_what, make)
        return found
