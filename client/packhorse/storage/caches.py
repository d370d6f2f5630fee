"""`BoundedCache`: values in memory, up to a size.

Owns which value goes first: the one used longest ago. The content of files that may change is in `watched`.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


def _counts_one(value: object) -> int:
    return 1


class BoundedCache(Generic[_Key, _Value]):
    """Values by key. Threads may share it; a pickled or copied cache is empty.

    The value used last always stays, even if it exceeds the limit by itself.

    Example:
        >>> cache = BoundedCache(10, size_of=len)
        >>> cache.get("a", lambda: "six   "), cache.get("b", lambda: "five "), cache.find("a")
        ('six   ', 'five ', None)

    Args:
        most_size: most size of all values together, as `size_of` counts it.
        size_of: returns the size of a value, which must not change; by default each value counts 1.
    """

    def __init__(self, most_size: int, size_of: Callable[[_Value], int] = _counts_one) -> None:
        self.most_size = most_size
        self._size_of = size_of
        self._values: OrderedDict[_Key, _Value] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type["BoundedCache[_Key, _Value]"], tuple[int, Callable[[_Value], int]]]:
        return BoundedCache, (self.most_size, self._size_of)

    def __len__(self) -> int:
        """Number of values."""
        return len(self._values)

    def get(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """Returns a value, or makes it if it is missing; if two threads make it at once, both get the first one."""
        found = self.find(key)
        return self.put(key, make()) if found is None else found

    def find(self, key: _Key) -> _Value | None:
        """Returns a value, which counts as a use of it; None if it is missing."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: _Key, value: _Value) -> _Value:
        """Stores a value unless the key has one already, and returns the key's value."""
        with self._lock:
            if key not in self._values:
                self._values[key] = value
                self._size += self._size_of(value)
            self._values.move_to_end(key)
            value = self._values[key]
            while len(self._values) > 1 and self._size > self.most_size:
                self._size -= self._size_of(self._values.popitem(last=False)[1])
            return value

    def drop(self, is_unwanted: Callable[[_Key], bool]) -> None:
        """Removes the values of the keys for which `is_unwanted` is true."""
        with self._lock:
            for key in list(filter(is_unwanted, self._values)):
                self._size -= self._size_of(self._values.pop(key))
