"""`Rows`: the rows of some bins, all made when one of them is read.

Owns that delay, by which `PackedBins.collate` makes no rows at all. Leaves what a row is to `bins/row_cutting`, and
rows that are made before they are read to `bins/_rows_ahead`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from packhorse.client.streams.blocks import BinBlock


class Rows(Sequence[dict[str, Any]]):
    """The rows of some bins, all made when the first is read; `PackedBins.collate` makes a batch of the bins instead.

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
