"""From a solution of the master problem, which uses fractions of bins, to a plan of whole bins.

Owns three ways: rounding down, with best-fit for the sequences that are left; diving, which rounds some bins and
solves again; and branch and bound over all possible bins, if there are few. Leaves the solution to `_master`, and the
order in which the ways are tried to `column_generation`.
"""

from collections import Counter
from collections.abc import Sequence
from math import floor

import highspy
import numpy as np

from packhorse.packing.best_fit import best_fit_decreasing
from packhorse.packing.optimal._budget import Budget, OutOfTimeError
from packhorse.packing.optimal._master import Column, Master, Solver
from packhorse.packing.plan import Template

_NEARLY_WHOLE = 0.75
"""A dive rounds up a use whose fraction is at least this."""
_ERROR = 1e-6
"""Errors of the solver in a use, which must not make a whole number a fraction."""
_STEPS_PER_LENGTH = 100
"""Steps of the budget that filling up a bin costs for each length."""
_MOST_NODES = 2_000
"""Most nodes of the tree that branch and bound searches; HiGHS has no other limit of its work."""
_MOST_LENGTHS_TRIED = 500
"""Most lengths that `enumerate_bins` takes: its recursion is as deep as there are lengths."""
_MOST_BINS_TRIED = 20_000
"""Most partial bins that `enumerate_bins` looks at before it gives up."""


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
    return sum(packed.use(column, whole * scale + floor(part * scale + _ERROR)) for column, whole, part in parts)


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
        whole = round_down(packed, master.columns, uses, master.scale)
        if master.scale > 1:  # too many bins are left to round them up one at a time
            if not whole:
                whole = _round_trimmed(packed, master.columns, uses, master.scale)
            if not whole:
                return
            continue
        parts = sorted(((use - floor(use), j) for j, use in enumerate(uses) if use - floor(use) > _ERROR), reverse=True)
        for rank, (part, j) in enumerate(parts):
            if part < _NEARLY_WHOLE and (whole or rank):
                break
            budget.spend(_STEPS_PER_LENGTH * len(packed.left))
            whole += packed.use_filled(master.columns[j])
        if not whole:
            return


def _round_trimmed(packed: Packed, columns: Sequence[Column], uses: Sequence[float], scale: int) -> int:
    """Rounds down as `round_down`, but also packs bins without the sequences that have run out; returns the number."""
    return sum(
        packed.use_trimmed(column, floor(use * scale)) for column, use in zip(columns, uses, strict=True) if use > 0
    )


def enumerate_bins(
    lengths: Sequence[int], counts: Sequence[int], capacity: int, limit: int, most: int = _MOST_BINS_TRIED
) -> list[Column] | None:
    """Returns every bin to which no sequence can be added; None if there are too many bins or lengths.

    Args:
        lengths: [n] distinct lengths, descending.
        counts: [n] sequences of each length.
        capacity: a bin's capacity in tokens.
        limit: the most sequences in a bin.
        most: the most partial bins to look at.
    """
    if len(lengths) > _MOST_LENGTHS_TRIED:
        return None
    found: list[Column] = []
    steps = 0

    def extend(first: int, room: int, slots: int, repeats: Column, smallest_left_out: int) -> bool:
        """Extends a partial bin, `repeats`, by lengths from index `first` on; False if there are too many bins.

        A bin is complete if `smallest_left_out`, the shortest length with sequences left, does not fit its room.
        """
        nonlocal steps
        steps += 1
        if steps > most:
            return False
        while first < len(lengths) and (lengths[first] > room or not counts[first]):
            first += 1
        if first == len(lengths) or not slots:
            if repeats and (not slots or room < smallest_left_out):
                found.append(repeats)
            return True
        length = lengths[first]
        fitting = min(counts[first], room // length, slots)
        for copies in range(fitting, -1, -1):
            out = smallest_left_out if copies == counts[first] else min(smallest_left_out, length)
            longer = (*repeats, (first, copies)) if copies else repeats
            if not extend(first + 1, room - copies * length, slots - copies, longer, out):
                return False
        return True

    return found if extend(0, capacity, limit, (), capacity + 1) else None


def solve_whole(columns: Sequence[Column], counts: Sequence[int], budget: Budget) -> tuple[list[float] | None, bool]:
    """Solves the master problem in whole numbers, by branch and bound.

    Returns:
        How often to use each column, or None if `_MOST_NODES` were not enough to find a solution; and whether it is
        proven that no solution with these columns has fewer bins.

    Raises:
        OutOfTimeError: the budget's deadline passed, even if a solution was found.
    """
    solver = Solver()
    left = budget.seconds_left()
    if left <= 0:
        raise OutOfTimeError
    solver.set_options(
        {
            "threads": 1,
            "random_seed": 0,
            "time_limit": left,
            "mip_max_nodes": _MOST_NODES,
            "mip_abs_gap": 0.99,  # the number of bins is whole, so less than one bin is no gap
            "mip_rel_gap": 0.0,
        }
    )
    solver.add_demands(np.array(counts, dtype=np.float64))
    solver.add_columns(columns)
    num = len(columns)
    solver.changeColsIntegrality(
        num, np.arange(num, dtype=np.int32), np.full(num, int(highspy.HighsVarType.kInteger), dtype=np.uint8)
    )
    solver.run()
    values: list[float] = np.round(solver.getSolution().col_value).tolist()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kTimeLimit:
        raise OutOfTimeError
    found = values if len(values) == num and any(values) else None
    return found, status == highspy.HighsModelStatus.kOptimal
