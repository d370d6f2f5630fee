"""Packing: from lengths, or their histogram, to a plan of bins. Pure functions, without files or threads.

This file only exports. Importing it needs no more than NumPy: the names in `_COMPILED_PARTS` need Numba, so their
modules are loaded when a name is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from packhorse.packing.best_fit import fill_decreasing
from packhorse.packing.bounds import check_certificate, lower_bound
from packhorse.packing.budgets.distinct_rows import distinct_rows
from packhorse.packing.budgets.size_classes import SizeClasses
from packhorse.packing.budgets.vectors import pack_classes, vector_bound
from packhorse.packing.context import pack_context
from packhorse.packing.counts import MAX_SEQ_LEN
from packhorse.packing.lengths import checked_lengths, length_histogram_from_lengths, sort_indices_by_length
from packhorse.packing.on_demand.online_items import OnlineBin, OnlineItem
from packhorse.packing.on_demand.sequences import PackedSequences, pack_sequences, pack_sizes
from packhorse.packing.plan import DualCertificate, PackingPlan, Template, canonical_templates, counts_of_templates
from packhorse.packing.registry import DEFAULT_TIME_LIMIT_SECONDS, LIST_ONLY, PACKERS, pack_histogram
from packhorse.packing.rooms import checked_rule, rooms_of_lengths
from packhorse.packing.seqpack import (
    greedy_pack_sequences,
    heap_pack_sequences,
    pack_length_histogram,
    pack_length_histogram_batched,
    seed_from_components,
    shuffle_bins,
)
from packhorse.packing.spreading import spread_decreasing
from packhorse.packing.stats import PackingStats

if TYPE_CHECKING:
    from packhorse.packing.compile import compile_kernels
    from packhorse.packing.on_demand.even import even_bins
    from packhorse.packing.on_demand.online import OnlinePacker
    from packhorse.packing.split import halve_into, laid_end_to_end, split_to_multiple

# Name → the module that has it.
_COMPILED_PARTS = {
    "OnlinePacker": "on_demand.online",
    "compile_kernels": "compile",
    "even_bins": "on_demand.even",
    "halve_into": "split",
    "laid_end_to_end": "split",
    "split_to_multiple": "split",
}

__all__ = [
    "DEFAULT_TIME_LIMIT_SECONDS",
    "LIST_ONLY",
    "MAX_SEQ_LEN",
    "PACKERS",
    "DualCertificate",
    "OnlineBin",
    "OnlineItem",
    "OnlinePacker",
    "PackedSequences",
    "PackingPlan",
    "PackingStats",
    "SizeClasses",
    "Template",
    "canonical_templates",
    "check_certificate",
    "checked_lengths",
    "checked_rule",
    "compile_kernels",
    "counts_of_templates",
    "distinct_rows",
    "even_bins",
    "fill_decreasing",
    "greedy_pack_sequences",
    "halve_into",
    "heap_pack_sequences",
    "laid_end_to_end",
    "length_histogram_from_lengths",
    "lower_bound",
    "pack_classes",
    "pack_context",
    "pack_histogram",
    "pack_length_histogram",
    "pack_length_histogram_batched",
    "pack_sequences",
    "pack_sizes",
    "rooms_of_lengths",
    "seed_from_components",
    "shuffle_bins",
    "sort_indices_by_length",
    "split_to_multiple",
    "spread_decreasing",
    "vector_bound",
]


def __getattr__(name: str) -> Any:
    """Loads a name that needs Numba."""
    if name not in _COMPILED_PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_COMPILED_PARTS[name]}"), name)
