"""When the rows of `PackedBins` are made: `Rows` when one of them is read, `RowsAhead` before, if indices are a walk.

Owns how many rows are made together, and how many stay in memory. Leaves making rows to `packed_bins`, and the bins to
`_read_ahead`, which also says what a walk is.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from packhorse.client.loading._read_ahead import REMEMBERED, stride_of
from packhorse.client.streams.blocks import BinBlock

_MOST_ROWS_AT_ONCE = 16
"""The most rows that are made together; more at once would not be faster."""
_MOST_BYTES_AT_ONCE = 2 << 20
"""The most bytes of rows that are made together; long rows are not faster together."""
_MOST_READY_BYTES = 32 << 20
"""The most bytes of rows that wait to be read. 16 threads with batches of 8 rows of 2,048 tokens need 8 MiB."""
_SPARSEST_ROWS = 4
"""Rows are made ahead if at least one in this many is read; a sparser walk would waste them."""


class Rows(Sequence[dict[str, Any]]):
    """The rows of some bins, all made when the first is read; `collate` makes a batch of their bins instead.

    Example:
        >>> from packhorse.client import PackedBins
        >>> bins = PackedBins("embedded:datasets", "corpus", "corpus.idx", seed=1)
        >>> rows = bins.__getitems__([1, 0])
        >>> [row["position"].item() for row in rows], rows.bins.ids.tolist()
        ([1, 0], [0, 1, 3, 2])

    Args:
        bins: the bins, one for each row.
        make: function that makes one row of each bin, a dictionary from key to tensor.
    """

    def __init__(self, bins: BinBlock, make: Callable[[BinBlock], list[dict[str, Any]]]) -> None:
        self.bins = bins
        self._make = make
        self._made: list[dict[str, Any]] | None = None

    def __len__(self) -> int:
        return len(self.bins)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        return self._all()[index]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._all())

    def _all(self) -> list[dict[str, Any]]:
        """Returns all rows, made at the first call."""
        if self._made is None:
            self._made = self._make(self.bins)
        return self._made


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
            if row is not None:
                return row
            stride = stride_of(list(self._seen), sparsest=_SPARSEST_ROWS)
            at_once = max(1, min(_MOST_ROWS_AT_ONCE, _MOST_BYTES_AT_ONCE // self._bytes_per_row))
            walk = range(index, min(index + at_once * stride, self._num_rows), stride) if stride else (index,)
            missing = [index_in_walk for index_in_walk in walk if index_in_walk not in self._ready]
            row, *others = self._make(missing)
            self._bytes_per_row = max(1, sum(getattr(value, "nbytes", 0) for value in row.values()))
            self._ready.update(zip(missing[1:], others, strict=True))
            while len(self._ready) * self._bytes_per_row > _MOST_READY_BYTES:
                self._ready.pop(next(iter(self._ready)), None)
            return row
