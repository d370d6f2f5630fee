"""Packers of a histogram that spread sequences, one to each bin in turn: worst-fit and balanced.

Owns the bins that are open meanwhile (`Dealer`), and the loop for packers by other keys (`spread_decreasing`). Leaves
packers that fill a bin before they go to the next one to `best_fit`. That file's header says what every packer takes
and returns; its `KeyedGroup` and `Key` say what a group and a key are.
"""

import heapq
from collections import Counter

from packhorse.packing.best_fit import Chain, Key, KeyedGroup, most_room_first, templates_of
from packhorse.packing.bounds import bound_of_pairs
from packhorse.packing.plan import Template


class Dealer:
    """Open bins to which sequences are dealt one by one, each to the bin with the smallest key.

    Keys put the most room first. So equal bins take one sequence each, one after another, and are handled as one group:
    one step deals a sequence to every bin of a group, so the time does not grow with the number of bins.
    """

    def __init__(self, limit: int, key: Key) -> None:
        self._limit = limit
        self._key = key
        self._open: list[KeyedGroup] = []
        self._closed: list[tuple[int, Chain]] = []  # (number of bins, content)
        self._num_opened = 0
        self._stamp = 0

    def open_bins(self, num_bins: int, capacity: int, length: int = 0, copies: int = 0) -> None:
        """Opens equal bins of `capacity` tokens, with `copies` sequences of `length` in each."""
        self._stamp += 1
        content = (None, length, copies) if copies else None
        self._put_back(capacity - copies * length, self._num_opened, self._stamp, copies, num_bins, content)
        self._num_opened += num_bins

    def deal(self, length: int, count: int) -> int:
        """Deals sequences of a length to the open bins; returns how many of them fit into no open bin."""
        while count and self._open:
            _, room, first, old_stamp, size, num_bins, content = self._open[0]
            if room < length:
                break
            heapq.heappop(self._open)
            self._stamp += 1
            num_used = min(num_bins, count)
            # A further copy of the last length is counted in the content's last link.
            before, last_length, copies = content or (None, 0, 0)
            filled = (before, length, copies + 1) if last_length == length else (content, length, 1)
            self._put_back(room - length, first, self._stamp, size + 1, num_used, filled)
            if num_used < num_bins:
                self._put_back(room, first + num_used, old_stamp, size, num_bins - num_used, content)
            count -= num_used
        return count

    def templates(self) -> Counter[Template]:
        """Returns all bins that hold something: template → multiplicity."""
        return templates_of([*self._closed, *((num_bins, content) for *_, num_bins, content in self._open if content)])

    def _put_back(self, room: int, first: int, stamp: int, size: int, num_bins: int, content: Chain) -> None:
        """Adds a group, see `KeyedGroup`, to the closed ones if its bins are full, else to the open ones."""
        if size == self._limit or not room:
            self._closed.append((num_bins, content))
        else:
            heapq.heappush(self._open, (self._key(room, first, stamp), room, first, stamp, size, num_bins, content))


def spread_decreasing(
    pairs: list[tuple[int, int]], capacity: int, limit: int, key: Key, *, one_per_new_bin: bool
) -> Counter[Template]:
    """Packs longest first, one sequence at a time, each into the bin with the smallest key.

    Example:
        >>> worst_fit = lambda room, first, stamp: (-room, first)
        >>> spread_decreasing([(5, 2), (3, 3)], 16, 16, worst_fit, one_per_new_bin=True)
        Counter({(5, 3): 1, (5, 3, 3): 1})

    Args:
        pairs: (length, count) by descending length, as packers get them; not checked.
        capacity: a bin's capacity in tokens.
        limit: the most sequences in a bin.
        key: as in `fill_decreasing`; it must put the most room first.
        one_per_new_bin: whether every sequence of a length that fits into no earlier bin opens a new one. Otherwise a
            new bin is filled with this length before the next is opened.

    Returns:
        Template → multiplicity.
    """
    dealer = Dealer(limit, key)
    for length, count in pairs:
        left = dealer.deal(length, count)
        copies = 1 if one_per_new_bin else min(capacity // length, limit)
        if left >= copies:
            dealer.open_bins(left // copies, capacity, length, copies)
        if left % copies:  # too few to fill a bin, and the bins opened before are full of this length
            dealer.open_bins(1, capacity, length, left % copies)
    return dealer.templates()


def worst_fit_decreasing(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs each sequence, longest first, into the bin with the most room; of equal ones, into the earliest opened."""
    return spread_decreasing(pairs, capacity, limit, most_room_first, one_per_new_bin=False)


def balanced(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs into as few bins as possible if sequences are spread evenly; finds the number of bins by bisection.

    All bins are open from the start. Each sequence, longest first, goes into the emptiest bin that has fewer than
    `limit` sequences. If one fits nowhere, there are too few bins. Equal bins are one group (see `Dealer`), so the time
    does not grow with the number of sequences.
    """
    too_few = bound_of_pairs(pairs, capacity, limit) - 1
    step = 1
    # First ever larger numbers, until one is enough.
    while (best := _spread_over(too_few + step, pairs, capacity, limit)) is None:
        too_few += step
        step *= 2
    enough = too_few + step  # bins of `best`
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        templates = _spread_over(middle, pairs, capacity, limit)
        if templates is None:
            too_few = middle
        else:
            enough, best = middle, templates
    return best


def _spread_over(num_bins: int, pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template] | None:
    """Spreads all sequences over `num_bins` bins; None if one fits nowhere."""
    dealer = Dealer(limit, most_room_first)
    dealer.open_bins(num_bins, capacity)
    if any(dealer.deal(length, count) for length, count in pairs):
        return None
    return dealer.templates()
