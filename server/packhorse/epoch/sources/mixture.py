"""Mixtures: several components served as one, in exact proportions that can change during a run.

Owns `Mixture`: the stages at which weights change, how many bins each component has given before any epoch, and the
chain of digests. Leaves components and stages to `stages`, what is due to each component to `_dues`, the bins of one
epoch to `mixture_epoch`, and which position gets which component to `_split_tree`.

A draw is `bins_per_draw` consecutive bins of one component, by default a single bin. Callers give and get positions and
numbers of bins; segments, limits, and what is due or given are counted in draws. A segment is a range of an epoch's
draws in which the weights are the same. What is due to a component is its exact share of the draws so far; a debt is
what was due to it but not given.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise, zip_longest
from math import ceil, floor
from operator import add
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.epoch.seeds import checked_seed, derive_key
from packhorse.epoch.sources._component_order import ComponentOrder
from packhorse.epoch.sources._dues import Dues
from packhorse.epoch.sources._split import DEBT_UNITS
from packhorse.epoch.sources._split_tree import SplitTree
from packhorse.epoch.sources.mixture_epoch import MixtureEpoch, Segment
from packhorse.epoch.sources.stages import (
    MAX_BINS,
    Component,
    Stage,
    WhenOut,
    bin_shares,
    check_components,
    check_whole_draws,
    firsts_of,
)
from packhorse.topology import checked_integer

Chain = tuple[tuple[int, str], ...]
"""For each stage, its first position in the run, and the digest of the stage and of everything before it."""

_DIGITS = 16  # hexadecimal digits of a stage's digest


class _StageOfEpoch(NamedTuple):
    """The draws of an epoch that one stage decides; draws are counted in the run."""

    number: int
    """Number of the stage."""
    first: int
    """First draw."""
    end: int
    """First draw after them."""


class _StageOrder(NamedTuple):
    """The component of each draw of a stage, if components are repeated."""

    order: ComponentOrder
    """The order, which begins with the stage."""
    before: list[int]
    """Number of draws that each component has given in the run before the stage."""


class Mixture:
    """Several components served as one, epoch by epoch.

    A position of the run is epoch · num_bins + position. Stages are ranges of such positions, so weights can change
    within an epoch; see `appended`.

    Example:
        >>> from packhorse.epoch import EpochView, PlanIndex
        >>> plan = PlanIndex.build({(4,): 60}, {4: 60}, 4)
        >>> parts = [
        ...     Component.of(name, lambda epoch: EpochView(plan, np.arange(60), seed=1, epoch=epoch))
        ...     for name in ("web", "code")
        ... ]
        >>> mixture = Mixture(parts, [Stage({"web": 2, "code": 1})], seed=7, num_bins=90)
        >>> np.bincount(mixture.epoch(0).bins(range(90)).component_ids)
        array([60, 30])

    Args:
        components: components with distinct names; their order gives `Bins.component_ids`.
        stages: stages in order; the last has no `until`.
        seed: decides which positions each component gets; in [0, 2^64).
        num_bins: bins in an epoch. The default follows from the first stage's weights. With STOP it is the number of
            bins before a component runs out. Otherwise it is that of all components together, so that with REWEIGH each
            bin comes once.
        when_out: what happens after the last bin of a component's epoch, or of its `most_epochs`.
        bins_per_draw: consecutive bins that come from one component, if whole steps are of one component. Weights are
            then shares of draws, which are as exact; `num_bins` and the ends of stages must be multiples of it. Unless
            components are repeated, the last bins of a component's epoch are left out if they do not fill a draw.

    Raises:
        ValueError: a stage names an unknown component, weights are negative, all 0 or too far apart, stages are not in
            order, a number of bins is not a multiple of a draw, a component runs out within an epoch with STOP, or all
            components of a stage do with REWEIGH. The message names the problem.
    """

    def __init__(
        self,
        components: Sequence[Component],
        stages: Sequence[Stage],
        *,
        seed: int,
        num_bins: int | None = None,
        when_out: WhenOut | str = WhenOut.REPEAT,
        bins_per_draw: int = 1,
    ) -> None:
        self.components = tuple(components)
        self.stages = tuple(stages)
        self.seed = checked_seed("seed", seed)
        self.when_out = WhenOut(when_out)
        check_components(self.components)
        self.bins_per_draw = checked_integer("bins_per_draw", bins_per_draw, 1, MAX_BINS)
        self._firsts = firsts_of(self.stages, bins_per_draw)
        self._first_draws = [first // bins_per_draw for first in self._firsts]
        self._dues = [Dues(bin_shares(stage, self.components, number)) for number, stage in enumerate(self.stages)]
        limits = [each.num_bins * self._most_epochs(each) // bins_per_draw for each in self.components]
        if self.when_out is not WhenOut.REPEAT and 0 in limits and bins_per_draw > 1:
            raise ValueError(
                f"{self.components[limits.index(0)].name} has fewer bins than the {bins_per_draw} of a step, which are "
                "of one component: leave it out, or set when_out to repeat"
            )
        self._limits = np.array(limits, dtype=np.int64)  # most draws of each component in an epoch, if not repeated
        self.num_bins = self._default_num_draws() * bins_per_draw if num_bins is None else num_bins
        checked_integer("num_bins", self.num_bins, 1, MAX_BINS)
        check_whole_draws("num_bins", self.num_bins, bins_per_draw)
        self._draws_per_epoch = self.num_bins // bins_per_draw
        self._epochs = lru_cache(maxsize=1)(self._epoch)  # of this mixture only; a decorator would share it among all
        if self.when_out is not WhenOut.REPEAT:
            self._check_enough()

    @property
    def num_datasets(self) -> int:
        """Number of datasets, including those of components that are mixtures."""
        return sum(component.num_datasets for component in self.components)

    @property
    def num_templates(self) -> int:
        """Number of templates of all components."""
        return sum(component.num_templates for component in self.components)

    @property
    def chain(self) -> Chain:
        """Each stage's first position and digest. Two runs are equal up to the first difference of their chains."""
        facts: dict[str, object] = {"version": 3, "num_bins": self.num_bins, "when_out": self.when_out}
        if self.bins_per_draw > 1:
            facts["bins_per_draw"] = self.bins_per_draw
        chain = []
        # The number of a component's epochs is among its facts only if it is more than 1.
        most_epochs = [[most] if (most := self._most_epochs(component)) > 1 else [] for component in self.components]
        for first, dues in zip(self._firsts, self._dues, strict=True):
            facts["from"] = first
            facts["shares"] = [
                [number, component.digest, component.num_bins, part, *most_epochs[number]]
                for number, (component, part) in enumerate(zip(self.components, dues.parts, strict=True))
                if part
            ]
            digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:_DIGITS]
            chain.append((first, digest))
            facts = {"after": digest}  # which covers the facts of the whole mixture, and all stages so far
        return tuple(chain)

    def appended(self, stage: Stage, position: int, components: Sequence[Component] = ()) -> "Mixture":
        """Returns a mixture with other weights from a position of the run on. Nothing before this position changes.

        Args:
            stage: the weights from there on, without `until`.
            position: a position of the run, after the first one of the current last stage.
            components: new components, which are added after the others.

        Raises:
            ValueError: the position lies in an earlier stage, or anything that a new mixture refuses.
        """
        checked_integer("position", position, 1)
        if position <= self._firsts[-1]:
            raise ValueError(
                f"position {position} is not beyond {self._firsts[-1]}, where the last stage begins: stages are only "
                "appended; choose a later position"
            )
        return Mixture(
            (*self.components, *components),
            (*self.stages[:-1], replace(self.stages[-1], until=position), stage),
            seed=self.seed,
            num_bins=self.num_bins,
            when_out=self.when_out,
            bins_per_draw=self.bins_per_draw,
        )

    def epoch(self, number: int) -> MixtureEpoch:
        """Returns an epoch, by its number in [0, 2^64); the last one is remembered."""
        return self._epochs(checked_seed("epoch", number))

    def _epoch(self, number: int) -> MixtureEpoch:
        return MixtureEpoch(self.components, self._segments(number), self._begins(number), self.bins_per_draw)

    def _segments(self, epoch: int) -> list[Segment]:
        """Returns the segments of an epoch: one for each stage in it, and more if components leave."""
        begin = epoch * self._draws_per_epoch
        if self.when_out is not WhenOut.REPEAT:
            return self._segments_without_repeats(epoch, begin)
        segments: list[Segment] = []
        before = np.zeros(len(self.components), dtype=np.int64)
        for stage in self._stages_of(epoch):
            order = self._stage_orders[stage.number].order
            offset = stage.first - self._first_draws[stage.number]
            segments.append(_segment(order, stage.first - begin, stage.end - begin, offset, before))
            before = before + segments[-1].counts
        return segments

    def _segments_without_repeats(self, epoch: int, begin: int) -> list[Segment]:
        """Returns the segments of an epoch in which components are not repeated. A new one begins when one leaves.

        Every epoch begins without debts. Under STOP a component leaves only because of rounding: a stage may take a bin
        more from it than is due.
        """
        segments: list[Segment] = []
        before = np.zeros(len(self.components), dtype=np.int64)
        due = [Fraction(0)] * len(self.components)  # draws due to each component in this epoch before the stage
        for stage in self._stages_of(epoch):
            parts, num_draws = self._dues[stage.number].parts, stage.end - stage.first
            has_weight = np.array(parts, dtype=object) > 0
            out_at = stage.first - begin + int((self._limits - before)[has_weight].sum())
            self._check_enough_left(stage.number, epoch, out_at=out_at, end=stage.end - begin)
            not_due_yet = [max(limit - num, Fraction(0)) for limit, num in zip(self._limits.tolist(), due, strict=True)]
            dues = Dues(parts, not_due_yet)
            edges = {draw for draw in map(ceil, dues.leave_at) if 0 < draw < num_draws}
            for first, end in pairwise([0, *sorted(edges), num_draws]):  # draws of the stage
                caps = np.where(has_weight, self._limits - before, 0).tolist()
                debts = _debts(map(add, due, dues.due(first)), before.tolist())
                first_in_epoch = stage.first - begin + first
                tree = SplitTree(dues.weights_at(first), debts, self._key(epoch, first_in_epoch), caps)
                order = ComponentOrder(tree, end - first)
                segments.append(_segment(order, first_in_epoch, first_in_epoch + end - first, 0, before))
                before = before + segments[-1].counts
            due = list(map(add, due, dues.due(num_draws)))
        return segments

    @cached_property
    def _stage_orders(self) -> list[_StageOrder]:
        """The order of each stage, if components are repeated.

        If a component got fewer or more draws than were due in earlier stages, it first gets or gives back the
        difference.
        """
        orders = []
        before, due = [0] * len(self.components), [Fraction(0)] * len(self.components)
        for dues, first, until in zip_longest(self._dues, self._first_draws, self._first_draws[1:]):
            tree = SplitTree(dues.parts, _debts(due, before), self._key(0, first))
            orders.append(_StageOrder(ComponentOrder(tree), before))
            if until is not None:
                before = list(map(add, before, tree.before(until - first)))
                due = list(map(add, map(_rounded, due), dues.due(until - first)))
        return orders

    def _stages_of(self, epoch: int) -> list[_StageOfEpoch]:
        """Returns the stages in an epoch, in order."""
        begin, end = epoch * self._draws_per_epoch, (epoch + 1) * self._draws_per_epoch
        stages = [
            _StageOfEpoch(number, max(first, begin), min(until, end))
            for number, (first, until) in enumerate(pairwise([*self._first_draws, end]))
        ]
        return [stage for stage in stages if stage.first < stage.end]

    def _key(self, epoch: int, first: int) -> int:
        """Returns the key of an order that begins at the draw `first` of an epoch, or of the run if it spans epochs."""
        return derive_key(self.seed, epoch, f"mixture {first}")

    def _check_enough_left(self, number: int, epoch: int, *, out_at: int, end: int) -> None:
        """Raises a ValueError if all components of a stage leave at draw `out_at`, before the stage's end."""
        if out_at < end:
            out_at *= self.bins_per_draw
            raise ValueError(
                f"all components of stage {number} have given their bins at position {out_at} of epoch {epoch}: give "
                f"an epoch at most {out_at} bins, give another component a weight, or set when_out to repeat"
            )

    def _begins(self, epoch: int) -> list[tuple[int, int]]:
        """Returns the (epoch, position) of each component at which it continues when an epoch of the mixture begins."""
        if self.when_out is not WhenOut.REPEAT:
            return [(epoch * self._most_epochs(component), 0) for component in self.components]
        begin = epoch * self._draws_per_epoch
        number = bisect_right(self._first_draws, begin) - 1
        order, before = self._stage_orders[number]
        totals = map(add, before, order.before(begin - self._first_draws[number]))
        return [
            divmod(total * self.bins_per_draw, max(component.num_bins, 1))
            for total, component in zip(totals, self.components, strict=True)
        ]

    def _most_epochs(self, component: Component) -> int:
        """Returns the number of a component's epochs that one epoch of the mixture has before the component is out."""
        return 1 if self.when_out is WhenOut.REPEAT else component.most_epochs

    def _default_num_draws(self) -> int:
        """Returns the draws of an epoch whose number of bins is not given; see the argument `num_bins`."""
        dues = self._dues[0]
        parts_and_limits = [
            (part, limit) for part, limit in zip(dues.parts, self._limits.tolist(), strict=True) if part
        ]
        if self.when_out is WhenOut.STOP:
            return min(limit * dues.whole // part for part, limit in parts_and_limits)
        return sum(limit for _, limit in parts_and_limits)

    def _check_enough(self) -> None:
        """Raises a ValueError if an epoch takes more bins than there are.

        Only epochs in which a stage begins, and those after them, are checked: all others are like one of these.
        """
        for epoch in sorted({first // self.num_bins + after for first in self._firsts for after in (0, 1)}):
            if self.when_out is WhenOut.STOP:
                self._check_due(epoch)
            stages = self._stages_of(epoch)
            if len(stages) > 1:
                self._segments(epoch)
            else:
                number = stages[0].number
                limits = self._limits[np.array(self._dues[number].parts, dtype=object) > 0]
                self._check_enough_left(number, epoch, out_at=int(limits.sum()), end=self._draws_per_epoch)

    def _check_due(self, epoch: int) -> None:
        """Raises a ValueError if more bins of a component are due in an epoch than it has.

        What is due does not depend on the seed, so a mixture is refused for every run or for none.
        """
        due = [Fraction(0)] * len(self.components)
        for stage in self._stages_of(epoch):
            due = list(map(add, due, self._dues[stage.number].due(stage.end - stage.first)))
        for component, limit, num_due in zip(self.components, self._limits.tolist(), map(floor, due), strict=True):
            if num_due > limit:
                raise ValueError(
                    f"{component.name} has {limit * self.bins_per_draw} bins and would give "
                    f"{num_due * self.bins_per_draw} in epoch {epoch} of the mixture: lower its weight, give an epoch "
                    f"fewer than {self.num_bins} bins, or set when_out to repeat"
                )


def first_difference(one: Chain, other: Chain) -> int | None:
    """Returns the position of the run at which two mixtures begin to differ; None if they never do.

    A cursor at or before it is valid in both.

    Example:
        >>> first_difference(((0, "aa"), (500, "bb")), ((0, "aa"),))
        500

    Args:
        one: chain of a mixture.
        other: chain of another mixture.
    """
    for of_one, of_other in zip_longest(one, other):
        if of_one != of_other:
            return min(first for first, _ in filter(None, (of_one, of_other)))
    return None


def _segment(order: ComponentOrder, first: int, end: int, offset: int, before: NDArray[np.int64]) -> Segment:
    """Returns the segment of the draws [first, end) of an epoch; arguments are fields of `Segment`."""
    offset_counts = order.before(offset)
    counts = [after - num for after, num in zip(order.before(offset + end - first), offset_counts, strict=True)]
    return Segment(
        first=first,
        end=end,
        order=order,
        offset=offset,
        offset_counts=offset_counts,
        before=before,
        counts=np.array(counts, np.int64),
    )


def _debts(due: Iterable[Fraction], before: Iterable[int]) -> list[int]:
    """Returns each component's debt, the draws that are due minus those given before, in `DEBT_UNITS`."""
    return [
        each.numerator * DEBT_UNITS // each.denominator - num * DEBT_UNITS
        for each, num in zip(due, before, strict=True)
    ]


def _rounded(due: Fraction) -> Fraction:
    """Rounds what is due to `DEBT_UNITS`, so that a sum over many stages does not get ever longer fractions."""
    return Fraction(round(due * DEBT_UNITS), DEBT_UNITS)
