"""`KeptEpochs`: a cache of the epochs of a mixture's components.

How an epoch of a component is made is in `open_mixture`.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from packhorse.epoch import Source
from packhorse.storage import BoundedCache

MORE_EPOCHS = 64
"""Further epochs in the cache, of any component and run: ranks of a run may be in several epochs of one component."""

_MOST_RUNS = 2
"""Runs whose last epochs are in the cache. One run's epochs take 45 MB in a mixture of a thousand shards."""


class _Latest(NamedTuple):
    """The last epoch of a component in a run."""

    epoch: int
    source: Source


class KeptEpochs:
    """A cache of components' epochs: for the two runs used last, each component's last epoch, and some more epochs.

    A run reads a component's epochs one after the other, so an epoch takes the place of the one before it. Safe to be
    used by many threads.

    Example:
        >>> made = []
        >>> kept = KeptEpochs(lambda component, run, epoch: made.append((component, run, epoch)))
        >>> for epoch in (0, 0, 1, 1):
        ...     kept.get(0, 7, epoch)
        >>> made
        [(0, 7, 0), (0, 7, 1)]

    Args:
        make: a function that makes an epoch from the component's number, the run's seed and the epoch's number, in
            about 25 microseconds.
    """

    def __init__(self, make: Callable[[int, int, int], Source]) -> None:
        self._latest: BoundedCache[int, dict[int, _Latest]] = BoundedCache(_MOST_RUNS)
        self._cached = lru_cache(maxsize=MORE_EPOCHS)(make)

    def get(self, component: int, run: int, epoch: int) -> Source:
        """Returns an epoch of a component, from the cache or made now.

        Args:
            component: number of the component.
            run: seed of the run.
            epoch: number of the component's epoch.
        """
        of_run = self._latest.get(run, dict)  # component → its last epoch; empty for a new run
        latest = of_run.get(component)
        if latest is None or latest.epoch != epoch:
            latest = of_run[component] = _Latest(epoch, self._cached(component, run, epoch))
        return latest.source
