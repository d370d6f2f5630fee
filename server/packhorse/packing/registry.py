"""The packers by name, and `pack_histogram`, which runs one and says what came of it.

Owns the names; each packer stands in a file of its own.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from packhorse.packing.best_fit import best_fit_decreasing
from packhorse.packing.bounds import bound_of_pairs
from packhorse.packing.first_fit import first_fit_decreasing
from packhorse.packing.greedy_knapsack import greedy_knapsack
from packhorse.packing.krell import longest_pack_first, shortest_pack_first
from packhorse.packing.length_sorted import length_sorted
from packhorse.packing.options import checked_options, effective_counts
from packhorse.packing.plan import PackingPlan, Template, checked_counts
from packhorse.packing.worst_fit import worst_fit_batched, worst_fit_decreasing

if TYPE_CHECKING:  # needs HiGHS and Numba, which planning with the other packers does not
    from packhorse.packing.optimal import Improved

HistogramPacker = Callable[[list[tuple[int, int]], int, int], Counter[Template]]
"""(checked pairs by descending length, capacity, limit) → template → multiplicity."""

AUTO_GAP = 5e-5
"""How far above the lower bound, as a share of it, best-fit may stay before "auto" goes on to "optimal"."""
_DEFAULT_SECONDS = 60.0


def _optimal(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    start = best_fit_decreasing(pairs, capacity, limit)
    return _improve(pairs, capacity, limit, start, bound_of_pairs(pairs, capacity, limit), _DEFAULT_SECONDS).templates


PACKERS: dict[str, HistogramPacker] = {
    "best-fit": best_fit_decreasing,
    "first-fit": first_fit_decreasing,
    "greedy-knapsack": greedy_knapsack,
    "length-sorted": length_sorted,
    "longest-pack-first": longest_pack_first,
    "optimal": _optimal,
    "shortest-pack-first": shortest_pack_first,
    "worst-fit": worst_fit_decreasing,
    "worst-fit-batched": worst_fit_batched,
}
"""All pack longest first."""

LIST_ONLY = {
    "next-fit": "one bin after the other, in the order given (concatenation)",
    "random-order": "first-fit after a seeded shuffle",
}
"""Packers that only `pack_sequences` has, for they depend on an order that a histogram does not keep."""


def checked_algorithm(algorithm: str, *, list_only: bool = False) -> None:
    """Refuses a packer that there is not.

    Args:
        algorithm: "auto" or a packer's name.
        list_only: whether those of `LIST_ONLY` will do.

    Raises:
        ValueError: unknown, or list-only where a histogram is packed.
    """
    if algorithm == "auto" or algorithm in PACKERS or (list_only and algorithm in LIST_ONLY):
        return
    if algorithm in LIST_ONLY:
        raise ValueError(f"algorithm {algorithm!r} needs the sequences in an order: call pack_sequences")
    names = sorted({*PACKERS, *(LIST_ONLY if list_only else ())})
    raise ValueError(f"unknown algorithm {algorithm!r}; there are: auto, {', '.join(names)}")


def pack_histogram(
    counts: Mapping[int, int],
    max_seq_len: int,
    *,
    algorithm: str = "auto",
    max_sequences_per_bin: int | None = None,
    time_limit_seconds: float = _DEFAULT_SECONDS,
    align: int = 1,
    extra_tokens: int = 0,
) -> PackingPlan:
    """Plans an epoch from a length histogram.

    Args:
        counts: length in tokens → number of sequences; zeros are ignored.
        max_seq_len: a bin's capacity in tokens.
        algorithm: a name of `PACKERS`, or "auto": best-fit, and where that stays more than `AUTO_GAP` above the lower
            bound, "optimal" from there, if its libraries are installed.
        max_sequences_per_bin: the most sequences in a bin; None for no limit.
        time_limit_seconds: how long "optimal" may go on improving the plan; when time is up, or at Ctrl-C, the best
            plan so far is kept, and `plan.interrupted` says so.
        align: a sequence takes a multiple of this many tokens.
        extra_tokens: tokens added to every sequence before that. With either option templates, tokens and efficiency
            are of effective lengths, ceil((length + extra_tokens) / align) · align, and pools must be keyed by these.

    Returns:
        The plan; `plan.algorithm` says which packer made it: for "auto", "optimal" only where that saved bins.

    Raises:
        ValueError: a length over max_seq_len or below 1, a negative count, an unknown algorithm.
        ImportError: "optimal" without highspy and Numba, which `packhorse[prepare]` installs.
    """
    if not time_limit_seconds > 0:
        raise ValueError(f"time_limit_seconds must be above 0, got {time_limit_seconds!r}")
    checked_algorithm(algorithm)
    align, extra_tokens = checked_options(align, extra_tokens)
    pairs, limit = checked_counts(counts, max_seq_len, max_sequences_per_bin)
    if align > 1 or extra_tokens:
        pairs = sorted(effective_counts(dict(pairs), int(max_seq_len), align, extra_tokens).items(), reverse=True)
    capacity = int(max_seq_len)  # products with a NumPy integer could overflow
    begin = time.perf_counter()
    first = "best-fit" if algorithm in ("auto", "optimal") else algorithm
    templates = PACKERS[first](pairs, capacity, limit)
    bound = bound_of_pairs(pairs, capacity, limit)
    improved: Improved | None = None
    note = ""
    if algorithm == "optimal" or (algorithm == "auto" and templates.total() - bound > AUTO_GAP * bound):
        try:
            improved = _improve(pairs, capacity, limit, templates, bound, time_limit_seconds)
        except ImportError as error:
            if algorithm == "optimal":
                raise
            note = str(error)
    if improved is None:
        name = first
    else:
        saved = improved.templates.total() < templates.total()
        name = "optimal" if saved or algorithm == "optimal" else "best-fit"
        templates, bound, note = improved.templates, improved.lower_bound, improved.note
    return PackingPlan(
        templates=templates,
        max_seq_len=capacity,
        lower_bound=bound,
        algorithm=name,
        seconds=time.perf_counter() - begin,
        certificate=improved.certificate if improved else None,
        interrupted=improved.interrupted if improved else False,
        note=note,
    )


def _improve(
    pairs: list[tuple[int, int]],
    capacity: int,
    limit: int,
    start: Counter[Template],
    bound: int,
    time_limit_seconds: float,
) -> "Improved":
    """Runs `optimal.improve`, or raises an ImportError that names the extra."""
    try:
        from packhorse.packing.optimal import improve
    except ImportError as error:
        raise ImportError(
            f'algorithm "optimal" needs highspy and numba ({error}): pip install "packhorse[prepare]"'
        ) from error
    return improve(pairs, capacity, limit, start, bound, time_limit_seconds)
