"""The plan that a search for a better one starts with, and when it is good enough to need no search.

Leaves how best-fit and the balanced packer fill bins to `best_fit` and `spreading`, and the search to `optimal`.
"""

from packhorse.packing.best_fit import best_fit_decreasing
from packhorse.packing.bounds import bound_of_pairs
from packhorse.packing.plan import PackerResult
from packhorse.packing.spreading import balanced

NEAR_GAP = 5e-5
"""A plan that is at most this share above the lower bound is good enough for "auto"."""


def first_plan(pairs: list[tuple[int, int]], capacity: int, limit: int) -> PackerResult:
    """Returns best-fit's plan, or the balanced one if it has fewer bins.

    The balanced one is tried only if a bin could exceed the limit of sequences, and best-fit's plan is not near the
    lower bound.
    """
    bound = bound_of_pairs(pairs, capacity, limit)
    plan = PackerResult(templates=best_fit_decreasing(pairs, capacity, limit), algorithm="best-fit", lower_bound=bound)
    if not pairs or is_near(plan):
        return plan
    shortest, _ = pairs[-1]
    if limit >= capacity // shortest:  # no bin can exceed the limit
        return plan
    templates = balanced(pairs, capacity, limit)
    if templates.total() >= plan.templates.total():
        return plan
    return PackerResult(templates=templates, algorithm="balanced", lower_bound=bound)


def is_near(plan: PackerResult) -> bool:
    """Returns whether a plan is within `NEAR_GAP` of its lower bound."""
    return plan.templates.total() - plan.lower_bound <= NEAR_GAP * plan.lower_bound
