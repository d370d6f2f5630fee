"""From a solution of the master problem, which uses fractions of bins, to a plan of whole bins.

Owns two ways: rounding down, with best-fit for the sequences that are left; and diving, which rounds some bins and
solves again. Leaves a third way, branch and bound, to `_branching`, the solution to `_master`, and the order in which
the ways are tried to `column_generation`. A use is how often the solution uses a bin: a number that need not be whole.
"""

from collections import Counter
from collections.abc import Sequence
from math import floor

from packhorse.packing.best_fit import best_fit_decreasing
from packhorse.packing.optimal._budget import Budget
from packhorse.packing.optimal._master import Master
from packhorse.packing.optimal._solver import Column
from packhorse.packing.plan import Template

_NEARLY_WHOLE = 0.75
"""A dive rounds up a use whose fraction is at least this."""
_ERROR = 1e-6
"""Errors of the solver in a use, which must not make a whole number a fraction."""
_STEPS_PER_LENGTH = 100
"""Steps of the budget that filling up a bin costs for each length."""


class Packed:
    """Whole bins chosen so far, and the sequences that are still to be packed.

    Args:
        lengths: [n] distinct lengths, descending.
        counts: [n] sequences of each length.
        capacity: a bin's capacity in tokens.
        limit: the most sequences in a bin.

    Attributes:
        templates: template → multiplicity of the bins chosen so far.
        left: [n] sequences of each length that are not packed yet.
    """

    def __init__(self, lengths: Sequence[int], counts: Sequence[int], capacity: int, limit: int) -> None:
        self.templates: Counter[Template] = Counter()
        self.left = list(counts)
        self._lengths = lengths
        self._capacity = capacity
        self._limit = limit

    def copy(self) -> "Packed":
        """Returns an independent copy."""
        other = Packed(self._lengths, self.left, self._capacity, self._limit)
        other.templates = self.templates.copy()
        return other

    def use(self, column: Column, times: int) -> int:
        """Packs up to `times` bins like `column`, as long as there are sequences for them; returns the number."""
        possible = min(times, *(self.left[index] // copies for index, copies in column))
        if possible > 0:
            for index, copies in column:
                self.left[index] -= possible * copies
            self.templates[self._template(column)] += possible
        return max(possible, 0)

    def use_trimmed(self, column: Column, times: int) -> int:
        """Packs up to `times` bins like `column`, without sequences that have run out; returns the number."""
        used = 0
        while used < times:
            repeats = ((index, min(copies, self.left[index])) for index, copies in column)
            trimmed = tuple((index, copies) for index, copies in repeats if copies)
            if not trimmed:
                break
            used += self.use(trimmed, times - used)
        return used

    def use_filled(self, column: Column) -> bool:
        """Packs one bin with the sequences of `column` that are left, and fills it up with the longest that fit.

        Returns:
            Whether any of the sequences of `column` was left, so that a bin was packed.
        """
        content: Counter[int] = Counter()
        room, slots = self._capacity, self._limit
        for index, copies in column:
            content[index] = min(copies, self.left[index])
            room -= content[index] * self._lengths[index]
            slots -= content[index]
        if not content.total():
            return False
        for index, length in enumerate(self._lengths):
            num_free = self.left[index] - content[index]
            if length <= room and slots and num_free:
                copies = min(room // length, slots, num_free)
                content[index] += copies
                room -= copies * length
                slots -= copies
        filled = tuple(sorted((index, copies) for index, copies in content.items() if copies))
        return self.use(filled, 1) == 1

    def completed(self) -> Counter[Template]:
        """Returns a whole plan: the bins chosen so far, and best-fit's bins of the sequences that are left."""
        pairs = [(length, count) for length, count in zip(self._lengths, self.left, strict=True) if count]
        return self.templates + best_fit_decreasing(pairs, self._capacity, self._limit)

    def _template(self, column: Column) -> Template:
        """Returns the lengths of a column's sequences, descending."""
        return tuple(self._lengths[index] for index, copies in column for _ in range(copies))


def round_down(packed: Packed, columns: Sequence[Column], uses: Sequence[float], scale: int) -> int:
    """Packs each column as often as the whole part of its use says; returns the number of bins.

    Args:
        packed: receives the bins.
        columns: columns of the master problem.
        uses: how often each is used, in units of `scale` bins, as `Master.uses`.
        scale: as `Master.scale`.
    """
    # The whole part is multiplied as an int: a float would lose the last digits of a large number of bins. There are
    # fewer uses than columns if the budget ended before the columns that were added last were in a solution.
    parts = [(column, floor(use), use - floor(use)) for column, use in zip(columns, uses, strict=False) if use > 0]
    return sum(
        packed.use(column, whole * scale + floor(fraction * scale + _ERROR)) for column, whole, fraction in parts
    )


def dive(master: Master, packed: Packed, budget: Budget) -> None:
    """Packs whole bins of the solution, and solves again for the sequences that are left, until none is left.

    Each round packs the whole parts of all uses, and rounds up the uses that are nearly whole. If there is neither, it
    rounds up the use with the greatest fraction. As long as a use counts several bins (`Master.scale`), none is rounded
    up; if no whole part can be packed, bins go without the sequences that have run out.

    Raises:
        OutOfWorkError: the budget is spent; `packed` is valid.
        OutOfTimeError: the deadline passed; `packed` is valid.
    """
    while any(packed.left):
        master.demand(packed.left)
        master.solve(budget)
        num_packed = round_down(packed, master.columns, master.uses, master.scale)
        if master.scale == 1:
            num_packed += _round_up(packed, master, budget, needs_one=num_packed == 0)
        elif num_packed == 0:  # too many bins are left to round them up one at a time
            num_packed = _round_trimmed(packed, master.columns, master.uses, master.scale)
        if num_packed == 0:
            return


def _round_up(packed: Packed, master: Master, budget: Budget, *, needs_one: bool) -> int:
    """Packs one bin for each use that is nearly whole, the greatest fraction first; returns the number of bins.

    If no use is nearly whole, and it `needs_one`, packs one for the greatest fraction.
    """
    fractions = [(use - floor(use), number) for number, use in enumerate(master.uses)]
    descending = sorted((each for each in fractions if each[0] > _ERROR), reverse=True)
    chosen = [number for fraction, number in descending if fraction >= _NEARLY_WHOLE]
    if not chosen and needs_one:
        chosen = [number for _, number in descending[:1]]
    num_packed = 0
    for number in chosen:
        budget.spend(_STEPS_PER_LENGTH * len(packed.left))
        if packed.use_filled(master.columns[number]):
            num_packed += 1
    return num_packed


def _round_trimmed(packed: Packed, columns: Sequence[Column], uses: Sequence[float], scale: int) -> int:
    """Rounds down, but packs also bins without the sequences that have run out; returns the number of bins."""
    return sum(
        packed.use_trimmed(column, floor(use * scale)) for column, use in zip(columns, uses, strict=True) if use > 0
    )
