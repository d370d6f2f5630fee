"""Context parallelism: the part of a rank in a bin that several ranks share."""

from packhorse.parallel.context import (
    ContextBatch,
    ContextCounts,
    context_batch,
    context_batches,
    context_parallel_indices,
)
from packhorse.parallel.process_groups import context_process_groups

__all__ = [
    "ContextBatch",
    "ContextCounts",
    "context_batch",
    "context_batches",
    "context_parallel_indices",
    "context_process_groups",
]
