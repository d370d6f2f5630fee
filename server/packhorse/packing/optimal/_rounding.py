"""From a solution of the master problem, which uses fractions of bins, to a plan of whole bins.

Owns two ways: rounding down, with best-fit for the sequences that are left; and diving, which rounds some bins and
solves again. Leaves a third way, branch and bound, to `_branching`, the solution to `_master`, and the order in which
the ways are tried to `column_generation`.
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
            if length <= room and slots and self.left[index] > content[index]:
                copies = min(room // length, slots, self.left[index] - content[index])
                content[index] += copies
                room -= copies * length
                slots -= copies
        return self.use(tuple(sorted((index, copies) for index, copies in content.items() if copies)), 1) == 1

    def completed(self) -> Counter[Template]:
        """Returns a whole plan: the bins chosen so far, and best-fit's bins of the sequences that are left."""
        pairs = [(length, count) for length, count in zip(self._lengths, self.left, strict=True) if count]
        return self.templates + best_fit_decreasing(pairs, self._capacity, self._limit)

    def _template(self, column: Column) -> Template:
        return tuple(self._lengths[index] for index, copies in column for _ in range(copies))


def round_down(packed: Packed, columns: Sequence[Column], uses: Sequence[float], scale: int) -> int:
    """Packs each column as often as the whole part of its use says; returns the number of bins.

    Args:
        packed: receives the bins.
        columns: columns of the master problem.
        uses: how often each is used, in units of `scale` bins, as `Master.uses`.
        scale: as `Master.scale`.
    """
    # The whole part is multiplied as an int: a float would lose the last digits of a large number of bins.
    parts = [(column, floor(use), use - floor(use)) for column, use in zip(columns, uses, strict=False) if use > 0]
    return sum(
        packed.use(column, whole * scale + floor(fraction * scale + _ERROR)) for column, whole, fraction in parts
    )


def dive(master: Master, packed: Packed, budget: Budget) -> None:
    """Packs whole bins of the solution, and solves again for the sequences that are left, until none is left.

    Each round packs the whole parts of all uses, and rounds up the uses that are nearly whole. If there is neither, it
    rounds up the use with the greatest fraction.

    Raises:
        OutOfWorkError: the budget is spent; `packed` is valid.
        OutOfTimeError: the deadline passed; `packed` is valid.
    """
    while any(packed.left):
        master.demand(packed.left)
        master.solve(budget)
        uses = master.uses
        num_packed = round_down(packed, master.columns, uses, master.scale)
        if master.scale > 1:  # too many bins are left to round them up one at a time
            if not num_packed:
                num_packed = _round_trimmed(packed, master.columns, uses, master.scale)
            if not num_packed:
                return
            continue
        fractions = [(use - floor(use), number) for number, use in enumerate(uses) if use - floor(use) > _ERROR]
        fractions.sort(reverse=True)
        is_greatest = True
        for fraction, number in fractions:
            if fraction < _NEARLY_WHOLE and (num_packed or not is_greatest):
                break
            budget.spend(_STEPS_PER_LENGTH * len(packed.left))
            num_packed += packed.use_filled(master.columns[number])
            is_greatest = False
        if not num_packed:
            return


def _round_trimmed(packed: Packed, columns: Sequence[Column], uses: Sequence[float], scale: int) -> int:
    """Rounds down as `round_down`, but also packs bins without the sequences that have run out; returns the number."""
    return sum(
        packed.use_trimmed(column, floor(use * scale)) for column, use in zip(columns, uses, strict=True) if use > 0
    )
