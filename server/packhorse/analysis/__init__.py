"""What inspect and plan tell of a dataset: other context lengths, training without packing, waiting, and plots.

`packhorse.analysis.plots` needs Matplotlib and is imported by its name.
"""

from packhorse.analysis.context_lengths import ContextLength, context_lengths
from packhorse.analysis.histogram_input import HistogramInput, read_histogram
from packhorse.analysis.over_length import fit, lengths_before, options_of, rule_of
from packhorse.analysis.unpacked import (
    ROWS_PER_BATCH,
    Unpacked,
    concatenated,
    padded,
    random_order,
    sorted_batches,
    ways_without_packing,
)
from packhorse.analysis.waiting import WaitingRow, waiting_rows
from packhorse.analysis.windows import quality_rows

__all__ = [
    "ROWS_PER_BATCH",
    "ContextLength",
    "HistogramInput",
    "Unpacked",
    "WaitingRow",
    "concatenated",
    "context_lengths",
    "fit",
    "lengths_before",
    "options_of",
    "padded",
    "quality_rows",
    "random_order",
    "read_histogram",
    "rule_of",
    "sorted_batches",
    "waiting_rows",
    "ways_without_packing",
]
