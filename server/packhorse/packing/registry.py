"""The packers by name, and `pack_histogram`, which runs one and says what came of it.

Owns the names; each packer stands in a file of its own.
"""

from collections import Counter
from collections.abc import Callable, Mapping

from packhorse.packing.best_fit import best_fit_decreasing
from packhorse.packing.bounds import bound_of_pairs
from packhorse.packing.plan import PackingPlan, Template, checked_counts

HistogramPacker = Callable[[list[tuple[int, int]], int, int], Counter[Template]]
"""(checked pairs by descending length, capacity, limit) → template → multiplicity."""

PACKERS: dict[str, HistogramPacker] = {"best-fit": best_fit_decreasing}


def pack_histogram(
    counts: Mapping[int, int],
    max_seq_len: int,
    *,
    algorithm: str = "auto",
    max_sequences_per_bin: int | None = None,
    time_limit_seconds: float = 60.0,
) -> PackingPlan:
    """Plans an epoch from a length histogram.

    Args:
        counts: length in tokens → number of sequences; zeros are ignored.
        max_seq_len: a bin's capacity in tokens.
        algorithm: a name of `PACKERS`, or "auto", which takes the best packer there is.
        max_sequences_per_bin: the most sequences in a bin; None for no limit.
        time_limit_seconds: how long a packer that improves a plan may go on; the best plan so far is kept.

    Returns:
        The plan; `plan.algorithm` says which packer made it.

    Raises:
        ValueError: a length over max_seq_len or below 1, a negative count, an unknown algorithm.
    """
    if not time_limit_seconds > 0:
        raise ValueError(f"time_limit_seconds must be above 0, got {time_limit_seconds!r}")
    name = "best-fit" if algorithm == "auto" else algorithm
    if name not in PACKERS:
        raise ValueError(f"unknown algorithm {algorithm!r}; there are: auto, {', '.join(sorted(PACKERS))}")
    pairs, limit = checked_counts(counts, max_seq_len, max_sequences_per_bin)
    capacity = int(max_seq_len)  # products with a NumPy integer could overflow
    return PackingPlan(
        templates=PACKERS[name](pairs, capacity, limit),
        max_seq_len=capacity,
        lower_bound=bound_of_pairs(pairs, capacity, limit),
        algorithm=name,
    )
