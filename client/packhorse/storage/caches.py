"""Values that are kept in memory as long as there is room; those used longest ago go first."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


def _one(value: Any) -> int:
    return 1


class BoundedCache(Generic[_Key, _Value]):
    """Values by key. Safe to be used by many threads; pickled and copied, it is empty.

    The value used last always stays, also where it alone exceeds the limit.

    Example:
        >>> cache = BoundedCache(10, size_of=len)
        >>> cache.get("a", lambda: "six   "), cache.get("b", lambda: "five "), cache.find("a")
        ('six   ', 'five ', None)

    Args:
        most: size of all values together.
        size_of: of one value, the same each time; where it is left out, each counts 1.
    """

    def __init__(self, most: int, size_of: Callable[[_Value], int] = _one) -> None:
        self.most = most
        self._size_of = size_of
        self._values: OrderedDict[_Key, _Value] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type["BoundedCache[_Key, _Value]"], tuple[int, Callable[[_Value], int]]]:
        return BoundedCache, (self.most, self._size_of)

    def __len__(self) -> int:
        """Number of values."""
        return len(self._values)

    def get(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """Returns a value, made where it is missing; of two threads that make it at once, the first one's is kept."""
        found = self.find(key)
        return self.put(key, make()) if found is None else found

    def find(self, key: _Key) -> _Value | None:
        """Returns a value, which counts as used; None where it is missing."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: _Key, value: _Value) -> _Value:
        """Keeps a value unless the key has one already, and returns the one that is kept."""
        with self._lock:
            if key not in self._values:
                self._values[key] = value
                self._size += self._size_of(value)
            self._values.move_to_end(key)
            value = self._values[key]
            while len(self._values) > 1 and self._size > self.most:
                self._size -= self._size_of(self._values.popitem(last=False)[1])
            return value

    def drop(self, is_unwanted: Callable[[_Key], bool]) -> None:
        """Lets go of the values of some keys."""
        with self._lock:
            for key in list(filter(is_unwanted, self._values)):
                self._size -= self._size_of(self._values.pop(key))
