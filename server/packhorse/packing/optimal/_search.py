"""A problem of column generation, with the best plan and the best bound that its searches have found so far.

Leaves the searches, and their order, to `column_generation`.
"""

from collections import Counter
from contextlib import suppress
from math import gcd

from packhorse.packing.first_plan import NEAR_GAP
from packhorse.packing.optimal._budget import Budget, OutOfWorkError
from packhorse.packing.optimal._pricing import Pricing
from packhorse.packing.optimal._rounding import Packed
from packhorse.packing.optimal.repacking import MOST_SEQUENCES, Repacking
from packhorse.packing.plan import DualCertificate, PackerResult, Template


class Search:
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
        self.is_exhausted = False  # whether branch and bound, in `column_generation`, tried all bins
        self._repacking: Repacking | None = None

    def packed(self) -> Packed:
        """Returns the whole problem to be packed bin by bin; no bin is chosen yet."""
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
        """Keeps the bound that prices and the greatest worth of a bin prove, if it is better than the best."""
        prices = {
            length: price for (length, _), price in zip(self.pairs, pricing.prices.tolist(), strict=True) if price
        }
        if prices:
            self.keep_certificate(DualCertificate(prices=prices, bin_worth=pricing.best_worth))

    def keep_certificate(self, certificate: DualCertificate) -> None:
        """Keeps a certificate, if it proves a better bound than the best."""
        bound = certificate.bound(dict(self.pairs))
        if bound > self.bound:
            self.bound, self.certificate = bound, certificate

    @property
    def gap(self) -> float:
        """Bins of the best plan above the bound, as a share of the bound."""
        return (self.num_bins - self.bound) / self.bound

    @property
    def done(self) -> bool:
        """Whether the best plan is proven optimal."""
        return self.num_bins == self.bound
