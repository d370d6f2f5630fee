"""Pricing: given a price for every length, the bins whose prices add up to the most, by dynamic programming.

That sum is the worth of a bin. Owns the knapsack in exact integer arithmetic, with and without a limit of sequences in
a bin, and reading bins back from its tables. Leaves the choice of prices, and what they prove, to `column_generation`.

Shape letters: n distinct lengths, C capacity in tokens.
"""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.compiling import kernel
from packhorse.packing.optimal._budget import Budget
from packhorse.packing.optimal._solver import Column

_ADDITIONS_PER_CALL = 50_000_000
"""Additions, of half a step each, between two charges of the budget: about 25 ms."""

_ANY_NUMBER = 0
"""In place of a number of sequences: any number."""


class _Table(NamedTuple):
    """The greatest worth of sequences of at most c tokens together, for c up to C minus the shortest length.

    These are the sequences of a bin without one of them, so no larger c is needed.
    """

    most_sequences: int
    """The most sequences; `_ANY_NUMBER` for no limit."""
    worth: NDArray[np.int64]
    """Worth by c: int64 [C - min(lengths) + 1]."""


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """The greatest worth of bins at given prices, and the tables from which these bins are read."""

    lengths: NDArray[np.int64]
    """Lengths in tokens: int64 [n], descending."""
    prices: NDArray[np.int64]
    """Price of each length, at least 0: int64 [n]."""
    capacity: int
    """A bin's capacity in tokens."""
    tables: list[_Table]
    """One table for any number of sequences; or, if a limit binds, tables of which each is made of the one before, and
    the last is for limit - 1 sequences. Empty if a bin has one sequence."""
    worth_with: NDArray[np.int64]
    """For each length, the greatest worth of a bin that holds it: int64 [n]."""

    @property
    def best_worth(self) -> int:
        """The greatest worth of any bin."""
        return int(self.worth_with.max())

    def bin_with(self, index: int) -> Column:
        """Returns a bin that holds the length with this index and is worth `worth_with[index]`."""
        content = [index]
        rest = self.capacity - int(self.lengths[index])
        if self.tables:
            last_level = len(self.tables) - 1
            self._read(last_level, rest, content)
        return tuple(sorted(Counter(content).items()))

    def _read(self, level: int, rest: int, content: list[int]) -> None:
        """Appends to `content` the indices of the lengths that make up the worth at `rest` of table `level`."""
        most_sequences, worth = self.tables[level]
        if most_sequences == _ANY_NUMBER:
            content.extend(_read_unlimited(worth, self.lengths, self.prices, rest).tolist())
        elif worth[rest]:
            if most_sequences == 1:
                content.append(int(np.flatnonzero((self.lengths <= rest) & (self.prices == worth[rest]))[0]))
                return
            # The table joins the one before with itself, or with the first, for one sequence: see `_limited`.
            before = self.tables[level - 1]
            other_level = level - 1 if most_sequences == 2 * before.most_sequences else 0
            sums = before.worth[: rest + 1] + self.tables[other_level].worth[rest::-1]
            split = int(np.flatnonzero(sums == worth[rest])[0])
            self._read(level - 1, split, content)
            self._read(other_level, rest - split, content)


def price(lengths: NDArray[np.int64], prices: NDArray[np.int64], capacity: int, limit: int, budget: Budget) -> Pricing:
    """Finds, for each length, the greatest worth of a bin that holds it.

    Args:
        lengths: int64 [n], descending, distinct, in [1, capacity].
        prices: int64 [n], at least 0, with capacity · max(prices) below 2^63.
        capacity: a bin's capacity in tokens.
        limit: the most sequences in a bin.
        budget: charged half a step for each addition.

    Returns:
        The exact result. It takes O(n · C) without a limit that binds, else O(C² · log limit).

    Raises:
        OutOfWorkError: the budget is spent.
        OutOfTimeError: its deadline passed.
    """
    most_that_fit = capacity // int(lengths[-1])
    if min(limit, most_that_fit) == 1:
        return Pricing(lengths=lengths, prices=prices, capacity=capacity, tables=[], worth_with=prices.copy())
    if limit >= most_that_fit:
        tables = [_Table(_ANY_NUMBER, _unlimited(lengths, prices, capacity, budget))]
    else:  # `worth_with` adds the sequence that makes the limit full
        tables = _limited(lengths, prices, capacity, limit - 1, budget)
    return Pricing(
        lengths=lengths,
        prices=prices,
        capacity=capacity,
        tables=tables,
        worth_with=prices + tables[-1].worth[capacity - lengths],
    )


def _unlimited(
    lengths: NDArray[np.int64], prices: NDArray[np.int64], capacity: int, budget: Budget
) -> NDArray[np.int64]:
    """Returns the worths of the table for any number of sequences."""
    table = np.zeros(capacity + 1 - int(lengths[-1]), dtype=np.int64)
    chunk = max(1, _ADDITIONS_PER_CALL // len(table))
    priced = np.flatnonzero((prices > 0) & (lengths < len(table)))
    for start in range(0, len(priced), chunk):
        part = priced[start : start + chunk]
        budget.spend(len(part) * len(table) // 2)
        _add_lengths(table, lengths[part], prices[part])
    return table


def _limited(
    lengths: NDArray[np.int64], prices: NDArray[np.int64], capacity: int, most_sequences: int, budget: Budget
) -> list[_Table]:
    """Returns the tables that lead from 1 sequence to `most_sequences`, by its binary digits after the first.

    Each digit doubles the number of sequences, and a 1 adds one: 1, 2, 3, 6 for 6, which is 110.
    """
    single = np.zeros(capacity + 1 - int(lengths[-1]), dtype=np.int64)
    fitting = lengths < len(single)
    single[lengths[fitting]] = prices[fitting]
    np.maximum.accumulate(single, out=single)
    tables = [_Table(1, single)]
    for bit in f"{most_sequences:b}"[1:]:
        reached, worth = tables[-1]
        doubled = _joined(worth, worth, budget)
        tables.append(_Table(2 * reached, doubled))
        if bit == "1":
            tables.append(_Table(2 * reached + 1, _joined(doubled, single, budget)))
    return tables


def _joined(left: NDArray[np.int64], right: NDArray[np.int64], budget: Budget) -> NDArray[np.int64]:
    """Returns, for each c, the greatest left[c - j] + right[j] over j; both tables begin with 0 and never decrease."""
    table = np.maximum(left, right)
    rises = np.flatnonzero(right[1:] > right[:-1]) + 1  # between these, a larger j only takes from `left`
    chunk = max(1, _ADDITIONS_PER_CALL // len(table))
    for start in range(0, len(rises), chunk):
        part = rises[start : start + chunk]
        budget.spend(int((len(table) - part).sum()) // 2)
        _join_rises(table, left, right, part)
    return table


@kernel
def _add_lengths(table: NDArray[np.int64], lengths: NDArray[np.int64], prices: NDArray[np.int64]) -> None:
    """Raises the worths of a table by sequences of some lengths, any number of each.

    Each block of `length` entries reads the block before it. So reads and writes of a loop never overlap, and the
    compiler can use SIMD.
    """
    for i in range(len(lengths)):
        length = lengths[i]
        worth = prices[i]
        for start in range(length, len(table), length):
            end = min(start + length, len(table))
            written = table[start:end]
            read = table[start - length : end - length]
            for k in range(len(written)):
                written[k] = max(written[k], read[k] + worth)


@kernel
def _join_rises(
    table: NDArray[np.int64], left: NDArray[np.int64], right: NDArray[np.int64], rises: NDArray[np.int64]
) -> None:
    """Raises table[c] to left[c - j] + right[j], if that is more, for every j of `rises`."""
    for j in rises:
        worth = right[j]
        written = table[j:]
        for k in range(len(written)):
            written[k] = max(written[k], left[k] + worth)


@kernel
def _read_unlimited(
    table: NDArray[np.int64], lengths: NDArray[np.int64], prices: NDArray[np.int64], rest: int
) -> NDArray[np.int64]:
    """Returns the indices of the lengths that make up table[rest], longest first."""
    content = np.empty(rest // lengths[-1] + 1, dtype=np.int64)
    size = 0
    first = 0
    while table[rest] > 0:
        # A length that was passed over is in no best content of a smaller rest either, so the search never goes back.
        while (
            prices[first] == 0 or lengths[first] > rest or table[rest - lengths[first]] + prices[first] != table[rest]
        ):
            first += 1
        content[size] = first
        size += 1
        rest -= lengths[first]
    return content[:size]
