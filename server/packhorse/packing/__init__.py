"""Packing: lengths and histograms become plans. Pure; NumPy only."""

from packhorse.packing.bounds import lower_bound
from packhorse.packing.checks import checked_integer
from packhorse.packing.plan import PackingPlan, Template, canonical_templates, counts_of_templates
from packhorse.packing.registry import PACKERS, pack_histogram
from packhorse.packing.seeds import seed_from_components
from packhorse.packing.stats import PackingStats

__all__ = [
    "PACKERS",
    "PackingPlan",
    "PackingStats",
    "Template",
    "canonical_templates",
    "checked_integer",
    "counts_of_templates",
    "lower_bound",
    "pack_histogram",
    "seed_from_components",
]
