"""`FetchAhead`: items that threads fetch before they are needed, of any kind.

Owns which items come next and how many are kept. Leaves blocks of objects to `read_ahead`.
"""

import operator
import os
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from packhorse.storage import BoundedCache

_Key = TypeVar("_Key", bound=Hashable)

_Item = TypeVar("_Item", bound="_Sized")


class _Sized(Protocol):
    """An item whose size is known."""

    @property
    def nbytes(self) -> int: ...


class FetchAhead(Generic[_Key, _Item]):
    """Items that a process fetches before it needs them. Threads may share it; in a forked process it begins empty.

    Example:
        >>> import numpy as np
        >>> squares = FetchAhead(lambda number: np.int64(number**2), ahead=2, keep_bytes=1 << 20)
        >>> squares.expect([3, 4, 5])
        >>> int(squares.get(3)), int(squares.get(4))
        (9, 16)
    """

    def __init__(self, fetch: Callable[[_Key], _Item], *, ahead: int, keep_bytes: int, threads: int = 16) -> None:
        """Begins with no item.

        Args:
            fetch: returns the item of a key; called in any thread.
            ahead: how many items are fetched ahead; 0 for none.
            keep_bytes: size of the items that are kept after `get`; the last one always is. Those that are fetched
                ahead come on top.
            threads: most threads that fetch.
        """
        self._fetch = fetch
        self.ahead = ahead
        self._keep_bytes = keep_bytes
        self._most_threads = min(threads, ahead)
        self._begin()

    def _begin(self) -> None:
        """Makes the state that belongs to this process: items, expectations, threads and their lock."""
        self._process = os.getpid()
        self._kept = BoundedCache[_Key, _Item](self._keep_bytes, size_of=operator.attrgetter("nbytes"))
        self._coming: OrderedDict[_Key, Future[_Item]] = OrderedDict()  # handed to the threads
        self._expected: list[_Key] = []  # not yet handed to the threads, the next one last
        self._tasks: queue.SimpleQueue[tuple[_Key, Future[_Item]]] = queue.SimpleQueue()  # those in `_coming`
        self._num_threads = 0
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("_fetch", "ahead", "_keep_bytes", "_most_threads")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def expect(self, keys: Sequence[_Key]) -> None:
        """Begins to fetch items that are needed soon, in order, and drops what only an earlier call expected."""
        if self._process != os.getpid():  # threads and locks do not survive a fork
            self._begin()
        wanted = set(keys)
        with self._lock:
            self._expected = list(keys[::-1])
            for key in [key for key in self._coming if key not in wanted]:
                self._coming.pop(key).cancel()
        self._fetch_ahead()

    def get(self, key: _Key) -> _Item:
        """Returns an item, after waiting for it or fetching it; raises what fetching raised."""
        if self._process != os.getpid():
            self._begin()
        item = self._kept.find(key)
        if item is None:
            with self._lock:
                coming = self._coming.pop(key, None)
            # An item that no thread has begun to fetch can be cancelled, and is fetched here.
            item = self._fetch(key) if coming is None or coming.cancel() else coming.result()
            item = self._kept.put(key, item)
            self._fetch_ahead()
        return item

    def _fetch_ahead(self) -> None:
        """Hands items to the threads, up to `ahead`."""
        with self._lock:
            while self._expected and len(self._coming) < self.ahead:
                key = self._expected.pop()
                if key in self._coming or self._kept.find(key) is not None:
                    continue
                future: Future[_Item] = Future()
                self._coming[key] = future
                self._tasks.put((key, future))
                if self._num_threads < self._most_threads:
                    # Not a ThreadPoolExecutor: a process that ends would wait for its threads.
                    self._num_threads += 1
                    threading.Thread(target=self._serve, name="packhorse-read-ahead", daemon=True).start()

    def _serve(self) -> None:
        """Fetches the items that are handed to the threads; runs in a thread, for ever."""
        while True:
            key, future = self._tasks.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._fetch(key))
            except BaseException as error:  # raised where the item is asked for
                future.set_exception(error)
