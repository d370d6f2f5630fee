"""`ContextCounts`: the denominators of losses over an optimizer step whose bins several ranks share.

Owns counting each sequence and target once. Leaves the parts that are counted to `context`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from packhorse.client.batches import IGNORE_INDEX
from packhorse.parallel.context import ContextBatch


@dataclass(frozen=True, kw_only=True, eq=False)
class ContextCounts:
    """Counts over the micro-steps of an optimizer step: denominators of losses, and input for FLOP counters.

    Sums stay on the parts' device, and the host does not wait for them.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> from packhorse.parallel import context_batch
        >>> from packhorse.topology import ContextRule
        >>> batches = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1)
        >>> rule = ContextRule(tokens_per_rank=4, max_context_parallel=2)
        >>> parts = [context_batch(batch, rule, rank=0, layout=None) for batch in batches]
        >>> counts = ContextCounts.of_parts(parts)
        >>> counts.num_micro_steps, int(counts.num_tokens), int(counts.sum_of_squares), int(counts.num_targets)
        (2, 16, 68, 12)
    """

    num_micro_steps: int
    """Micro-steps of this rank. With `context_batch` all ranks have the same number."""
    num_targets: torch.Tensor
    """Labels that are predicted: int64 []."""
    num_tokens: torch.Tensor
    """Sum of the sequences' lengths: int64 []."""
    sum_of_squares: torch.Tensor
    """Sum of the squares of the sequences' lengths: int64 []."""

    @classmethod
    def of_parts(cls, parts: Sequence[ContextBatch]) -> "ContextCounts":
        """Counts a rank's parts, so that sums over all ranks count everything once.

        A sequence is counted on the first of its ranks, and a target on the rank that has it. If the ranks did not
        divide the tokens (layout None), all of them have all targets, which then are counted on the first rank too.

        Args:
            parts: the parts of one optimizer step, at least one, from `context_batch` or `context_batches`.
        """
        device = parts[0].labels.device
        firsts = [part for part in parts if part.cp_rank == 0]
        targets = [
            (part.labels != IGNORE_INDEX).sum()
            for part in parts
            if part.cp_rank == 0 or part.labels.shape[1] < int(part.cu_seqlens[-1])  # the ranks divided the tokens
        ]
        return cls(
            num_micro_steps=len(parts),
            num_targets=sum(targets, torch.zeros((), dtype=torch.int64, device=device)),
            num_tokens=torch.tensor(sum(part.num_tokens for part in firsts), device=device),
            sum_of_squares=torch.tensor(sum(part.sum_of_squares for part in firsts), device=device),
        )

    def all_reduce(self, process_group: "dist.ProcessGroup | None" = None) -> "ContextCounts":
        """Adds up the counts of all ranks, in one reduction that every rank must call.

        Args:
            process_group: the ranks that share an optimizer step; None for all.

        Returns:
            The sums, with this rank's own `num_micro_steps`; the same counts if torch.distributed does not run.
        """
        sums = torch.stack((self.num_targets, self.num_tokens, self.sum_of_squares))
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(sums, group=process_group)
        targets, tokens, squares = sums
        return replace(self, num_targets=targets, num_tokens=tokens, sum_of_squares=squares)
