"""Column generation after Gilmore and Gomory: plans with the fewest bins, or nearly, and a proven lower bound.

The master problem says how often to use each known bin, and gives every length a price. Pricing finds bins that are
worth more than they cost, and these become known too. When there are none, the prices prove a bound, and the solution
is rounded to whole bins.

Owns this loop, what it proves, when it stops, and the order of all searches (`improve`). Leaves their steps to
`_master`, `_pricing`, `_rounding` and `repacking`, the coarse problems that come first to `_coarse`, and checking
proofs to `bounds`. Needs HiGHS and Numba, so `registry` imports it only when it runs it.

Sources: P. C. Gilmore, R. E. Gomory, "A linear programming approach to the cutting-stock problem", Operations Research
9 (1961) and 11 (1963).
"""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from math import ceil, gcd, inf
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from packhorse.packing.first_plan import NEAR_GAP, first_plan
from packhorse.packing.optimal._budget import Budget, OutOfTimeError, OutOfWorkError
from packhorse.packing.optimal._coarse import LengthClass, coarse_classes, refined, refined_prices, rounded
from packhorse.packing.optimal._master import Column, Master
from packhorse.packing.optimal._pricing import Pricing, price
from packhorse.packing.optimal._rounding import Packed, dive, enumerate_bins, round_down, solve_whole
from packhorse.packing.optimal.repacking import MOST_SEQUENCES, Repacking
from packhorse.packing.plan import DualCertificate, PackerResult, Template

_COLUMNS_PER_ROUND = 60
"""Bins added in a round: for each of so many lengths, the best bin that holds it. Twice as many were slower."""
_LP_TOLERANCE = 1e-8
"""The loop ends when the master problem's value is this close to the proven bound, as a share of the value."""
_ERROR_SHARE, _ERROR_BINS = 1e-12, 1e-6
"""Errors of the solver in the master problem's value, as a share of it and in bins."""
_PRICE_BITS, _WORTH_BITS = 40, 61
"""Most bits of an integer price, and of a bin's worth, which must fit into int64."""
_GAIN_DIVISOR = 10**9
"""A bin is added if its worth exceeds its cost by more than the cost divided by this."""
_MOST_SECONDS = 1e9  # of a time limit, which may be infinite
_LARGEST_CAPACITY = 2**24
"""Largest capacity in units (see `_Search`) for which pricing's tables fit into memory."""
_STEPS = 40 * 10**9
"""Steps of the budget of a search: about half a minute of one core."""
_NUMBERS_OF_CLASSES = (128, 512)
"""Numbers of classes in the coarse problems, which take a few tenths of a second and a few seconds."""
_FAR_GAP = 5e-3
"""Gap of a plan, as a share of the bound, above which coarse problems come first."""
_NEAR_GAP = 1e-3
"""Gap up to which a finer coarse problem is left out."""
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


class _Search:
    """A problem, and the best plan and best bound found so far, which remain when the budget is spent.

    Most steps work in units, the common divisor of the lengths, so that tables are small. `pairs`, `max_seq_len` and
    `best` are in tokens.
    """

    def __init__(self, pairs: list[tuple[int, int]], max_seq_len: int, limit: int, start: PackerResult) -> None:
        self.pairs = pairs
        self.counts = [count for _, count in pairs]
        self.max_seq_len = max_seq_len
        self.limit = limit
        self.unit_tokens = gcd(*(length for length, _ in pairs)) or 1
        self.lengths_in_units = [length // self.unit_tokens for length, _ in pairs]
        self.capacity_in_units = max_seq_len // self.unit_tokens
        self.best = start.templates
        self.num_bins = start.templates.total()
        self.bound = start.lower_bound
        self.certificate: DualCertificate | None = None
        self.is_exhausted = False  # whether branch and bound tried all bins
        self._repacking: Repacking | None = None

    def packed(self) -> Packed:
        """Returns a `Packed` of this problem without any bin."""
        return Packed(self.lengths_in_units, self.counts, self.capacity_in_units, self.limit)

    def keep_in_units(self, templates: Counter[Template]) -> None:
        """Keeps a plan whose lengths are in units, if it has fewer bins than the best."""
        unit = self.unit_tokens
        self.keep(Counter({tuple(n * unit for n in template): times for template, times in templates.items()}))

    def keep(self, templates: Counter[Template]) -> None:
        """Keeps a plan if it has fewer bins than the best."""
        if templates.total() < self.num_bins:
            self.best, self.num_bins = templates, templates.total()

    def repack(self, steps: int, budget: Budget) -> None:
        """Searches for a plan with fewer bins by repacking, and keeps it. A second call continues the first search.

        Raises:
            OutOfTimeError: the deadline passed.
        """
        if self._repacking is None:
            unit = self.unit_tokens
            in_units = {tuple(n // unit for n in template): times for template, times in self.best.items()}
            self._repacking = Repacking(in_units, self.capacity_in_units, self.limit)
        try:
            with budget.lent(steps) as lent, suppress(OutOfWorkError):
                self._repacking.search(self.bound, lent)
        finally:
            if self._repacking.num_bins < self.num_bins:
                self.keep_in_units(self._repacking.templates())

    @property
    def repacking_pays(self) -> bool:
        """Whether there are few enough sequences for repacking, and the gap is too large to stop."""
        return sum(self.counts) <= MOST_SEQUENCES and self.gap > NEAR_GAP

    def keep_bound_of(self, pricing: Pricing) -> None:
        """Keeps the bound that a pricing proves, if it is better than the best."""
        prices = {
            length: worth for (length, _), worth in zip(self.pairs, pricing.prices.tolist(), strict=True) if worth
        }
        if not prices:
            return
        self.keep_certificate(DualCertificate(prices=prices, bin_worth=pricing.best_worth))

    def keep_certificate(self, certificate: DualCertificate) -> None:
        """Keeps a certificate, if it proves a better bound than the best."""
        bound = certificate.bound(dict(self.pairs))
        if bound > self.bound:
            self.bound, self.certificate = bound, certificate

    @property
    def gap(self) -> float:
        """Bins of the best plan above the bound, as a share of it."""
        return (self.num_bins - self.bound) / self.bound

    @property
    def done(self) -> bool:
        """Whether the best plan is proven optimal."""
        return self.num_bins == self.bound


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
    search = _Search(pairs, max_seq_len, limit, start)
    if search.done:
        return start
    if search.capacity_in_units > _LARGEST_CAPACITY:
        largest = _LARGEST_CAPACITY * search.unit_tokens
        note = f"optimal: max_seq_len {max_seq_len} is beyond {largest}; kept as it was"
        return replace(start, note=note)
    cut_off = False
    budget = Budget(_STEPS, min(time_limit_seconds, _MOST_SECONDS))
    try:
        note = _improved(search, budget, patience)
    except OutOfWorkError:
        note = "stopped at its limit of work"
    except OutOfTimeError:
        cut_off = not search.done
        note = f"ended by the time limit of {time_limit_seconds:g} s"
        if (seconds := budget.seconds_of_all()) < inf:
            note += f"; all its work takes at most about {max(seconds, time_limit_seconds):.2g} s"
    left = search.num_bins - search.bound
    return PackerResult(
        templates=search.best,
        algorithm="optimal" if search.num_bins < start.templates.total() else start.algorithm,
        lower_bound=search.bound,
        certificate=search.certificate,
        cut_off=cut_off,
        note=f"optimal: {note}; {left} {'bin' if left == 1 else 'bins'} above the bound" if left else "",
    )


def _improved(search: _Search, budget: Budget, patience: float) -> str:
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


def _solve_coarsely(search: _Search, budget: Budget) -> None:
    """Finds a plan and a bound by coarse problems, first with few classes, then with more if the gap is still large."""
    if search.gap <= _FAR_GAP:
        return
    for num_classes in _NUMBERS_OF_CLASSES:
        if 2 * num_classes > len(search.pairs) or search.gap <= _NEAR_GAP:
            return
        classes = coarse_classes(search.pairs, num_classes)
        upper = _coarse_search(search, classes, "up")
        with budget.lent(int(_SHARE_FOR_COARSE * budget.left)) as lent, suppress(OutOfWorkError):
            _solve_and_round(upper, lent)
        search.keep(refined(upper.best, classes))
        lower = _coarse_search(search, classes, "down")
        with budget.lent(int(_SHARE_FOR_COARSE * budget.left)) as lent, suppress(OutOfWorkError):
            _generate_columns(lower, _first_master(lower), lent)
        if lower.certificate:
            prices = refined_prices(lower.certificate.prices, classes)
            search.keep_certificate(DualCertificate(prices=prices, bin_worth=lower.certificate.bin_worth))


def _coarse_search(search: _Search, classes: list[LengthClass], direction: Literal["up", "down"]) -> _Search:
    """Returns the problem with the lengths of each class rounded up or down."""
    pairs = rounded(classes, direction)
    return _Search(pairs, search.max_seq_len, search.limit, first_plan(pairs, search.max_seq_len, search.limit))


def _solve_and_round(search: _Search, budget: Budget) -> None:
    """Solves the master problem, and rounds its solution in each way until the plan is proven optimal.

    Raises:
        OutOfWorkError: the budget was spent before the master problem or the rounding was done.
        OutOfTimeError: the deadline passed before that.
    """
    master = _first_master(search)
    ended: OutOfWorkError | OutOfTimeError | None = None
    budget.reserved = int(_SHARE_FOR_ROUNDING * budget.left)
    try:
        _generate_columns(search, master, budget)
    except (OutOfWorkError, OutOfTimeError) as error:
        ended = error
    budget.reserved = 0
    if search.done:
        return
    packed = search.packed()
    round_down(packed, master.columns, master.uses, master.scale)
    search.keep_in_units(packed.completed())
    if search.done:
        return
    if isinstance(ended, OutOfTimeError):
        raise ended
    left_after_rounding = packed.copy()
    try:
        dive(master, packed, budget)
    finally:  # an error comes between two bins, so what is packed by then is a valid plan
        search.keep_in_units(packed.completed())
    if not search.done:
        _branch(search, left_after_rounding, budget)
    if ended:
        raise ended


def _first_master(search: _Search) -> Master:
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


def _generate_columns(search: _Search, master: Master, budget: Budget) -> None:
    """Runs column generation: solves the master problem and adds bins until no new bin improves it."""
    lengths = np.array(search.lengths_in_units, dtype=np.int64)
    capacity = search.capacity_in_units
    scale = 2 ** min(_PRICE_BITS, _WORTH_BITS - capacity.bit_length())
    while True:
        master.solve(budget)
        # Integer prices make pricing exact, so its bound holds even if the solver's solution is not exact.
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
    least = scale + scale // _GAIN_DIVISOR
    return [pricing.bin_with(index) for index in order.tolist() if pricing.worth_with[index] > least]


def _branch(search: _Search, left_after_rounding: Packed, budget: Budget) -> None:
    """Improves the plan by branch and bound over all possible bins, if these are few."""
    packed = search.packed() if max(search.counts) <= _LARGEST_WHOLE_COUNT else left_after_rounding
    if max(packed.left) > _LARGEST_WHOLE_COUNT:
        return
    columns = enumerate_bins(search.lengths_in_units, packed.left, search.capacity_in_units, search.limit)
    if columns:
        uses, is_best = solve_whole(columns, packed.left, budget)
        search.is_exhausted = is_best and not packed.templates
        for column, use in zip(columns, uses or [], strict=False):
            packed.use_trimmed(column, int(use))
        search.keep_in_units(packed.completed())
