"""What a mixture is made of: anything that has epochs.

Owns `Component`: the facts that a mixture needs before it opens any of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from packhorse.epoch.sources.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A dataset of a mixture, or anything else that has epochs: windows, another mixture.

    Example:
        >>> import numpy as np
        >>> from packhorse.epoch import EpochView, PlanIndex
        >>> plan = PlanIndex.build({(4,): 6}, {4: 6}, 4)
        >>> code = Component.of("code", lambda epoch: EpochView(plan, np.arange(6), seed=1, epoch=epoch))
        >>> code.name, code.num_bins
        ('code', 6)
    """

    name: str
    """What weights and messages call it."""
    source_of: Callable[[int], Source]
    """Its epochs by number. Called for every request, so it should remember what it made last."""
    num_bins: int
    """Bins in each of its epochs."""
    max_seq_len: int
    """A bin's capacity in tokens."""
    max_sequences_per_bin: int
    """The most sequences in any bin."""
    num_tokens: int | None = None
    """Tokens in each of its epochs; needed where weights are shares of tokens."""
    digest: str = ""
    """Fingerprint of everything that decides its bins but the seed."""
    num_datasets: int = 1
    """How many datasets it is made of: more than one for a mixture."""
    num_templates: int = 0
    """The numbers of its bins' templates are below; 0 where it is not known, and a mixture then has none for them."""
    most_epochs: int = 1
    """How many of its epochs one epoch of a mixture takes at most, unless the mixture repeats components."""

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
        """Makes a component of its epochs alone; the two epochs used last are remembered."""
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
