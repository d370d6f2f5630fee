"""Packing: lengths and histograms become plans. Pure; importing needs NumPy only."""

from packhorse.packing.bin_order import shuffle_bins
from packhorse.packing.bounds import lower_bound
from packhorse.packing.certificate import DualCertificate
from packhorse.packing.certificate_check import check_certificate
from packhorse.packing.lengths import checked_lengths, length_histogram_from_lengths, sort_indices_by_length
from packhorse.packing.list_packers import greedy_pack_sequences, heap_pack_sequences
from packhorse.packing.plan import PackingPlan, Template, canonical_templates, counts_of_templates
from packhorse.packing.registry import DEFAULT_TIME_LIMIT_SECONDS, LIST_ONLY, PACKERS, pack_histogram
from packhorse.packing.seeds import seed_from_components
from packhorse.packing.sequences import PackedSequences, pack_sequences
from packhorse.packing.stats import PackingStats
from packhorse.packing.worst_fit import pack_length_histogram, pack_length_histogram_batched

__all__ = [
    "DEFAULT_TIME_LIMIT_SECONDS",
    "LIST_ONLY",
    "PACKERS",
    "DualCertificate",
    "PackedSequences",
    "PackingPlan",
    "PackingStats",
    "Template",
    "canonical_templates",
    "check_certificate",
    "checked_lengths",
    "counts_of_templates",
    "greedy_pack_sequences",
    "heap_pack_sequences",
    "length_histogram_from_lengths",
    "lower_bound",
    "pack_histogram",
    "pack_length_histogram",
    "pack_length_histogram_batched",
    "pack_sequences",
    "seed_from_components",
    "shuffle_bins",
    "sort_indices_by_length",
]
