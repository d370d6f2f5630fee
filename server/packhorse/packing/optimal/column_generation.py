"""Plans with the fewest bins, or nearly, and a proven bound: Gilmore-Gomory column generation.

Owns the loop between the master problem and pricing, what it proves, when it stops, the coarse problems that come
first, and the search for the last bins. Leaves its steps to `_master`, `_pricing`, `_rounding` and `repacking`, and
checking proofs to `bounds`. Needs HiGHS and Numba, so `registry` imports it only when it is asked for.

A coarse problem has a few classes of neighbouring lengths in place of many lengths. A plan for lengths rounded up to
the longest of their class is a plan for the lengths themselves; a bound for lengths rounded down is a bound for them.

Sources: P. C. Gilmore, R. E. Gomory, "A linear programming approach to the cutting-stock problem", Operations Research
9 (1961) and 11 (1963).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import ceil, gcd, inf
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from packhorse.packing.best_fit import NEAR_GAP, first_plan
from packhorse.packing.optimal._budget import Budget, OutOfTimeError, OutOfWorkError
from packhorse.packing.optimal._master import Column, Master
from packhorse.packing.optimal._pricing import Pricing, price
from packhorse.packing.optimal._rounding import Packed, dive, enumerate_bins, round_down, solve_whole
from packhorse.packing.optimal.repacking import MOST_SEQUENCES, Repacking
from packhorse.packing.plan import DualCertificate, Packing, Template, canonical_templates

_COLUMNS_PER_ROUND = 60
"""Bins added at once: the best ones with each of that many lengths. Twice as many made the linear programs slower."""
_LP_TOLERANCE = 1e-8
"""The master problem is solved when its value is this close to the proven bound, as a share of it."""
_LARGEST_CAPACITY = 2**24
"""Tokens (after dividing by the lengths' common divisor) up to which pricing's tables fit into memory."""
_STEPS = 40 * 10**9
"""The work that a search may do: about half a minute of one core."""
_CLASSES = (128, 512)
"""Classes of neighbouring lengths in coarse problems, which take a few tenths of a second and a few seconds."""
_FAR_GAP = 5e-3
"""How far above the bound a plan must be for coarse problems to pay."""
_NEAR_GAP = 1e-3
"""How near it a plan must be for finer ones to be left out."""
_SHARE_FOR_COARSE = 0.15
"""Share of the work for each coarse problem."""
_SHARE_FOR_ROUNDING = 0.15
"""Share of that work that is left for rounding if the master problem is not solved before."""
_SHARE_FOR_REPACKING = 0.025
"""Share of the work for repacking before the master problem is solved. It takes at most as many steps as the cube of
the number of lengths: a tenth of what the master problem takes."""
_STEPS_AFTER = 16 * 10**9
"""The most work for repacking afterwards, less than 10 s; what it solves at all seldom takes 2 s."""
_LARGEST_WHOLE_COUNT = 10**6
"""Counts up to which branch and bound sees the whole problem: above, its tolerances are near one sequence."""


class _Search:
    """What is kept when the budget is spent: the best plan and the best bound."""

    def __init__(self, pairs: list[tuple[int, int]], capacity: int, limit: int, start: Packing) -> None:
        self.divisor = gcd(*(length for length, _ in pairs)) or 1
        self.pairs = pairs
        self.max_seq_len = capacity
        self.lengths = [length // self.divisor for length, _ in pairs]
        self.counts = [count for _, count in pairs]
        self.capacity = capacity // self.divisor
        self.limit = limit
        self.best = start.templates
        self.num_bins = start.templates.total()
        self.bound = start.lower_bound
        self.certificate: DualCertificate | None = None
        self.is_exhausted = False
        self._repacking: Repacking | None = None

    def packed(self) -> Packed:
        return Packed(self.lengths, self.counts, self.capacity, self.limit)

    def offer(self, templates: Counter[Template]) -> None:
        """Keeps a plan in divided lengths that has fewer bins than the best."""
        self.keep(Counter({tuple(n * self.divisor for n in template): times for template, times in templates.items()}))

    def keep(self, templates: Counter[Template]) -> None:
        """Keeps a plan that has fewer bins than the best."""
        if templates.total() < self.num_bins:
            self.best, self.num_bins = templates, templates.total()

    def repack(self, steps: int, budget: Budget) -> None:
        """Searches for plans with fewer bins by repacking, and keeps the best; goes on where it ended before.

        Raises:
            OutOfTimeError: the deadline passed.
        """
        if self._repacking is None:
            divided = {tuple(n // self.divisor for n in template): times for template, times in self.best.items()}
            self._repacking = Repacking(divided, self.capacity, self.limit)
        try:
            with budget.lent(steps) as lent, suppress(OutOfWorkError):
                self._repacking.search(self.bound, lent)
        finally:
            if self._repacking.num_bins < self.num_bins:
                self.offer(self._repacking.templates())

    @property
    def is_small(self) -> bool:
        """Whether one bin more than needed is a share that counts, so that repacking pays."""
        return sum(self.counts) <= MOST_SEQUENCES and self.gap > NEAR_GAP

    def prove(self, pricing: Pricing) -> None:
        """Keeps the bound that a pricing proves, where it is the best."""
        prices = {
            length: worth for (length, _), worth in zip(self.pairs, pricing.prices.tolist(), strict=True) if worth
        }
        if not prices:
            return
        self.trust(DualCertificate(prices=prices, bin_worth=pricing.best_worth))

    def trust(self, certificate: DualCertificate) -> None:
        """Keeps a certificate that proves more than is known."""
        bound = certificate.bound(dict(self.pairs))
        if bound > self.bound:
            self.bound, self.certificate = bound, certificate

    @property
    def gap(self) -> float:
        return (self.num_bins - self.bound) / self.bound

    @property
    def done(self) -> bool:
        return self.num_bins == self.bound


def improve(
    pairs: list[tuple[int, int]],
    capacity: int,
    limit: int,
    start: Packing,
    time_limit_seconds: float,
    patience: float = 1.0,
) -> Packing:
    """Improves a plan until it is proven optimal, nothing is left to try, or its work is done.

    Args:
        pairs: (length, count) by descending length, as `checked_counts` returns them.
        capacity: max_seq_len, in tokens.
        limit: the most sequences in a bin.
        start: a plan of `pairs` with a bound, such as `first_plan` makes; its templates are the first columns.
        time_limit_seconds: a safety net for slow machines, checked every few tenths of a second; a plan that it ends
            is marked as cut off.
        patience: share of `_STEPS_AFTER` that the search for the last bins may take.

    Returns:
        The best plan and the best bound, `start`'s own included.
    """
    search = _Search(pairs, capacity, limit, start)
    if search.done:
        return start
    if search.capacity > _LARGEST_CAPACITY:
        note = f"optimal: max_seq_len {capacity} is beyond {_LARGEST_CAPACITY * search.divisor}; kept as it was"
        return replace(start, note=note)
    cut_off = False
    budget = Budget(_STEPS, min(time_limit_seconds, 10.0**9))
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
    return Packing(
        templates=search.best,
        algorithm="optimal" if search.num_bins < start.templates.total() else start.algorithm,
        lower_bound=search.bound,
        certificate=search.certificate,
        cut_off=cut_off,
        note=f"optimal: {note}; {left} {'bin' if left == 1 else 'bins'} above the bound" if left else "",
    )


def _improved(search: _Search, budget: Budget, patience: float) -> str:
    """Improves a plan, and returns why it stopped."""
    if search.is_small:
        search.repack(min(int(_SHARE_FOR_REPACKING * budget.left), len(search.pairs) ** 3), budget)
    if not search.done:
        _solve_coarsely(search, budget)
    if not search.done:
        _run(search, budget)
    if search.is_exhausted:
        return "branch and bound over all bins found no plan with fewer"
    if not search.is_small:
        return f"stopped near the bound, or with more than {MOST_SEQUENCES:,} sequences"
    search.repack(int(patience * _STEPS_AFTER), budget)
    return "stopped at its limit of work"


def _solve_coarsely(search: _Search, budget: Budget) -> None:
    """Finds a plan and a bound by coarse problems, and finer ones until both are near."""
    if search.gap <= _FAR_GAP:
        return
    for num_classes in _CLASSES:
        if 2 * num_classes > len(search.pairs) or search.gap <= _NEAR_GAP:
            return
        parts = coarse_classes(search.pairs, num_classes)
        upper = _coarse_search(search, parts, "up")
        with budget.lent(int(_SHARE_FOR_COARSE * budget.left)) as lent, suppress(OutOfWorkError):
            _run(upper, lent)
        search.keep(refined(upper.best, parts))
        lower = _coarse_search(search, parts, "down")
        with budget.lent(int(_SHARE_FOR_COARSE * budget.left)) as lent, suppress(OutOfWorkError):
            for _ in _rounds(lower, _master(lower), lent):
                pass
        if lower.certificate:
            worth = lower.certificate.prices
            prices = {length: worth[part[-1][0]] for part in parts for length, _ in part if part[-1][0] in worth}
            search.trust(DualCertificate(prices=prices, bin_worth=lower.certificate.bin_worth))


def _coarse_search(search: _Search, parts: list[list[tuple[int, int]]], direction: Literal["up", "down"]) -> _Search:
    pairs = rounded(parts, direction)
    return _Search(pairs, search.max_seq_len, search.limit, first_plan(pairs, search.max_seq_len, search.limit))


def _run(search: _Search, budget: Budget) -> None:
    master = _master(search)
    uses: list[float] = []
    ended: OutOfWorkError | OutOfTimeError | None = None
    budget.reserved = int(_SHARE_FOR_ROUNDING * budget.left)
    try:
        for solved in _rounds(search, master, budget):
            uses = solved
    except (OutOfWorkError, OutOfTimeError) as error:
        ended = error
    budget.reserved = 0
    if search.done:
        return
    packed = search.packed()
    round_down(packed, master.columns, uses, master.scale)
    search.offer(packed.completed())
    if search.done:
        return
    if isinstance(ended, OutOfTimeError):
        raise ended
    left_after_rounding = packed.copy()
    try:
        dive(master, packed, budget)
    finally:  # between two bins, so what is packed by then is whole
        search.offer(packed.completed())
    if not search.done:
        _branch(search, left_after_rounding, budget)
    if ended:
        raise ended


def _master(search: _Search) -> Master:
    """Returns the master problem with the plan's own bins, and a bin full of each length.

    So each length is covered, and no price exceeds 1.
    """
    index_of = {length: index for index, (length, _) in enumerate(search.pairs)}
    columns = [tuple(sorted(Counter(index_of[length] for length in template).items())) for template in search.best]
    columns += [((i, min(search.limit, search.capacity // n)),) for i, n in enumerate(search.lengths)]
    master = Master(len(search.lengths), columns)
    master.demand(search.counts)
    return master


def _rounds(search: _Search, master: Master, budget: Budget) -> Iterator[list[float]]:
    """Column generation: yields the uses of each solved master problem, until it cannot be improved."""
    lengths = np.array(search.lengths, dtype=np.int64)
    scale = 2 ** min(40, 61 - search.capacity.bit_length())
    while True:
        master.solve(budget)
        yield master.uses
        # Whole prices make pricing exact: what it proves holds whatever the solver's tolerances were.
        prices = np.floor(np.minimum(master.prices, 1.0) * scale).astype(np.int64)
        pricing = price(lengths, prices, search.capacity, search.limit, budget)
        search.prove(pricing)
        value = master.num_bins
        if ceil(value * (1 - 1e-12) - 1e-6) <= search.bound or value - search.bound <= _LP_TOLERANCE * value:
            return
        if search.done or not master.add(_attractive(pricing, scale)):
            return


def _attractive(pricing: Pricing, scale: int) -> list[Column]:
    """The best bins with each of the lengths that have the best, if they are worth more than they cost."""
    order: NDArray[np.intp] = np.argsort(-pricing.worth_with, kind="stable")[:_COLUMNS_PER_ROUND]
    least = scale + scale // 10**9
    return [pricing.bin_with(index) for index in order.tolist() if pricing.worth_with[index] > least]


def _branch(search: _Search, left_after_rounding: Packed, budget: Budget) -> None:
    """Branch and bound over every bin that is possible, where these are few."""
    packed = search.packed() if max(search.counts) <= _LARGEST_WHOLE_COUNT else left_after_rounding
    if max(packed.left) > _LARGEST_WHOLE_COUNT:
        return
    columns = enumerate_bins(search.lengths, packed.left, search.capacity, search.limit)
    if columns:
        uses, is_best = solve_whole(columns, packed.left, budget)
        search.is_exhausted = is_best and not packed.templates
        for column, use in zip(columns, uses or [], strict=False):
            packed.use_trimmed(column, int(use))
        search.offer(packed.completed())


def coarse_classes(pairs: Sequence[tuple[int, int]], most: int) -> list[list[tuple[int, int]]]:
    """Divides (length, count) pairs by descending length into at most `most` classes of neighbours.

    The least limit that leaves so few classes bounds the tokens that rounding up adds in each class.
    """
    too_small, enough = -1, pairs[0][0] * sum(count for _, count in pairs)
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        if len(_divided(pairs, middle)) <= most:
            enough = middle
        else:
            too_small = middle
    return _divided(pairs, enough)


def rounded(parts: Sequence[Sequence[tuple[int, int]]], direction: Literal["up", "down"]) -> list[tuple[int, int]]:
    """Returns one (length, count) pair for each class: its longest or its shortest length, and all its sequences."""
    index = 0 if direction == "up" else -1
    return [(part[index][0], sum(count for _, count in part)) for part in parts]


def refined(templates: Mapping[Template, int], parts: Sequence[Sequence[tuple[int, int]]]) -> Counter[Template]:
    """Puts the lengths themselves into a plan for those rounded up, longest first; equal bins stay together."""
    left = {part[0][0]: [list(pair) for pair in reversed(part)] for part in parts}  # the longest at the end
    refined: Counter[Template] = Counter()
    for template, multiplicity in canonical_templates(templates):
        copies_of = Counter(template)
        while multiplicity:
            times = min(multiplicity, *(left[length][-1][1] // copies for length, copies in copies_of.items()))
            times = max(times, 1)  # for 0, a bin of its own, with sequences of two lengths of a class
            content: list[int] = []
            for length, copies in copies_of.items():
                content += _taken(left[length], copies, times)
            refined[tuple(content)] += times
            multiplicity -= times
    return refined


def _taken(left: list[list[int]], copies: int, times: int) -> list[int]:
    """Takes `copies` sequences for each of `times` equal bins, and returns their lengths."""
    lengths: list[int] = []
    while copies:
        length, count = left[-1]
        taken = min(copies, count // times)
        lengths += [length] * taken
        copies -= taken
        left[-1][1] -= taken * times
        if not left[-1][1]:
            left.pop()
    return lengths


def _divided(pairs: Sequence[tuple[int, int]], most_added: int) -> list[list[tuple[int, int]]]:
    """Classes in which rounding up adds at most `most_added` tokens."""
    parts: list[list[tuple[int, int]]] = []
    added = most_added + 1
    for length, count in pairs:
        if parts:
            added += count * (parts[-1][0][0] - length)
        if added > most_added:
            parts.append([])
            added = 0
        parts[-1].append((length, count))
    return parts
