"""What a mixture is made of: its components, and its stages, which give them weights.

Owns `Component` and `Stage`, their checks, and `bin_shares`, which turns weights into shares of bins. Leaves how many
bins are due to a component after some positions to `_dues`, and which position gets which component to `mixture`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache

from packhorse.epoch.sources.source import Source
from packhorse.topology import checked_integer

Weight = int | float | str | Decimal | Fraction
"""A weight. A float counts as it is written: 0.7 is 7/10."""

MAX_BINS = 2**53
"""The most bins of a mixture's epoch."""

_MOST_POSITIONS_PER_BIN = 2**40  # a component with less than one bin in so many positions is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A dataset of a mixture, or anything else that has epochs, such as another mixture.

    Example:
        >>> import numpy as np
        >>> from packhorse.epoch import EpochView, PlanIndex
        >>> plan = PlanIndex.build({(4,): 6}, {4: 6}, 4)
        >>> code = Component.of("code", lambda epoch: EpochView(plan, np.arange(6), seed=1, epoch=epoch))
        >>> code.name, code.num_bins
        ('code', 6)
    """

    name: str
    """Name of the component in weights and messages."""
    source_of: Callable[[int], Source]
    """Function from a number to the component's epoch. It is called for every request, so it should remember epochs."""
    num_bins: int
    """Bins in each of the component's epochs."""
    max_seq_len: int
    """A bin's capacity in tokens."""
    max_sequences_per_bin: int
    """The most sequences in any bin."""
    num_tokens: int | None = None
    """Tokens in each of the component's epochs; needed if weights are shares of tokens."""
    digest: str = ""
    """Digest of everything that decides the component's bins, except the seed."""
    num_datasets: int = 1
    """Number of datasets in the component: more than one if it is a mixture itself."""
    num_templates: int = 0
    """Number of templates of the component; 0 if it is unknown, and its bins then have no template in a mixture."""
    most_epochs: int = 1
    """The most of the component's epochs that one epoch of a mixture takes, unless the mixture repeats components."""

    @classmethod
    def of(
        cls,
        name: str,
        source_of: Callable[[int], Source],
        *,
        num_tokens: int | None = None,
        digest: str = "",
        num_datasets: int = 1,
        num_templates: int = 0,
    ) -> "Component":
        """Returns a component that remembers its two epochs used last; its numbers of bins are those of epoch 0."""
        remembered = lru_cache(maxsize=2)(source_of)
        first = remembered(0)
        return cls(
            name=name,
            source_of=remembered,
            num_bins=first.num_bins,
            max_seq_len=first.max_seq_len,
            max_sequences_per_bin=first.max_sequences_per_bin,
            num_tokens=num_tokens,
            digest=digest,
            num_datasets=num_datasets,
            num_templates=num_templates,
        )


class WeightsBy(StrEnum):
    """Whether weights are shares of bins or of tokens."""

    BINS = "bins"
    """Weights are shares of the mixture's bins."""
    TOKENS = "tokens"
    """Weights are shares of the tokens in these bins."""


class WhenOut(StrEnum):
    """What a mixture does after the last bin of a component's epoch, or of the last of its `most_epochs`."""

    REPEAT = "repeat"
    """The component's next epoch follows, in another order."""
    STOP = "stop"
    """The mixture's epoch ends before this happens. In its next epoch, every component begins its own next one."""
    REWEIGH = "reweigh"
    """The other components share its positions, in proportion to their weights, until the mixture's epoch ends."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A range of positions of a run with the same weights.

    Example:
        >>> Stage({"web": 0.7, "code": 0.3}, until=100_000).until
        100000
    """

    weights: Mapping[str, Weight]
    """Component → weight, at least 0; components that are not named have weight 0."""
    until: int | None = None
    """Position of the run at which the next stage begins; None for the last stage."""
    by: WeightsBy | str = WeightsBy.BINS
    """Whether weights are shares of bins or of tokens."""


def bin_shares(stage: Stage, components: Sequence[Component], number: int = 0) -> tuple[Fraction, ...]:
    """Returns each component's share of a stage's bins; together these shares are 1.

    Example:
        >>> import numpy as np
        >>> from packhorse.epoch import EpochView, PlanIndex
        >>> plan = PlanIndex.build({(4,): 6}, {4: 6}, 4)
        >>> code, web = (
        ...     Component.of(name, lambda epoch: EpochView(plan, np.arange(6), seed=1, epoch=epoch))
        ...     for name in ("code", "web")
        ... )
        >>> [str(share) for share in bin_shares(Stage({"code": 0.7, "web": 0.3}), [code, web])]
        ['7/10', '3/10']

    Args:
        stage: weights by bins or by tokens.
        components: components of the mixture.
        number: number of the stage, for messages.

    Raises:
        ValueError: a weight is refused, as by `Mixture`.
    """
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
        if 0 < weight * _MOST_POSITIONS_PER_BIN < whole:
            raise ValueError(
                f"{component.name} has less than one bin in {_MOST_POSITIONS_PER_BIN} in stage {number}: give it a "
                "larger weight, or 0 and a larger one in a stage of its own"
            )
    return tuple(weight / whole for weight in weights)


def check_components(components: Sequence[Component]) -> None:
    """Raises a ValueError if there are no components, or two have one name."""
    if not components:
        raise ValueError("a mixture needs at least one component")
    for name, count in Counter(component.name for component in components).items():
        if count > 1:
            raise ValueError(f"two components are called {name}: give each a name of its own")


def check_whole_draws(name: str, num_bins: int, bins_per_draw: int) -> None:
    """Raises a ValueError if a number of bins is not a multiple of the bins in a draw."""
    below = num_bins // bins_per_draw * bins_per_draw
    if below != num_bins:
        raise ValueError(
            f"{name} {num_bins} is not a multiple of {bins_per_draw}, the bins in a row that are of one component: "
            f"take {f'{below} or ' if below else ''}{below + bins_per_draw}"
        )


def firsts_of(stages: Sequence[Stage], bins_per_draw: int) -> list[int]:
    """Returns the first position of each stage in the run; raises a ValueError if stages end at wrong positions."""
    if not stages:
        raise ValueError("a mixture needs at least one stage")
    if stages[-1].until is not None:
        raise ValueError("the last stage has no end: leave out its until")
    firsts = [0]
    for number, stage in enumerate(stages[:-1]):
        if stage.until is None:
            raise ValueError(f"stage {number} needs an until, since another one follows")
        firsts.append(checked_integer(f"until of stage {number}", stage.until, firsts[-1] + 1))
        check_whole_draws(f"until of stage {number}, position", stage.until, bins_per_draw)
    return firsts


def _as_fraction(value: object, name: str) -> Fraction:
    """Returns a weight as an exact fraction; raises a ValueError with its name if it is not a number of at least 0."""
    refusal = ValueError(f"{name} must be a number of at least 0, got {value!r}")
    try:
        weight = Fraction(str(value))  # so 0.7 is 7/10, and True is refused
    except (ValueError, ZeroDivisionError):
        raise refusal from None
    if weight < 0:
        raise refusal
    return weight
