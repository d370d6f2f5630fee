"""The packers of a histogram by name, what "auto" chooses, and `pack_histogram`, which runs one.

Leaves packing itself to `best_fit`, `spreading`, `optimal` and, on the shelf, `packhorse.reference_packers`; and the
packers of a list in `LIST_ONLY` to `on_demand/list_packers`.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from packhorse.packing.best_fit import best_fit_decreasing, worst_fit_batched
from packhorse.packing.bounds import bound_of_pairs
from packhorse.packing.counts import checked_counts
from packhorse.packing.first_plan import first_plan, is_near
from packhorse.packing.plan import PackerResult, PackingPlan, Template
from packhorse.packing.rooms import checked_rule, rooms_of_counts
from packhorse.packing.spreading import balanced, worst_fit_decreasing
from packhorse.parameters import parameter
from packhorse.shelf import from_shelf, is_offered

Packer = Callable[[list[tuple[int, int]], int, int, float], PackerResult]
"""A function of (checked (length, count) pairs by descending length, a bin's capacity in tokens, the most sequences in
a bin, time limit in seconds)."""

DEFAULT_TIME_LIMIT_SECONDS = 600.0
"""Default time limit. A search ends much earlier by its count of work, unless the machine is far too slow."""

_PATIENCE_OF_AUTO = 0.1
"""Share of the search for the last bins that "auto" makes, as the `patience` of `improve`: about a second. Most of what
the whole search would find is found by then."""
_MOST_LENGTHS_FOR_BALANCED = 2000
"""Distinct lengths up to which "auto" tries the balanced packer: it then takes at most a tenth of a second. Its time
grows with their square."""


def _plain(name: str, pack: Callable[[list[tuple[int, int]], int, int], Counter[Template]]) -> Packer:
    """Makes a packer without a time limit or a bound of its own from a function such as `best_fit_decreasing`."""
    return lambda pairs, capacity, limit, _: PackerResult(templates=pack(pairs, capacity, limit), algorithm=name)


def _from_shelf(name: str) -> Packer:
    """Returns a packer of the shelf. Its package imports this one, so it is loaded only when the packer runs."""

    def pack(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
        return from_shelf("reference_packers")[name](pairs, capacity, limit)

    return _plain(name, pack)


def _optimal(pairs: list[tuple[int, int]], capacity: int, limit: int, time_limit_seconds: float) -> PackerResult:
    """Packs by column generation, which starts with `first_plan` and never makes it worse."""
    result = _improve(pairs, capacity, limit, first_plan(pairs, capacity, limit), time_limit_seconds)
    return replace(result, algorithm="optimal")


def _auto(pairs: list[tuple[int, int]], capacity: int, limit: int, time_limit_seconds: float) -> PackerResult:
    """Packs as `first_plan`; if that plan is not near the bound, improves it by column generation.

    If the improved plan still has bins above the bound, and there are few lengths, tries the balanced packer too.
    """
    start = first_plan(pairs, capacity, limit)
    if is_near(start):
        return start
    try:
        plan = _improve(pairs, capacity, limit, start, time_limit_seconds, _PATIENCE_OF_AUTO)
    except ImportError as error:
        plan = replace(start, note=str(error))
    if plan.templates.total() > plan.lower_bound and len(pairs) <= _MOST_LENGTHS_FOR_BALANCED:
        templates = balanced(pairs, capacity, limit)
        num_saved = plan.templates.total() - templates.total()
        if num_saved > 0:
            is_proven = templates.total() == plan.lower_bound
            note = "" if is_proven else f"{plan.note}; balanced has {num_saved} fewer"
            return replace(plan, templates=templates, algorithm="balanced", note=note)
    return plan


def _improve(
    pairs: list[tuple[int, int]],
    capacity: int,
    limit: int,
    start: PackerResult,
    time_limit_seconds: float,
    patience: float = 1.0,
) -> PackerResult:
    """Improves the plan `start` by column generation; raises an ImportError that names the extra if it is missing."""
    try:
        # Imported here because only this packer needs HiGHS and Numba.
        from packhorse.packing.optimal.column_generation import improve
    except ImportError as error:
        raise ImportError(
            parameter("algorithm", "optimal") + f' needs highspy and numba ({error}): pip install "packhorse[prepare]"'
        ) from error
    return improve(pairs, capacity, limit, start, time_limit_seconds, patience)


_ON_SHELF = ("first-fit", "greedy-knapsack", "length-sorted", "longest-pack-first", "shortest-pack-first")
"""Names of packers of the shelf. `PACKERS` has them only if their package is installed."""

PACKERS: dict[str, Packer] = {
    "balanced": _plain("balanced", balanced),
    "best-fit": _plain("best-fit", best_fit_decreasing),
    "optimal": _optimal,
    "worst-fit": _plain("worst-fit", worst_fit_decreasing),
    "worst-fit-batched": _plain("worst-fit-batched", worst_fit_batched),
    **({name: _from_shelf(name) for name in _ON_SHELF} if is_offered("reference_packers") else {}),
}
"""Name → packer of a histogram. All pack by descending length."""

LIST_ONLY = {
    "next-fit": "one bin after the other, in the order given (concatenation)",
    "random-order": "first-fit after a seeded shuffle",
}
"""Name → description, for packers that only `pack_sequences` has: they need an order, which a histogram has not."""


def check_algorithm(algorithm: str, *, list_only: bool = False) -> None:
    """Raises a ValueError if no packer has this name, or if it is one of `LIST_ONLY` and `list_only` is False."""
    if algorithm == "auto" or algorithm in PACKERS or (list_only and algorithm in LIST_ONLY):
        return
    if algorithm in LIST_ONLY:
        raise ValueError(parameter("algorithm", algorithm) + " needs the sequences in an order: call pack_sequences")
    names = sorted({*PACKERS, *(LIST_ONLY if list_only else ())})
    raise ValueError("unknown " + parameter("algorithm", algorithm) + f"; there are: auto, {', '.join(names)}")


def check_time_limit(time_limit_seconds: float) -> None:
    """Raises a ValueError if a time limit is not above 0."""
    if not isinstance(time_limit_seconds, int | float) or not time_limit_seconds > 0:
        raise ValueError(parameter("time_limit_seconds") + f" must be above 0, got {time_limit_seconds!r}")


def packer(algorithm: str) -> Packer:
    """Returns the packer with a name that `check_algorithm` has accepted; the name may be "auto"."""
    return _auto if algorithm == "auto" else PACKERS[algorithm]


def pack_histogram(
    counts: Mapping[int, int],
    max_seq_len: int,
    *,
    algorithm: str = "auto",
    max_sequences_per_bin: int | None = None,
    time_limit_seconds: float = DEFAULT_TIME_LIMIT_SECONDS,
    align: int = 1,
    extra_tokens: int = 0,
) -> PackingPlan:
    """Plans an epoch from a length histogram.

    Example:
        >>> plan = pack_histogram({5: 5, 3: 3, 7: 1}, max_seq_len=10)
        >>> plan.num_bins, plan.efficiency, plan.proven
        (5, 0.82, True)
        >>> plan.templates[(7, 3)]
        1

    Args:
        counts: length in tokens → number of sequences; zeros are ignored.
        max_seq_len: a bin's capacity in tokens.
        algorithm: a name of `PACKERS`, or "auto". "auto" takes the plan of "best-fit" (or "balanced" with a limit of
            sequences) if it is at most `NEAR_GAP` above the lower bound. Otherwise it takes the plan of "optimal", if
            its libraries are installed, or of "balanced", if that has fewer bins and there are few distinct lengths.
        max_sequences_per_bin: the most sequences in a bin; None for no limit.
        time_limit_seconds: limit for "optimal". It normally ends earlier, after a fixed amount of work and always with
            the same plan: at most 30 s of a core on most machines, up to 90 s with a limit of sequences. If the limit
            ends it, the best plan so far is kept and `plan.cut_off` is set: the same call may give another plan.
        align: a sequence's room is a multiple of this many tokens.
        extra_tokens: tokens added to every sequence before rounding; -1 leaves out the last one. With either option,
            templates, tokens and efficiency count rooms (see `packhorse.topology.RoomRule`), and the keys of pools must
            be rooms.

    Returns:
        The plan. `plan.algorithm` names the packer that made it; with "auto" it is "optimal" only if that saved bins.

    Raises:
        ValueError: a length is above max_seq_len or below 1, a count is negative, or the algorithm is unknown.
        ImportError: "optimal" without highspy and Numba, which `packhorse[prepare]` installs.
    """
    check_time_limit(time_limit_seconds)
    check_algorithm(algorithm)
    rule = checked_rule(max_seq_len, align, extra_tokens)
    capacity = rule.max_seq_len
    pairs, limit = checked_counts(counts, capacity, max_sequences_per_bin, longest=rule.longest_length)
    if not rule.is_plain:
        pairs = sorted(rooms_of_counts(dict(pairs), rule).items(), reverse=True)
    begin = time.perf_counter()
    result = packer(algorithm)(pairs, capacity, limit, time_limit_seconds)
    return PackingPlan(
        templates=result.templates,
        max_seq_len=capacity,
        lower_bound=max(result.lower_bound, bound_of_pairs(pairs, capacity, limit)),
        algorithm=result.algorithm,
        seconds=time.perf_counter() - begin,
        certificate=result.certificate,
        cut_off=result.cut_off,
        note=result.note,
    )
