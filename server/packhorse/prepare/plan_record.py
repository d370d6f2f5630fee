"""A plan as the records of interrupted work keep it.

Owns what is kept: what a manifest and its files need.
"""

from collections import Counter
from typing import Any

from packhorse.packing import PackingPlan


def plan_content(plan: PackingPlan) -> dict[str, Any]:
    """Returns a plan as JSON can hold it."""
    return {
        "templates": [[*template, multiplicity] for template, multiplicity in plan.templates.items()],
        "max_seq_len": plan.max_seq_len,
        "lower_bound": plan.lower_bound,
        "algorithm": plan.algorithm,
        "note": plan.note,
    }


def plan_of(content: dict[str, Any]) -> PackingPlan:
    """Returns what `plan_content` was made of."""
    templates = Counter({tuple(lengths): multiplicity for *lengths, multiplicity in content["templates"]})
    return PackingPlan(**{**content, "templates": templates})
