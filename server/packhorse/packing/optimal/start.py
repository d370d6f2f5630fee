"""The plan that a search for a better one starts from.

Owns which of the packers that are done in no time makes it, and when no search is needed.
"""

from packhorse.packing.balanced import balanced
from packhorse.packing.best_fit import best_fit_decreasing
from packhorse.packing.bounds import bound_of_pairs
from packhorse.packing.plan import Packing

NEAR_GAP = 5e-5
"""How far above the lower bound, as a share of it, a plan is good enough for "auto"."""


def first_plan(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Packing:
    """Returns best-fit's plan or, where a limit of sequences leaves that far above the bound, the balanced one.

    Args:
        pairs: (length, count) by descending length, as `checked_counts` returns them.
        capacity: max_seq_len, in tokens.
        limit: the most sequences in a bin.
    """
    bound = bound_of_pairs(pairs, capacity, limit)
    plan = Packing(templates=best_fit_decreasing(pairs, capacity, limit), algorithm="best-fit", lower_bound=bound)
    if not pairs or is_near(plan) or limit >= capacity // pairs[-1][0]:
        return plan
    templates = balanced(pairs, capacity, limit)
    if templates.total() >= plan.templates.total():
        return plan
    return Packing(templates=templates, algorithm="balanced", lower_bound=bound)


def is_near(plan: Packing) -> bool:
    """Says whether a plan is within `NEAR_GAP` of its lower bound."""
    return plan.templates.total() - plan.lower_bound <= NEAR_GAP * plan.lower_bound
