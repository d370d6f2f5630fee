"""Mixtures: several components served as one, in exact proportions that can change while a run goes on.

Owns `Stage` and `Mixture`: weights, where they change, how a component's own epochs follow each other, and the chain of
digests. What one epoch does with positions is `mixture_epoch`'s.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise, zip_longest
from math import ceil, floor
from operator import add

import numpy as np
from numpy.typing import NDArray

from packhorse.epoch.keys import checked_seed, derive_key
from packhorse.epoch.sources._dealing import Dealing, Shares
from packhorse.epoch.sources._splits import DEBT_UNITS, Splits
from packhorse.epoch.sources.mixture_epoch import MixtureEpoch, Segment
from packhorse.epoch.sources.source import Component
from packhorse.topology import checked_integer

Weight = int | float | str | Decimal | Fraction
"""A weight, taken as it is written: 0.7 is 7/10."""

Chain = tuple[tuple[int, str], ...]
"""Where each stage begins, as a position of the run, and the digest of everything up to there and of the stage."""

_DIGITS = 16
_MOST_BINS = 2**53
_MOST_POSITIONS_DUE = 2**40  # a component is due once in so many, at least


class WeightsBy(StrEnum):
    """What weights are shares of."""

    BINS = "bins"
    """Of the mixture's bins."""
    TOKENS = "tokens"
    """Of the tokens that they hold."""


class WhenOut(StrEnum):
    """What happens when a component has given all bins of its epoch."""

    REPEAT = "repeat"
    """Its next epoch follows, in another order."""
    STOP = "stop"
    """An epoch of the mixture ends before that, and with the next one every component begins its next."""
    REWEIGH = "reweigh"
    """It leaves, and the others take its share by their weights; with the mixture's next epoch it is there again."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A range of positions with the same weights.

    Example:
        >>> Stage({"web": 0.7, "code": 0.3}, until=100_000).until
        100000
    """

    weights: Mapping[str, Weight]
    """Component → weight, at least 0; those not named have none."""
    until: int | None = None
    """Position of the run at which the next stage begins; None for the last."""
    by: WeightsBy | str = WeightsBy.BINS
    """Whether weights are shares of bins or of tokens."""


class Mixture:
    """Several components as one, epoch by epoch.

    A position of the run is epoch · num_bins + position. Stages divide the run's positions, so the weights of a run can
    be changed while it is in any epoch: see `appended`.

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
        components: of distinct names; their order gives `Bins.component_ids`.
        stages: in order; the last has no `until`.
        seed: decides which positions each component gets; in [0, 2^64).
        num_bins: bins of an epoch. By default, under STOP as many as there are before a component runs out, else the
            components' bins together, both under the first stage. Under REWEIGH each bin then comes once.
        when_out: what happens when a component has given all bins of its epoch, or of its `most_epochs`.
        bins_per_draw: bins in a row that come from one component, for steps that are of one. Weights are then shares of
            draws, which are as exact; `num_bins` and the ends of stages are multiples of it. Unless components are
            repeated, what an epoch of one has left below a whole draw is left out.

    Raises:
        ValueError: a stage names no component, weights are negative, all 0 or too far apart, stages do not follow each
            other, a number of bins is not of whole draws, or within an epoch a component runs out under STOP, or all of
            a stage under REWEIGH; the message names what is wrong.
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
        _check_components(self.components)
        self.bins_per_draw = checked_integer("bins_per_draw", bins_per_draw, 1, _MOST_BINS)
        self._firsts = _firsts_of(self.stages, bins_per_draw)
        self._first_draws = [first // bins_per_draw for first in self._firsts]
        self._shares = [_shares_of(stage, self.components, number) for number, stage in enumerate(self.stages)]
        most = [each.num_bins * self._most_epochs(each) // bins_per_draw for each in self.components]
        if self.when_out is not WhenOut.REPEAT and 0 in most and bins_per_draw > 1:
            raise ValueError(
                f"{self.components[most.index(0)].name} has fewer than the {bins_per_draw} bins in a row that are to "
                "be of one component: leave it out, or let components be repeated"
            )
        self._most = np.array(most, dtype=np.int64)  # draws of each in an epoch, where it is not repeated
        self.num_bins = self._default_num_draws() * bins_per_draw if num_bins is None else num_bins
        checked_integer("num_bins", self.num_bins, 1, _MOST_BINS)
        _check_whole_draws("num_bins", self.num_bins, bins_per_draw)
        self._epochs = lru_cache(maxsize=1)(self._epoch)
        if self.when_out is not WhenOut.REPEAT:
            self._check_enough()

    @property
    def num_datasets(self) -> int:
        """How many datasets there are, those of components that are mixtures counted one by one."""
        return sum(component.num_datasets for component in self.components)

    @property
    def num_templates(self) -> int:
        """The numbers of its bins' templates are below."""
        return sum(component.num_templates for component in self.components)

    @property
    def firsts(self) -> tuple[int, ...]:
        """Where each stage begins, as a position of the run."""
        return tuple(self._firsts)

    @property
    def chain(self) -> Chain:
        """Where each stage begins, and its digest: two runs are the same up to where their chains part."""
        facts: dict[str, object] = {"version": 3, "num_bins": self.num_bins, "when_out": self.when_out}
        if self.bins_per_draw > 1:
            facts["bins_per_draw"] = self.bins_per_draw
        chain = []
        for first, shares in zip(self._firsts, self._shares, strict=True):
            facts["from"] = first
            facts["shares"] = [
                [number, component.digest, component.num_bins, part, *self._facts_of_epochs(component)]
                for number, (component, part) in enumerate(zip(self.components, shares.parts, strict=True))
                if part
            ]
            digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:_DIGITS]
            chain.append((first, digest))
            facts = {"after": digest}
        return tuple(chain)

    def digest_at(self, position: int) -> str:
        """Returns the digest of everything before a position of the run, which later stages do not change."""
        return next(digest for first, digest in reversed(self.chain) if first < max(position, 1))

    def appended(self, stage: Stage, position: int, components: Sequence[Component] = ()) -> "Mixture":
        """Returns the mixture with other weights from a position of the run on; nothing before it changes.

        Args:
            stage: the weights from there on, without `until`.
            position: beyond the beginning of what is now the last stage.
            components: new ones, put behind those there are.

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
        """Returns one epoch; the one asked for last is remembered.

        Args:
            number: in [0, 2^64).
        """
        return self._epochs(checked_seed("epoch", number))

    def _epoch(self, number: int) -> MixtureEpoch:
        return MixtureEpoch(self.components, self._segments(number), self._begins(number), self.bins_per_draw)

    def _segments(self, epoch: int) -> list[Segment]:
        """Returns the parts of an epoch, in draws."""
        begin = epoch * self.num_bins // self.bins_per_draw
        if self.when_out is not WhenOut.REPEAT:
            return self._segments_of_those_left(epoch, begin)
        segments: list[Segment] = []
        before = np.zeros(len(self.components), dtype=np.int64)
        for number, a, b in self._stretches(epoch):
            dealing, first = self._dealings[number][0], self._first_draws[number]
            segments.append(_segment(dealing, a - begin, b - begin, a - first, before))
            before = before + segments[-1].taken
        return segments

    def _segments_of_those_left(self, epoch: int, begin: int) -> list[Segment]:
        """Returns the parts of an epoch whose components are not repeated: where one has left, another part begins.

        Every epoch begins without debts. Under STOP a component leaves only because of roundings: a stage may take a
        bin more of it than is due.
        """
        segments: list[Segment] = []
        before = np.zeros(len(self.components), dtype=np.int64)
        due = [Fraction(0)] * len(self.components)
        for number, a, b in self._stretches(epoch):
            parts = self._shares[number].parts
            has_weight = np.array(parts, dtype=object) > 0
            self._check_left(number, epoch, a - begin + int((self._most - before)[has_weight].sum()), b - begin)
            most = [max(num - each, Fraction(0)) for num, each in zip(self._most.tolist(), due, strict=True)]
            shares = Shares(parts, most)
            leave_at = {at for at in map(ceil, shares.leave_at) if 0 < at < b - a}
            for first, end in pairwise([0, *sorted(leave_at), b - a]):
                caps = np.where(has_weight, self._most - before, 0).tolist()
                debts = _debts(map(add, due, shares.due(first)), before.tolist())
                at = a - begin + first
                splits = Splits(shares.weights_at(first), debts, self._key(epoch, at), caps)
                segments.append(_segment(Dealing(splits, end - first), at, at + end - first, 0, before))
                before = before + segments[-1].taken
            due = list(map(add, due, shares.due(b - a)))
        return segments

    @cached_property
    def _dealings(self) -> list[tuple[Dealing, list[int]]]:
        """What deals each stage where components are repeated, and how many draws each has given before it.

        What a component was due in the stages before and has not had, or has had too much, it gets or pays first.
        """
        dealings = []
        given, due = [0] * len(self.components), [Fraction(0)] * len(self.components)
        for shares, first, until in zip_longest(self._shares, self._first_draws, self._first_draws[1:]):
            splits = Splits(shares.parts, _debts(due, given), self._key(0, first))
            dealings.append((Dealing(splits), given))
            if until is not None:
                given = list(map(add, given, splits.before(until - first)))
                due = list(map(add, map(_rounded, due), shares.due(until - first)))
        return dealings

    def _stretches(self, epoch: int) -> list[tuple[int, int, int]]:
        """Returns (stage, first draw, end) of an epoch's parts, as draws of the run."""
        per_epoch = self.num_bins // self.bins_per_draw
        begin, end = epoch * per_epoch, (epoch + 1) * per_epoch
        stretches = [
            (number, max(first, begin), min(until, end))
            for number, (first, until) in enumerate(pairwise([*self._first_draws, end]))
        ]
        return [(number, a, b) for number, a, b in stretches if a < b]

    def _key(self, epoch: int, first: int) -> int:
        """Returns the key of what begins at a draw."""
        return derive_key(self.seed, epoch, f"mixture {first}")

    def _check_left(self, number: int, epoch: int, out_at: int, end: int) -> None:
        """Refuses a stage that goes on where all of its components have left; both are draws."""
        if out_at < end:
            out_at *= self.bins_per_draw
            raise ValueError(
                f"all components of stage {number} have given their bins at position {out_at} of epoch {epoch}: give "
                f"an epoch at most {out_at} bins, give another component a weight, or set when_out to repeat"
            )

    def _begins(self, epoch: int) -> list[tuple[int, int]]:
        """Returns (epoch, position) of every component where an epoch of the mixture begins."""
        if self.when_out is not WhenOut.REPEAT:
            return [(epoch * self._most_epochs(component), 0) for component in self.components]
        begin = epoch * self.num_bins // self.bins_per_draw
        number = bisect_right(self._first_draws, begin) - 1
        dealing, given = self._dealings[number]
        totals = map(add, given, dealing.taken(begin - self._first_draws[number]))
        return [
            divmod(total * self.bins_per_draw, max(component.num_bins, 1))
            for total, component in zip(totals, self.components, strict=True)
        ]

    def _most_epochs(self, component: Component) -> int:
        return 1 if self.when_out is WhenOut.REPEAT else component.most_epochs

    def _facts_of_epochs(self, component: Component) -> list[int]:
        most = self._most_epochs(component)
        return [most] if most > 1 else []

    def _default_num_draws(self) -> int:
        shares = self._shares[0]
        given = [(part, num) for part, num in zip(shares.parts, self._most.tolist(), strict=True) if part]
        if self.when_out is WhenOut.STOP:
            return min(num * shares.whole // part for part, num in given)
        return sum(num for _, num in given)

    def _check_enough(self) -> None:
        """Refuses epochs that want more bins than there are; those that no stage begins in are like one before."""
        for epoch in sorted({first // self.num_bins + after for first in self._firsts for after in (0, 1)}):
            if self.when_out is WhenOut.STOP:
                self._check_due(epoch)
            stretches = self._stretches(epoch)
            if len(stretches) > 1:
                self._segments(epoch)
            else:
                number = stretches[0][0]
                given = self._most[np.array(self._shares[number].parts, dtype=object) > 0]
                self._check_left(number, epoch, int(given.sum()), self.num_bins // self.bins_per_draw)

    def _check_due(self, epoch: int) -> None:
        """Refuses an epoch in which a component would give more bins than it has, by its weights alone.

        The draws of a seed do not matter, so that a mixture is refused for every run or for none.
        """
        due = [Fraction(0)] * len(self.components)
        for number, a, b in self._stretches(epoch):
            shares = self._shares[number]
            due = [each + Fraction((b - a) * part, shares.whole) for each, part in zip(due, shares.parts, strict=True)]
        for component, most, num in zip(self.components, self._most.tolist(), map(floor, due), strict=True):
            if num > most:
                num_bins, given = most * self.bins_per_draw, num * self.bins_per_draw
                raise ValueError(
                    f"{component.name} has {num_bins} bins and would give {given} in epoch {epoch} of the mixture: "
                    f"lower its weight, give an epoch fewer than {self.num_bins} bins, or set when_out to repeat"
                )


def bin_shares(stage: Stage, components: Sequence[Component], number: int = 0) -> tuple[Fraction, ...]:
    """Returns which share of a stage's bins each component has; together they are 1.

    Example:
        >>> from packhorse.epoch import EpochView, PlanIndex
        >>> plan = PlanIndex.build({(4,): 6}, {4: 6}, 4)
        >>> code = Component.of("code", lambda epoch: EpochView(plan, np.arange(6), seed=1, epoch=epoch))
        >>> [str(share) for share in bin_shares(Stage({"code": 0.7, "web": 0.3}), [code, replace(code, name="web")])]
        ['7/10', '3/10']

    Args:
        stage: weights by bins or by tokens.
        components: those of the mixture.
        number: of the stage, for messages.

    Raises:
        ValueError: as for a Mixture.
    """
    shares = _shares_of(stage, components, number)
    return tuple(Fraction(part, shares.whole) for part in shares.parts)


def parting(one: Chain, other: Chain) -> int | None:
    """Returns the position of the run from which on two mixtures differ; None where they are the same.

    A cursor at or before it is valid in both.

    Example:
        >>> parting(((0, "aa"), (500, "bb")), ((0, "aa"),))
        500

    Args:
        one: where each stage of a mixture begins, with the digest of everything up to there.
        other: another's.
    """
    for pair in zip_longest(one, other):
        if pair[0] != pair[1]:
            return min(stage[0] for stage in pair if stage is not None)
    return None


def _check_components(components: Sequence[Component]) -> None:
    if not components:
        raise ValueError("a mixture needs at least one component")
    names = [component.name for component in components]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two components are called {name}: give each a name of its own")


def _check_whole_draws(name: str, num_bins: int, bins_per_draw: int) -> None:
    below = num_bins // bins_per_draw * bins_per_draw
    if below != num_bins:
        raise ValueError(
            f"{name} {num_bins} is no multiple of {bins_per_draw}, the bins in a row that are of one component: take "
            f"{f'{below} or ' if below else ''}{below + bins_per_draw}"
        )


def _firsts_of(stages: Sequence[Stage], bins_per_draw: int) -> list[int]:
    """Returns where each stage begins, as a position of the run."""
    if not stages:
        raise ValueError("a mixture needs at least one stage")
    if stages[-1].until is not None:
        raise ValueError("the last stage goes on: leave out its until")
    firsts = [0]
    for number, stage in enumerate(stages[:-1]):
        if stage.until is None:
            raise ValueError(f"stage {number} needs an until, since another one follows")
        firsts.append(checked_integer(f"until of stage {number}", stage.until, firsts[-1] + 1))
        _check_whole_draws(f"until of stage {number}, position", stage.until, bins_per_draw)
    return firsts


def _shares_of(stage: Stage, components: Sequence[Component], number: int) -> Shares:
    names = {component.name for component in components}
    for name in stage.weights:
        if name not in names:
            raise ValueError(
                f"stage {number} weighs {name}, which is no component: there are {', '.join(sorted(names))}"
            )
    by = WeightsBy(stage.by)
    weights = []
    for component in components:
        weight = _as_fraction(stage.weights.get(component.name, 0), f"weight of {component.name} in stage {number}")
        if weight and not component.num_bins:
            raise ValueError(f"{component.name} has a weight in stage {number}, but no bins: leave it out")
        if weight and by is WeightsBy.TOKENS:
            if not component.num_tokens:
                raise ValueError(f"weights of stage {number} are by tokens: {component.name} needs its num_tokens")
            weight = weight * component.num_bins / component.num_tokens
        weights.append(weight)
    whole = sum(weights)
    if not whole:
        raise ValueError(f"all weights of stage {number} are 0: give a component a weight")
    for component, weight in zip(components, weights, strict=True):
        if 0 < weight * _MOST_POSITIONS_DUE < whole:
            raise ValueError(
                f"{component.name} has less than one bin in {_MOST_POSITIONS_DUE} in stage {number}: give it a larger "
                "weight, or 0 and a larger one in a stage of its own"
            )
    return Shares(weights)


def _segment(dealing: Dealing, first: int, end: int, offset: int, before: NDArray[np.int64]) -> Segment:
    dealt = dealing.taken(offset)
    taken = [after - num for after, num in zip(dealing.taken(offset + end - first), dealt, strict=True)]
    return Segment(
        first=first,
        end=end,
        dealing=dealing,
        offset=offset,
        dealt=dealt,
        before=before,
        taken=np.array(taken, np.int64),
    )


def _debts(due: Iterable[Fraction], given: Iterable[int]) -> list[int]:
    """Returns what is due and not given yet, in units of a debt."""
    return [
        each.numerator * DEBT_UNITS // each.denominator - num * DEBT_UNITS for each, num in zip(due, given, strict=True)
    ]


def _rounded(due: Fraction) -> Fraction:
    """Returns what is due in few digits, however many stages it comes from."""
    return Fraction(round(due * DEBT_UNITS), DEBT_UNITS)


def _as_fraction(value: object, name: str) -> Fraction:
    try:
        weight = Fraction(str(value)) if not isinstance(value, bool) else None
    except (ValueError, ZeroDivisionError):
        weight = None
    if weight is None or weight < 0:
        raise ValueError(f"{name} must be a number of at least 0, got {value!r}")
    return weight
