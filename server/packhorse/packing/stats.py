"""How full bins are: `PackingStats`, with the field names and the printed form of seqpack's class of this name.

Leaves the lower bound in it to `bounds`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.packing.bounds import lower_bound
from packhorse.packing.plan import Template, counts_of_templates
from packhorse.parameters import parameter


@dataclass(frozen=True, repr=False, kw_only=True)
class PackingStats:
    """Figures of how full bins are, computed from bins or from templates."""

    n_bins: int
    """Number of bins."""
    n_sequences: int
    """Number of sequences in them."""
    total_tokens: int
    """Sum of their lengths, in tokens."""
    total_capacity: int
    """n_bins · max_seq_len, in tokens."""
    padding_tokens: int
    """total_capacity - total_tokens."""
    efficiency: float
    """total_tokens / total_capacity, in [0, 1]; 0 without bins."""
    padding_ratio: float
    """padding_tokens / total_capacity, in [0, 1]; 0 without bins."""
    bin_fullness_p50: float
    """Median of tokens / max_seq_len over bins, linearly interpolated like `numpy.percentile`."""
    bin_fullness_p90: float
    """90th percentile of tokens / max_seq_len over bins."""
    bin_fullness_p99: float
    """99th percentile of tokens / max_seq_len over bins."""
    max_seq_len: int
    """A bin's capacity in tokens."""
    lower_bound: int
    """A number of bins below which no packing of the same sequences can go."""
    gap: float
    """Bins above the lower bound, as a share of it; 0 if the packing is proven optimal."""

    @classmethod
    def from_bins(
        cls,
        bins: Sequence[Sequence[int]],
        lengths: ArrayLike,
        max_seq_len: int,
        *,
        max_sequences_per_bin: int | None = None,
        proven_bound: int = 0,
    ) -> "PackingStats":
        """Summarises bins of indices into `lengths`.

        Args:
            bins: each bin's indices.
            lengths: int [S], length in tokens of every sequence.
            max_seq_len: a bin's capacity in tokens.
            max_sequences_per_bin: the limit that the packer had, for the bound.
            proven_bound: a bound that the packer proved, such as `PackingPlan.lower_bound`.

        Raises:
            ValueError: a bin holds more than max_seq_len tokens.
        """
        by_index = np.asarray(lengths, dtype=np.int64)
        templates = Counter(tuple(sorted(by_index[list(b)].tolist(), reverse=True)) for b in bins)
        return cls.from_templates(
            templates, max_seq_len, max_sequences_per_bin=max_sequences_per_bin, proven_bound=proven_bound
        )

    @classmethod
    def from_templates(
        cls,
        templates: Mapping[Template, int],
        max_seq_len: int,
        *,
        max_sequences_per_bin: int | None = None,
        proven_bound: int = 0,
    ) -> "PackingStats":
        """Summarises template → multiplicity, in time that does not grow with the multiplicities.

        The other arguments are those of `from_bins`.

        Raises:
            ValueError: a template holds more than max_seq_len tokens.
        """
        max_seq_len = int(max_seq_len)  # products with a NumPy integer could overflow
        sums = np.array([sum(template) for template in templates], dtype=np.int64)  # tokens of each template
        weights = np.array(list(templates.values()), dtype=np.int64)  # its bins
        if len(sums) and int(sums.max()) > max_seq_len:
            raise ValueError(
                f"a bin of {int(sums.max())} tokens is over " + parameter("max_seq_len") + f" {max_seq_len}"
            )
        counts = counts_of_templates(templates)
        bound = lower_bound(counts, max_seq_len, max_sequences_per_bin=max_sequences_per_bin)
        p50, p90, p99 = _weighted_percentiles(sums, weights, (0.50, 0.90, 0.99)) / max_seq_len
        return cls._of(
            n_bins=int(weights.sum()),
            n_sequences=sum(counts.values()),
            total_tokens=sum(length * count for length, count in counts.items()),
            max_seq_len=max_seq_len,
            lower_bound=max(proven_bound, bound),
            fullness=(float(p50), float(p90), float(p99)),
        )

    def with_tokens(self, total_tokens: int, lower_bound: int) -> "PackingStats":
        """Returns a copy with other tokens and another bound, for templates of rounded sizes; the percentiles stay."""
        return self._of(
            n_bins=self.n_bins,
            n_sequences=self.n_sequences,
            total_tokens=total_tokens,
            max_seq_len=self.max_seq_len,
            lower_bound=lower_bound,
            fullness=(self.bin_fullness_p50, self.bin_fullness_p90, self.bin_fullness_p99),
        )

    @classmethod
    def _of(
        cls,
        *,
        n_bins: int,
        n_sequences: int,
        total_tokens: int,
        max_seq_len: int,
        lower_bound: int,
        fullness: tuple[float, float, float],
    ) -> "PackingStats":
        """Returns figures, with the fields that follow from these arguments."""
        capacity = n_bins * max_seq_len
        p50, p90, p99 = fullness
        return cls(
            n_bins=n_bins,
            n_sequences=n_sequences,
            total_tokens=total_tokens,
            total_capacity=capacity,
            padding_tokens=capacity - total_tokens,
            efficiency=total_tokens / capacity if capacity else 0.0,
            padding_ratio=1.0 - total_tokens / capacity if capacity else 0.0,
            bin_fullness_p50=p50,
            bin_fullness_p90=p90,
            bin_fullness_p99=p99,
            max_seq_len=max_seq_len,
            lower_bound=lower_bound,
            gap=(n_bins - lower_bound) / lower_bound if lower_bound else 0.0,
        )

    def __repr__(self) -> str:
        """The printed form of seqpack's class, and a line for the bound."""
        return (
            "PackingStats(\n"
            f"  bins:        {self.n_bins:,}\n"
            f"  sequences:   {self.n_sequences:,} (avg {self.n_sequences / max(self.n_bins, 1):.2f}/bin)\n"
            f"  tokens:      {self.total_tokens:,} / {self.total_capacity:,} capacity\n"
            f"  efficiency:  {self.efficiency:.2%}\n"
            f"  padding:     {self.padding_tokens:,} ({self.padding_ratio:.2%})\n"
            f"  fullness:    p50={self.bin_fullness_p50:.1%}  "
            f"p90={self.bin_fullness_p90:.1%}  p99={self.bin_fullness_p99:.1%}\n"
            f"  lower bound: {self.lower_bound:,} bins (gap {self.gap:.4%})\n"
            ")"
        )


def _weighted_percentiles(
    values: NDArray[np.int64], weights: NDArray[np.int64], quantiles: tuple[float, ...]
) -> NDArray[np.float64]:
    """Returns percentiles of `values`, each of which occurs `weights` times; zeros if there are no values."""
    if not weights.sum():
        return np.zeros(len(quantiles))
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(weights[order])  # exclusive rank of each value's last copy
    ranks = np.array(quantiles) * (int(ends[-1]) - 1)  # fractions of ranks lie between two values
    below = values[order][np.searchsorted(ends, np.floor(ranks).astype(np.int64), side="right")]
    above = values[order][np.searchsorted(ends, np.ceil(ranks).astype(np.int64), side="right")]
    return np.asarray(below + (above - below) * (ranks - np.floor(ranks)), dtype=np.float64)
