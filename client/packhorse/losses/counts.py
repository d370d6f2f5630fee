"""`LossCounts`: the denominators of the mean losses, summed over micro-batches and ranks.

Owns counting targets, sequences and groups. Leaves choosing which tokens are targets to `packhorse.client.batches`, and
dividing by the counts to `loss_weights`.

Legend: B rows, L tokens in a row, n sequences, G groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from packhorse.client.masks.transfer import move
from packhorse.losses._batch_facts import target_counts_of
from packhorse.losses.groups import SequenceGroups, groups_of, numbers_on


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossCounts:
    """The denominators of all three means. Add the counts of several batches with `+` or `sum`.

    Counts stay on the labels' device, and the host does not wait for it.

    Example:
        >>> from packhorse.client import PackLayout
        >>> layout = PackLayout.of_rows([2, 2], [2, 2], 5)  # the second row is empty
        >>> batch = {"labels": torch.tensor([[-100, 7, -100, 8, -100], [-100] * 5]), "layout": layout}
        >>> counts = sum(LossCounts.of_batch(micro_batch) for micro_batch in [batch, batch])
        >>> int(counts.num_targets), int(counts.num_sequences)
        (4, 4)
    """

    num_targets: torch.Tensor
    """Labels that are predicted: int64 []."""
    num_sequences: torch.Tensor
    """Sequences with at least one target: int64 []."""
    targets_of_groups: torch.Tensor
    """Targets of every group: int64 [G]; [0] without groups."""

    @classmethod
    def of_batch(cls, batch: Mapping[str, Any], *, groups: SequenceGroups | None = None) -> "LossCounts":
        """Counts one batch.

        Args:
            batch: has `labels`, integers [B, L] on any device, and `layout` or, as batches of the presets padding-free,
                trl and open-instruct, `cu_seq_lens_q` in host memory; or it is a batch of trees. Count batches of other
                presets before the preset: `LossCounts.of_batch(batch)`, then `get_preset(name).convert(batch)`.
            groups: groups of the batch's sequences; None for the batch's own `groups`, if it has any.

        Raises:
            ValueError: the labels' shape or the number of groups does not fit the layout, or the batch has no layout.
        """
        return counts_of_targets(target_counts_of(batch), groups_of(batch, groups))

    @property
    def num_groups(self) -> torch.Tensor:
        """Groups with at least one target: int64 []."""
        return (self.targets_of_groups > 0).sum()

    def __add__(self, other: "LossCounts") -> "LossCounts":
        """Adds the counts of another batch; a ValueError if the two have different numbers of groups."""
        if len(self.targets_of_groups) != len(other.targets_of_groups):
            raise ValueError(
                f"counts of {len(self.targets_of_groups)} and of {len(other.targets_of_groups)} groups do not add up: "
                "num_groups must be the same in all micro-batches"
            )
        return LossCounts(
            num_targets=self.num_targets + other.num_targets,
            num_sequences=self.num_sequences + other.num_sequences,
            targets_of_groups=self.targets_of_groups + other.targets_of_groups,
        )

    def __radd__(self, start: int) -> "LossCounts":
        """Lets `sum` begin with 0."""
        return self if start == 0 else NotImplemented

    def all_reduce(
        self, process_group: dist.ProcessGroup | None = None, *, device: torch.device | str | None = None
    ) -> "LossCounts":
        """Adds up the counts of all ranks, in one reduction.

        Every rank must call it, with the same number G of groups (`SequenceGroups.num_groups`), as for `+`.

        With gloo and labels in host memory, no device is used. With NCCL the reduction is queued on the device, where
        the counts stay, and the host does not wait.

        Args:
            process_group: the ranks that share a step; None for all.
            device: where the backend reduces ("cuda" for NCCL); None for the device of the counts.

        Returns:
            Counts on `device`; those of this process if torch.distributed does not run.
        """
        counts = torch.cat([self.num_targets[None], self.num_sequences[None], self.targets_of_groups])
        if device is not None:
            counts = move(counts, torch.device(device))
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(counts, group=process_group)
        return LossCounts(num_targets=counts[0], num_sequences=counts[1], targets_of_groups=counts[2:])


def counts_of_targets(target_counts: torch.Tensor, groups: SequenceGroups | None) -> LossCounts:
    """Counts a batch, of which `target_counts` has the number of targets of every sequence: int64 [n]."""
    targets_of_groups = target_counts.new_zeros(groups.num_groups if groups else 0)
    if groups:
        targets_of_groups.index_add_(0, numbers_on(groups, target_counts.device), target_counts)
    return LossCounts(
        num_targets=target_counts.sum(),
        num_sequences=(target_counts > 0).sum(),
        targets_of_groups=targets_of_groups,
    )


def counts_on(counts: LossCounts, device: torch.device) -> LossCounts:
    """Returns the counts on a device; the host does not wait, unless they are copied to the host from a device."""
    return LossCounts(
        num_targets=move(counts.num_targets, device),
        num_sequences=move(counts.num_sequences, device),
        targets_of_groups=move(counts.targets_of_groups, device),
    )
