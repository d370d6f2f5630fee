"""Metrics of each component of a mixture, made of a batch by `per_component_metrics`, and added up over batches.

Owns `ComponentMetrics` and the names of a batch's components. Leaves sums for each sequence to `sums`, and the
component of each sequence to `packhorse.client.batches`.

Legend: B rows, L tokens in a row, C components.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (its usual name)

from packhorse.client import as_layout
from packhorse.client.batches import IGNORE_INDEX
from packhorse.client.masks.token_index import sequence_index
from packhorse.client.masks.transfer import move
from packhorse.losses._batch_facts import check_shape


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComponentMetrics:
    """Losses and targets of each component. Add the metrics of several batches with `+` or `sum`.

    Example:
        >>> one = ComponentMetrics(names=("web",), loss_sums=torch.tensor([6.0]), num_targets=torch.tensor([3]))
        >>> (one + one).mean_losses.tolist()
        [2.0]
    """

    names: tuple[str, ...]
    """Names of the components, in the order of `component_ids`."""
    loss_sums: torch.Tensor
    """Sum of the losses of each component's targets: float32 [C]."""
    num_targets: torch.Tensor
    """Targets of each component: int64 [C]."""

    @property
    def mean_losses(self) -> torch.Tensor:
        """Mean loss of each component's targets: float32 [C]; NaN for a component without targets."""
        return self.loss_sums / self.num_targets

    def __add__(self, other: "ComponentMetrics") -> "ComponentMetrics":
        """Adds the metrics of another batch; a ValueError if one's names do not begin with the other's.

        One batch may have more components, at the end, because a later stage of the mixture added them.
        """
        names = max(self.names, other.names, key=len)
        if names[: len(self.names)] != self.names or names[: len(other.names)] != other.names:
            raise ValueError(f"metrics of {', '.join(self.names)} and of {', '.join(other.names)} do not add up")

        def with_zeros(values: torch.Tensor) -> torch.Tensor:
            """Appends a zero for each component that one batch lacks."""
            return F.pad(values, (0, len(names) - len(values)))

        return ComponentMetrics(
            names=names,
            loss_sums=with_zeros(self.loss_sums) + with_zeros(other.loss_sums),
            num_targets=with_zeros(self.num_targets) + with_zeros(other.num_targets),
        )

    def __radd__(self, start: int) -> "ComponentMetrics":
        """Lets `sum` begin with 0."""
        return self if start == 0 else NotImplemented

    def all_reduce(self, process_group: dist.ProcessGroup | None = None) -> "ComponentMetrics":
        """Adds up the metrics of all ranks, in one reduction that every rank must call in the same stage.

        Args:
            process_group: the ranks that share a step; None for all.

        Returns:
            The sums; the same metrics if torch.distributed does not run.
        """
        if not (dist.is_available() and dist.is_initialized()):
            return self
        # One tensor for both; float64 holds whole numbers up to 2^53 exactly.
        sums_and_counts = torch.cat([self.loss_sums.double(), self.num_targets.double()])
        dist.all_reduce(sums_and_counts, group=process_group)
        sums, counts = sums_and_counts.chunk(2)
        return ComponentMetrics(names=self.names, loss_sums=sums.float(), num_targets=counts.long())


def per_component_metrics(losses: torch.Tensor, batch: Mapping[str, Any]) -> ComponentMetrics:
    """Sums the losses and counts the targets of each component in a mixture's batch.

    Example:
        >>> from packhorse.client import PackLayout
        >>> batch = {
        ...     "labels": torch.tensor([[-100, 1, -100, 1, 1]]),
        ...     "layout": PackLayout.of_rows(rooms=[2, 3], row_ends=[2], row_tokens=5),
        ...     "component_ids": torch.tensor([1, 0], dtype=torch.int32),
        ...     "component_names": ("web", "code"),
        ... }
        >>> metrics = per_component_metrics(torch.tensor([[0.0, 4.0, 0.0, 1.0, 2.0]]), batch)
        >>> metrics.loss_sums.tolist(), metrics.num_targets.tolist()
        ([3.0, 4.0], [2, 1])

    Args:
        losses: the loss of each token, aligned with `labels`: a floating type [B, L], on any device; the host does not
            wait. Losses where labels are -100 do not count.
        batch: a batch of a mixture, without a preset: it has `labels`, `layout`, `component_ids` and `component_names`.

    Raises:
        ValueError: the batch does not come from a mixture, or shapes do not fit.
    """
    names = component_names(batch)
    layout, labels, device = as_layout(batch), batch["labels"], losses.device
    check_shape("losses", losses, layout)
    check_shape("labels", labels, layout)
    # Tokens that are no target, or in no sequence, are counted for an extra component, which is cut off at the end.
    none = len(names)
    # [n + 1]: the component of each sequence, after that of tokens before the first one (their sequence_index is 0).
    component_of = F.pad(move(batch["component_ids"], device), (1, 0), value=none)
    is_target = move(labels != IGNORE_INDEX, device).flatten()
    components = torch.where(is_target, component_of[sequence_index(layout, device)], none).long()  # [B·L]
    sums = torch.zeros(len(names) + 1, dtype=torch.float32, device=device)
    counts = torch.zeros(len(names) + 1, dtype=torch.int64, device=device)
    return ComponentMetrics(
        names=names,
        loss_sums=sums.index_add(0, components, losses.detach().flatten().float())[:-1],
        num_targets=counts.index_add(0, components, torch.ones_like(components))[:-1],
    )


def component_names(batch: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the components of a batch's mixture.

    Raises:
        ValueError: the batch does not come from a mixture.
    """
    if "component_ids" not in batch or "component_names" not in batch:
        raise ValueError(
            "this batch carries no component_ids: it is of no mixture, or a preset has left them out; measure and "
            "weigh it before the preset, then get_preset(name).convert(batch)"
        )
    return tuple(batch["component_names"])
