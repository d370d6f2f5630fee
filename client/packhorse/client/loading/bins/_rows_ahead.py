"""`RowsAhead`: the rows of `PackedBins` by index, made before they are read if the indices are a walk.

Owns how many rows are made together, and how many stay in memory. Leaves making rows to `packed_bins`, the bins to
`bins/_read_ahead`, and what a walk is to `bins/_walks`.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from packhorse.client.loading.bins._walks import REMEMBERED, stride_of

_MOST_ROWS_AT_ONCE = 16
"""The most rows that are made together; more at once would not be faster."""
_MOST_BYTES_AT_ONCE = 2 << 20
"""The most bytes of rows that are made together; long rows are not faster together."""
_MOST_READY_BYTES = 32 << 20
"""The most bytes of rows that wait to be read. 16 threads with batches of 8 rows of 2,048 tokens need 8 MiB."""
_SPARSEST_ROWS = 4
"""Rows are made ahead if at least one in this many multiples of the stride is read; else most would be wasted."""


class RowsAhead:
    """Rows by index, several made together if the indices are a walk. Many threads may use it.

    Each row is returned once: a second read of it makes it again.

    Args:
        make: function that makes the rows at some indices, in that order, as dictionaries from key to tensor.
        num_rows: number of rows; indices are in [0, num_rows).
    """

    def __init__(self, make: Callable[[Sequence[int]], list[dict[str, Any]]], num_rows: int) -> None:
        self._make = make
        self._num_rows = num_rows
        self._seen: deque[int] = deque(maxlen=REMEMBERED)
        self._ready: dict[int, dict[str, Any]] = {}
        self._making = threading.Lock()
        self._bytes_per_row = _MOST_BYTES_AT_ONCE  # so the first row, which shows the size, is made by itself

    def row(self, index: int) -> dict[str, Any]:
        """Returns the row at an index. Calls `make`, which may raise, at most once."""
        self._seen.append(index)
        row = self._ready.pop(index, None)
        if row is not None:
            return row
        with self._making:  # if several threads walk, the first makes rows for all
            row = self._ready.pop(index, None)
            return self._make_from(index) if row is None else row

    def _make_from(self, index: int) -> dict[str, Any]:
        """Returns the row at an index, made together with the rows that come next if the indices are a walk."""
        stride = stride_of(list(self._seen), sparsest=_SPARSEST_ROWS)
        at_once = max(1, min(_MOST_ROWS_AT_ONCE, _MOST_BYTES_AT_ONCE // self._bytes_per_row))
        # The next rows of the walk. This one comes first, and is missing, so it is the first that is made.
        walk = range(index, min(index + at_once * stride, self._num_rows), stride) if stride else (index,)
        missing = [index_in_walk for index_in_walk in walk if index_in_walk not in self._ready]
        row, *others = self._make(missing)
        self._bytes_per_row = max(1, sum(getattr(value, "nbytes", 0) for value in row.values()))
        self._ready.update(zip(missing[1:], others, strict=True))
        while len(self._ready) * self._bytes_per_row > _MOST_READY_BYTES:
            self._ready.pop(next(iter(self._ready)), None)  # the oldest, unless another thread has just taken it
        return row
