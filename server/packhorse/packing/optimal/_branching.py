"""Branch and bound: a plan of whole bins, chosen among all bins that are possible, if these are few.

Owns listing all bins, and solving the master problem over them in whole numbers. Leaves the other ways to whole bins to
`_rounding`.
"""

from collections.abc import Sequence

import highspy
import numpy as np

from packhorse.packing.optimal._budget import Budget, OutOfTimeError
from packhorse.packing.optimal._solver import Column, Solver

_MOST_NODES = 2_000
"""Most nodes of the tree that branch and bound searches; HiGHS has no other limit of its work."""
_MOST_LENGTHS_TRIED = 500
"""Most lengths that `enumerate_bins` takes: its recursion is as deep as there are lengths."""
_MOST_BINS_TRIED = 20_000
"""Most partial bins that `enumerate_bins` looks at before it gives up."""


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
    num_looked_at = 0

    def extend(first: int, room: int, slots: int, repeats: Column, smallest_left_out: int) -> bool:
        """Extends a partial bin, `repeats`, by lengths from index `first` on; False if there are too many bins.

        A bin is complete if `smallest_left_out`, the shortest length with sequences left, does not fit its room.
        """
        nonlocal num_looked_at
        num_looked_at += 1
        if num_looked_at > most:
            return False
        while first < len(lengths) and (lengths[first] > room or not counts[first]):
            first += 1
        if first == len(lengths) or not slots:
            if repeats and (not slots or room < smallest_left_out):
                found.append(repeats)
            return True
        length = lengths[first]
        most_copies = min(counts[first], room // length, slots)
        for copies in range(most_copies, -1, -1):
            left_out = smallest_left_out if copies == counts[first] else min(smallest_left_out, length)
            extended = (*repeats, (first, copies)) if copies else repeats
            if not extend(first + 1, room - copies * length, slots - copies, extended, left_out):
                return False
        return True

    return found if extend(0, capacity, limit, (), capacity + 1) else None


def solve_whole(columns: Sequence[Column], counts: Sequence[int], budget: Budget) -> tuple[list[float] | None, bool]:
    """Finds the fewest bins that hold each length at least as often as its count, by branch and bound.

    It is the master problem of `_solver` in whole numbers. The caller takes out what bins hold too often.

    Returns:
        How often to use each column, or None if `_MOST_NODES` were not enough to find a solution; and whether it is
        proven that no solution with these columns has fewer bins.

    Raises:
        OutOfTimeError: the budget's deadline passed, even if a solution was found.
    """
    solver = Solver()
    seconds_left = budget.seconds_left()
    if seconds_left <= 0:
        raise OutOfTimeError
    solver.set_options(
        {
            "threads": 1,
            "random_seed": 0,
            "time_limit": seconds_left,
            "mip_max_nodes": _MOST_NODES,
            "mip_abs_gap": 0.99,  # the number of bins is whole, so less than one bin is no gap
            "mip_rel_gap": 0.0,
        }
    )
    solver.add_demands(np.array(counts, dtype=np.float64))
    solver.add_columns(columns)
    num_columns = len(columns)
    is_whole = np.full(num_columns, int(highspy.HighsVarType.kInteger), dtype=np.uint8)
    solver.changeColsIntegrality(num_columns, np.arange(num_columns, dtype=np.int32), is_whole)
    solver.run()
    values: list[float] = np.round(solver.getSolution().col_value).tolist()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kTimeLimit:
        raise OutOfTimeError
    found = values if len(values) == num_columns and any(values) else None
    return found, status == highspy.HighsModelStatus.kOptimal
