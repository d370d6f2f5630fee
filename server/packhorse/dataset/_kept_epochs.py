"""The epochs of a mixture's components that are remembered.

Owns which; leaves how an epoch is laid out to `mixture`.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache

from packhorse.epoch import Source

MORE_EPOCHS = 64
"""Epochs used last that are remembered whatever they are of: ranks of a run may be in several of one component."""


class KeptEpochs:
    """Remembers epochs of C components: for two runs the one of each component that was used last, and a few more.

    A run reads a component's epochs one after the other, so each makes room for the next, and a run alone takes no more
    memory than an epoch of each. Safe to be used by many threads.

    Example:
        >>> made = []
        >>> kept = KeptEpochs(lambda component, seed, epoch: made.append((component, seed, epoch)), num_components=1)
        >>> for epoch in (0, 0, 1, 1):
        ...     kept.get(0, 7, epoch)
        >>> made
        [(0, 7, 0), (0, 7, 1)]

    Args:
        make: lays out an epoch: of which component, under which seed of its own, and which one. It takes some 25
            microseconds.
        num_components: C.
    """

    def __init__(self, make: Callable[[int, int, int], Source], num_components: int) -> None:
        self._most = 2 * num_components
        self._lock = threading.Lock()
        self._last: OrderedDict[tuple[int, int], tuple[int, Source]] = OrderedDict()
        self._made = lru_cache(maxsize=MORE_EPOCHS)(make)

    def get(self, component: int, seed: int, epoch: int) -> Source:
        """Returns an epoch of a component, made where it is not remembered."""
        key = (component, seed)
        with self._lock:
            known = self._last.get(key)
            if known is not None and known[0] == epoch:
                self._last.move_to_end(key)
                return known[1]
        made = self._made(component, seed, epoch)
        with self._lock:
            self._last[key] = (epoch, made)
            self._last.move_to_end(key)
            while len(self._last) > self._most:
                self._last.popitem(last=False)
        return made
