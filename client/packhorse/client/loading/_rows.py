"""Rows that are not made before they are looked at.

Owns the waiting; leaves making rows, or one batch of their bins, to `packed_bins`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from packhorse.client.streams.blocks import BinBlock


class Rows(Sequence[dict[str, Any]]):
    """The rows at some indices, made when the first of them is looked at: `collate` makes a batch of the bins instead.

    Example:
        >>> from packhorse.client import PackedBins
        >>> bins = PackedBins("embedded:datasets", "corpus", "corpus.idx", seed=1)
        >>> rows = bins.__getitems__([1, 0])
        >>> [row["position"].item() for row in rows], rows.bins.ids.tolist()
        ([1, 0], [0, 1, 3, 2])

    Args:
        bins: of the rows.
        make: makes one row of each bin.
    """

    def __init__(self, bins: BinBlock, make: Callable[[BinBlock], list[dict[str, Any]]]) -> None:
        self.bins = bins
        self._make = make
        self._made: list[dict[str, Any]] | None = None

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.bins)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        """Returns one row, or a list of rows."""
        return self._all()[index]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields the rows."""
        return iter(self._all())

    def _all(self) -> list[dict[str, Any]]:
        if self._made is None:
            self._made = self._make(self.bins)
        return self._made
