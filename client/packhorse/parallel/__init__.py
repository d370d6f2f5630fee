"""Context parallelism: the part of a rank in a bin that several ranks share."""

from packhorse.parallel.context import ContextBatch, context_batch, context_batches
from packhorse.parallel.counts import ContextCounts
from packhorse.parallel.process_groups import context_process_groups
from packhorse.parallel.row_layouts import context_parallel_indices

__all__ = [
    "ContextBatch",
    "ContextCounts",
    "context_batch",
    "context_batches",
    "context_parallel_indices",
    "context_process_groups",
]
