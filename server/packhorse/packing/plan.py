"""Plans: templates with their multiplicities, and the facts that follow from them.

Owns `PackingPlan`, `PackerResult` (what a packer returns, from which a plan is made), the proof of a bound, and the
canonical order of templates. Leaves choosing templates to the packers of `registry`, the check of counts to `counts`,
and computing and checking bounds to `bounds`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class DualCertificate:
    """A proof that a plan needs some number of bins: prices for lengths, and the most that any bin is worth at them.

    The prices of all sequences add up to Σ counts · price, so there are at least ⌈Σ counts · price / bin_worth⌉ bins.

    Source: A. A. Farley, "A note on bounding a class of linear programming problems, including cutting stock
    problems", Operations Research 38 (1990).
    """

    prices: Mapping[int, int]
    """Length in tokens → price, an integer of at least 0; a length that is missing has price 0."""
    bin_worth: int
    """A number above 0 that the prices of sequences that fit into one bin never exceed together."""

    def bound(self, counts: Mapping[int, int]) -> int:
        """Returns the least number of bins of a plan for `counts`, if `bin_worth` is right."""
        return -(-sum(count * self.prices.get(length, 0) for length, count in counts.items()) // self.bin_worth)


Template = tuple[int, ...]
"""A bin's recipe: a descending tuple of lengths (tokens) with sum ≤ max_seq_len; under several budgets, of numbers of
classes instead (see `budgets/vectors`)."""


@dataclass(frozen=True, kw_only=True)
class PackerResult:
    """The result of a packer."""

    templates: Counter[Template]
    """Template → multiplicity."""
    algorithm: str
    """Name of the packer."""
    lower_bound: int = 0
    """The greatest number of bins below which the packer proved that no plan can go; 0 for no proof."""
    certificate: DualCertificate | None = None
    """Proof of `lower_bound`; None if it follows from the counts, as in `packhorse.packing.lower_bound`."""
    cut_off: bool = False
    """Whether the time limit ended the packer early."""
    note: str = ""
    """Why the packer stopped above the bound, or could not run as asked; empty otherwise."""


@dataclass(frozen=True, kw_only=True)
class PackingPlan:
    """A plan: the templates and multiplicities that a packer chose for some counts, and facts about them."""

    templates: Counter[Template] = field(repr=False)
    """Template → how many bins of an epoch use it."""
    max_seq_len: int
    """A bin's capacity in tokens."""
    lower_bound: int
    """A number of bins below which no plan for the same counts and options can go."""
    algorithm: str
    """Name of the packer that made the plan."""
    seconds: float = field(default=0.0, compare=False)
    """Seconds that planning took."""
    certificate: DualCertificate | None = field(default=None, repr=False, compare=False)
    """Proof of `lower_bound`; None if it follows from the counts, as in `packhorse.packing.lower_bound`."""
    cut_off: bool = False
    """Whether the time limit ended the packer early, so that the same call may give another plan."""
    note: str = field(default="", compare=False)
    """Why the packer stopped above the bound, or could not run as asked; empty otherwise."""

    @property
    def num_bins(self) -> int:
        """Bins in an epoch."""
        return sum(self.templates.values())

    @property
    def proven(self) -> bool:
        """Whether the plan has as few bins as the lower bound, so that it is optimal."""
        return self.num_bins == self.lower_bound

    @property
    def num_sequences(self) -> int:
        """Sequences in an epoch."""
        return sum(len(template) * multiplicity for template, multiplicity in self.templates.items())

    @property
    def total_tokens(self) -> int:
        """Sum of all lengths, in tokens."""
        return sum(sum(template) * multiplicity for template, multiplicity in self.templates.items())

    @property
    def efficiency(self) -> float:
        """Tokens per token of capacity, in [0, 1]; 0 for a plan without bins."""
        num_bins = self.num_bins
        return self.total_tokens / (num_bins * self.max_seq_len) if num_bins else 0.0

    @property
    def gap(self) -> float:
        """Bins above the lower bound, as a share of it; 0 if the plan is proven optimal."""
        return (self.num_bins - self.lower_bound) / self.lower_bound if self.lower_bound else 0.0


def canonical_templates(templates: Mapping[Template, int]) -> list[tuple[Template, int]]:
    """Returns (template, multiplicity) pairs in canonical order: descending lexicographic.

    Example:
        >>> canonical_templates({(3, 3): 2, (5,): 1, (5, 3): 4})
        [((5, 3), 4), ((5,), 1), ((3, 3), 2)]

    Args:
        templates: template → multiplicity.
    """
    return sorted(templates.items(), reverse=True)


def counts_of_templates(templates: Mapping[Template, int]) -> Counter[int]:
    """Returns the counts that a plan's templates use: length → number of sequences.

    Example:
        >>> counts_of_templates({(5, 3): 2, (3,): 1})
        Counter({3: 3, 5: 2})

    Args:
        templates: template → multiplicity.
    """
    counts: Counter[int] = Counter()
    for template, multiplicity in templates.items():
        for length in template:
            counts[length] += multiplicity
    return counts
