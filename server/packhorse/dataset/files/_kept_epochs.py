"""The epochs of a mixture's components that are remembered.

Owns which; leaves how an epoch is laid out to `open_mixture`.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache

from packhorse.epoch import Source

MORE_EPOCHS = 64
"""Epochs used last that are remembered whatever they are of: ranks of a run may be in several of one component."""

_MOST_RUNS = 2
"""Of a mixture of a thousand shards, a run's epochs take 45 MB."""


class KeptEpochs:
    """Remembers epochs of components: for the two runs used last the last one of each component, and a few more.

    A run reads a component's epochs one after the other, so each makes room for the next, and a run alone takes no more
    memory than an epoch of each. Safe to be used by many threads.

    Example:
        >>> made = []
        >>> kept = KeptEpochs(lambda component, run, epoch: made.append((component, run, epoch)))
        >>> for epoch in (0, 0, 1, 1):
        ...     kept.get(0, 7, epoch)
        >>> made
        [(0, 7, 0), (0, 7, 1)]

    Args:
        make: lays out an epoch: of which component, under which run's seed, and which one. It takes some 25
            microseconds.
    """

    def __init__(self, make: Callable[[int, int, int], Source]) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[int, dict[int, tuple[int, Source]]] = OrderedDict()
        self._made = lru_cache(maxsize=MORE_EPOCHS)(make)

    def get(self, component: int, run: int, epoch: int) -> Source:
        """Returns an epoch of a component, made where it is not remembered."""
        with self._lock:
            known = self._runs.setdefault(run, {}).get(component)
            self._runs.move_to_end(run)
            while len(self._runs) > _MOST_RUNS:
                self._runs.popitem(last=False)
        if known is not None and known[0] == epoch:
            return known[1]
        made = self._made(component, run, epoch)
        with self._lock:
            self._runs.setdefault(run, {})[component] = (epoch, made)
        return made
