"""Column generation after Gilmore and Gomory: plans with the fewest bins, or nearly, and a proven lower bound.

The master problem says how often to use each known bin, and gives every length a price. Pricing finds bins that are
worth more than they cost, and these become known too. When there are none, the prices prove a bound, and the solution
is rounded to whole bins.

Owns this loop, when it stops, and the order of all searches (`improve`). Leaves the best plan and bound so far, and
when a plan is repacked, to `_search`, the steps to `_master`, `_pricing`, `_rounding` and `_branching`, the coarse
problems that come first to `_coarse`, and checking proofs to `bounds`. Needs HiGHS and Numba, so `registry` imports it
only when it runs it.

Sources: P. C. Gilmore, R. E. Gomory, "A linear programming approach to the cutting-stock problem", Operations Research
9 (1961) and 11 (1963).
"""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from math import ceil, inf
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from packhorse.packing.first_plan import first_plan
from packhorse.packing.optimal._branching import enumerate_bins, solve_whole
from packhorse.packing.optimal._budget import Budget, OutOfTimeError, OutOfWorkError
from packhorse.packing.optimal._coarse import LengthClass, coarse_classes, refined, refined_prices, rounded
from packhorse.packing.optimal._master import Master
from packhorse.packing.optimal._pricing import Pricing, price
from packhorse.packing.optimal._rounding import Packed, dive, round_down
from packhorse.packing.optimal._search import Search
from packhorse.packing.optimal._solver import Column
from packhorse.packing.optimal.repacking import MOST_SEQUENCES
from packhorse.packing.plan import DualCertificate, PackerResult

_COLUMNS_PER_ROUND = 60
"""Bins added in a round: for each of so many lengths, the best bin that holds it. Twice as many were slower."""
_LP_TOLERANCE = 1e-8
"""The loop ends when the master problem's value is this close to the proven bound, as a share of the value."""
_ERROR_SHARE, _ERROR_BINS = 1e-12, 1e-6
"""Errors of the solver in the master problem's value, as a share of it and in bins."""
_PRICE_BITS, _WORTH_BITS = 40, 61
"""Most bits of an integer price, and of a bin's worth, which must fit into int64."""
_GAIN_DIVISOR = 10**9
"""A bin is added only if its worth exceeds its cost by more than the cost divided by this."""
_MOST_SECONDS = 1e9
"""Longest time limit; a longer or infinite one counts as this."""
_LARGEST_CAPACITY = 2**24
"""Largest capacity in units (see `Search`) for which pricing's tables fit into memory."""
_STEPS = 40 * 10**9
"""Steps of the budget of a search: about half a minute of one core."""
_NUMBERS_OF_CLASSES = (128, 512)
"""Numbers of classes in the coarse problems, which take a few tenths of a second and a few seconds."""
_GAP_FOR_COARSE = 5e-3
"""Gap of a plan, as a share of the bound, above which coarse problems come first."""
_GAP_FOR_FINER = 1e-3
"""Gap above which a coarse problem with more classes follows."""
_SHARE_FOR_COARSE = 0.15
"""Share of the remaining budget for each search in a coarse problem."""
_SHARE_FOR_ROUNDING = 0.15
"""Share of a budget that is reserved for rounding, if the master problem takes all the rest."""
_SHARE_FOR_REPACKING = 0.025
"""Share of the budget for repacking before the master problem is solved. Repacking also gets at most the cube of the
number of lengths in steps: a tenth of what the master problem takes."""
_STEPS_FOR_LAST_BINS = 16 * 10**9
"""Most steps for repacking after the master problem: less than 10 s. What it can solve seldom takes 2 s."""
_LARGEST_WHOLE_COUNT = 10**6
"""Largest count for which branch and bound gets the whole problem. For larger ones the tolerances of HiGHS come near
one sequence, so it only gets what rounding down leaves."""


def improve(
    pairs: list[tuple[int, int]],
    max_seq_len: int,
    limit: int,
    start: PackerResult,
    time_limit_seconds: float,
    patience: float = 1.0,
) -> PackerResult:
    """Improves a plan until it is proven optimal, no search is left to try, or the budget is spent.

    Args:
        pairs: (length, count) by descending length, as `checked_counts` returns them.
        max_seq_len: a bin's capacity in tokens.
        limit: the most sequences in a bin.
        start: a plan of `pairs` with a bound, such as `first_plan` returns; its templates are the first columns.
        time_limit_seconds: a safety net for slow machines, checked every few tenths of a second. If it ends the search,
            the plan is marked as cut off.
        patience: share of `_STEPS_FOR_LAST_BINS` that the search for the last bins may take.

    Returns:
        The plan with the fewest bins and the best bound, which may both be those of `start`.
    """
    search = Search(pairs, max_seq_len, limit, start)
    if search.done:
        return start
    if search.capacity_in_units > _LARGEST_CAPACITY:
        largest = _LARGEST_CAPACITY * search.unit_tokens
        note = f"optimal: max_seq_len {max_seq_len} is beyond {largest}; kept as it was"
        return replace(start, note=note)
    cut_off = False
    budget = Budget(_STEPS, min(time_limit_seconds, _MOST_SECONDS))
    try:
        note = _run_searches(search, budget, patience)
    except OutOfWorkError:
        note = "stopped at its limit of work"
    except OutOfTimeError:
        cut_off = not search.done
        note = f"ended by the time limit of {time_limit_seconds:g} s"
        if (seconds := budget.seconds_of_all()) < inf:
            note += f"; all its work takes at most about {max(seconds, time_limit_seconds):.2g} s"
    num_above = search.num_bins - search.bound
    return PackerResult(
        templates=search.best,
        algorithm="optimal" if search.num_bins < start.templates.total() else start.algorithm,
        lower_bound=search.bound,
        certificate=search.certificate,
        cut_off=cut_off,
        note=f"optimal: {note}; {num_above} {'bin' if num_above == 1 else 'bins'} above the bound" if num_above else "",
    )


def _run_searches(search: Search, budget: Budget, patience: float) -> str:
    """Runs all searches in their order, and returns why the last one stopped, as a part of the plan's note."""
    if search.repacking_pays:
        search.repack(min(int(_SHARE_FOR_REPACKING * budget.left), len(search.pairs) ** 3), budget)
    if not search.done:
        _solve_coarsely(search, budget)
    if not search.done:
        _solve_and_round(search, budget)
    if search.is_exhausted:
        return "branch and bound over all bins found no plan with fewer"
    if not search.repacking_pays:
        return f"stopped near the bound, or with more than {MOST_SEQUENCES:,} sequences"
    search.repack(int(patience * _STEPS_FOR_LAST_BINS), budget)
    return "stopped at its limit of work"


def _solve_coarsely(search: Search, budget: Budget) -> None:
    """Finds a plan and a bound by coarse problems, first with few classes, then with more if the gap is still large."""
    if search.gap <= _GAP_FOR_COARSE:
        return
    for num_classes in _NUMBERS_OF_CLASSES:
        if 2 * num_classes > len(search.pairs) or search.gap <= _GAP_FOR_FINER:
            return
        classes = coarse_classes(search.pairs, num_classes)
        rounded_up = _coarse_search(search, classes, "up")
        with budget.lent(int(_SHARE_FOR_COARSE * budget.left)) as lent, suppress(OutOfWorkError):
            _solve_and_round(rounded_up, lent)
        search.keep(refined(rounded_up.best, classes))
        rounded_down = _coarse_search(search, classes, "down")
        with budget.lent(int(_SHARE_FOR_COARSE * budget.left)) as lent, suppress(OutOfWorkError):
            _generate_columns(rounded_down, _first_master(rounded_down), lent)
        if (certificate := rounded_down.certificate) is not None:
            prices = refined_prices(certificate.prices, classes)
            search.keep_certificate(DualCertificate(prices=prices, bin_worth=certificate.bin_worth))


def _coarse_search(search: Search, classes: list[LengthClass], direction: Literal["up", "down"]) -> Search:
    """Returns the problem with the lengths of each class rounded up or down."""
    pairs = rounded(classes, direction)
    return Search(pairs, search.max_seq_len, search.limit, first_plan(pairs, search.max_seq_len, search.limit))


def _solve_and_round(search: Search, budget: Budget) -> None:
    """Solves the master problem, and rounds its solution in each way until the plan is proven optimal.

    If the budget ends first, the solution so far is rounded all the same: out of work, with the steps that were
    reserved for it; out of time, only down, which takes no time.

    Raises:
        OutOfWorkError: the budget was spent before the master problem or the rounding was done.
        OutOfTimeError: the deadline passed before that.
    """
    master = _first_master(search)
    budget.reserved = int(_SHARE_FOR_ROUNDING * budget.left)
    try:
        _generate_columns(search, master, budget)
    except OutOfTimeError:
        _round_down(search, master)
        if not search.done:
            raise
    except OutOfWorkError:
        budget.reserved = 0
        _round(search, master, budget)
        raise
    else:
        budget.reserved = 0
        _round(search, master, budget)


def _round(search: Search, master: Master, budget: Budget) -> None:
    """Rounds the master problem's solution in each way until the plan is proven optimal."""
    if search.done:
        return
    packed = _round_down(search, master)
    if search.done:
        return
    left_after_rounding = packed.copy()
    try:
        dive(master, packed, budget)
    finally:  # an error comes between two bins, so what is packed by then is a valid plan
        search.keep_in_units(packed.completed())
    if not search.done:
        _branch(search, left_after_rounding, budget)


def _round_down(search: Search, master: Master) -> Packed:
    """Keeps the plan of the solution rounded down and completed; returns it without the bins that completed it."""
    packed = search.packed()
    round_down(packed, master.columns, master.uses, master.scale)
    search.keep_in_units(packed.completed())
    return packed


def _first_master(search: Search) -> Master:
    """Returns a master problem whose columns are the bins of the best plan, and for each length a bin full of it.

    With these columns it can meet every demand, and no length has a price above 1.
    """
    index_of = {length: index for index, (length, _) in enumerate(search.pairs)}
    columns = [tuple(sorted(Counter(index_of[length] for length in template).items())) for template in search.best]
    most_copies = [min(search.limit, search.max_seq_len // length) for length, _ in search.pairs]
    columns += [((index, copies),) for index, copies in enumerate(most_copies)]
    master = Master(len(search.pairs), columns)
    master.demand(search.counts)
    return master


def _generate_columns(search: Search, master: Master, budget: Budget) -> None:
    """Runs column generation: solves the master problem and adds bins until no new bin improves it."""
    lengths = np.array(search.lengths_in_units, dtype=np.int64)
    capacity = search.capacity_in_units
    scale = 2 ** min(_PRICE_BITS, _WORTH_BITS - capacity.bit_length())
    while True:
        master.solve(budget)
        # Integer prices make pricing exact, so its bound holds even if the solver's solution is not exact. No length is
        # worth more than a bin, as a bin full of it is a column.
        prices = np.floor(np.minimum(master.prices, 1.0) * scale).astype(np.int64)
        pricing = price(lengths, prices, capacity, search.limit, budget)
        search.keep_bound_of(pricing)
        value = master.num_bins
        least_bins = ceil(value * (1 - _ERROR_SHARE) - _ERROR_BINS)
        if least_bins <= search.bound or value - search.bound <= _LP_TOLERANCE * value:
            return
        if search.done or not master.add(_attractive(pricing, scale)):
            return


def _attractive(pricing: Pricing, scale: int) -> list[Column]:
    """Returns the best bins, at most one for each length, that are worth more than they cost.

    A bin costs 1, which is `scale` in integer prices.
    """
    order: NDArray[np.intp] = np.argsort(-pricing.worth_with, kind="stable")[:_COLUMNS_PER_ROUND]
    least_worth = scale + scale // _GAIN_DIVISOR
    return [pricing.bin_with(index) for index in order.tolist() if pricing.worth_with[index] > least_worth]


def _branch(search: Search, left_after_rounding: Packed, budget: Budget) -> None:
    """Improves the plan by branch and bound over all possible bins, if these are few.

    It gets the whole problem or, if a count is too large, what rounding down left.
    """
    is_whole_problem = max(search.counts) <= _LARGEST_WHOLE_COUNT
    packed = search.packed() if is_whole_problem else left_after_rounding
    if max(packed.left) > _LARGEST_WHOLE_COUNT:
        return
    columns = enumerate_bins(search.lengths_in_units, packed.left, search.capacity_in_units, search.limit)
    if not columns:
        return
    uses, is_best = solve_whole(columns, packed.left, budget)
    search.is_exhausted = is_best and not packed.templates  # bins that are given already were not looked at
    if uses is not None:
        for column, use in zip(columns, uses, strict=True):
            packed.use_trimmed(column, int(use))
    search.keep_in_units(packed.completed())
