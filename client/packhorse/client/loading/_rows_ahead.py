"""Rows one at a time, for readers that mostly walk: the next few are made together and wait for their turn.

Making one row takes some dozens of small steps in Python, and making eight takes hardly more; in a pool of threads,
as Grain's, those that only fetch what lies ready hardly hold each other up. Owns that judgement and what lies ready;
leaves making rows to `packed_bins`.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from packhorse.client.loading._read_ahead import REMEMBERED, stride_of

_AT_ONCE, _AT_ONCE_BYTES = 16, 2 << 20  # rows that are made together: more gain nothing, and long ones need none
_READY_BYTES = 32 << 20  # sixteen threads that make batches of eight are in 128 rows of 2,048 tokens at a time: 8 MiB
_SPARSEST = 4  # a walk asks for one index of so many in its range, else making the next ones is in vain


class RowsAhead:
    """The rows at some indices, each handed out once; usable from many threads at once.

    Args:
        make: returns the rows at some indices, in their order.
        num_rows: indices are in [0, num_rows).
    """

    def __init__(self, make: Callable[[Sequence[int]], list[dict[str, Any]]], num_rows: int) -> None:
        self._make = make
        self._num_rows = num_rows
        self._seen: deque[int] = deque(maxlen=REMEMBERED)
        self._ready: dict[int, dict[str, Any]] = {}
        self._making = threading.Lock()
        self._bytes_per_row = _AT_ONCE_BYTES  # not known before the first row

    def row(self, index: int) -> dict[str, Any]:
        """Returns the row at an index; at most one call of `make`, which may raise."""
        self._seen.append(index)
        row = self._ready.pop(index, None)
        if row is not None:
            return row
        with self._making:  # of the threads that walk, the first one makes for all
            row = self._ready.pop(index, None)
            if row is not None:
                return row
            stride = stride_of(list(self._seen), sparsest=_SPARSEST)
            at_once = max(1, min(_AT_ONCE, _AT_ONCE_BYTES // self._bytes_per_row))
            wanted = range(index, min(index + at_once * stride, self._num_rows), stride) if stride else (index,)
            missing = [each for each in wanted if each not in self._ready]
            row, *others = self._make(missing)
            self._bytes_per_row = max(1, sum(getattr(value, "nbytes", 0) for value in row.values()))
            self._ready.update(zip(missing[1:], others, strict=True))
            while len(self._ready) * self._bytes_per_row > _READY_BYTES:
                self._ready.pop(next(iter(self._ready)), None)
            return row
