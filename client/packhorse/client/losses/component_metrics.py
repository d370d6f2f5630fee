"""Losses of a mixture's components, each by itself: what a run logs beside its loss.

Owns the sums by component and adding them up; leaves which sequence is of which component to the batch. Nothing waits
for a device.

Legend: B rows, L tokens in a row, C components.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from packhorse.client.batches.layout import as_layout
from packhorse.client.batches.targets import IGNORE_INDEX
from packhorse.client.masks.on_device import move, sequence_index


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComponentMetrics:
    """Losses and targets of each component; those of several batches add up (`+`, `sum`).

    Example:
        >>> one = ComponentMetrics(names=("web",), loss_sums=torch.tensor([6.0]), num_targets=torch.tensor([3]))
        >>> (one + one).mean_losses.tolist()
        [2.0]
    """

    names: tuple[str, ...]
    """Components, in the order of `component_ids`."""
    loss_sums: torch.Tensor
    """Sum of the losses of each one's targets: float32 [C]."""
    num_targets: torch.Tensor
    """Their number: int64 [C]."""

    @property
    def mean_losses(self) -> torch.Tensor:
        """Mean loss of each one's targets: float32 [C]; NaN where a component has none."""
        return self.loss_sums / self.num_targets

    def __add__(self, other: "ComponentMetrics") -> "ComponentMetrics":
        """Adds those of another batch; components that a later stage brought stand behind the others."""
        names = max(self.names, other.names, key=len)
        if names[: len(self.names)] != self.names or names[: len(other.names)] != other.names:
            raise ValueError(f"metrics of {', '.join(self.names)} and of {', '.join(other.names)} do not add up")

        def widened(values: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.pad(values, (0, len(names) - len(values)))

        return ComponentMetrics(
            names=names,
            loss_sums=widened(self.loss_sums) + widened(other.loss_sums),
            num_targets=widened(self.num_targets) + widened(other.num_targets),
        )

    def __radd__(self, start: int) -> "ComponentMetrics":
        """Lets `sum` begin with 0."""
        if start != 0:
            return NotImplemented
        return self

    def all_reduce(self, process_group: dist.ProcessGroup | None = None) -> "ComponentMetrics":
        """Adds up those of all ranks, in one reduction; every rank must call it, in the same stage of the mixture.

        Args:
            process_group: the ranks that share a step; None for all.

        Returns:
            The sums; where torch.distributed does not run, the same ones.
        """
        if not (dist.is_available() and dist.is_initialized()):
            return self
        both = torch.cat([self.loss_sums.double(), self.num_targets.double()])  # whole numbers up to 2^53 are exact
        dist.all_reduce(both, group=process_group)
        sums, counts = both.chunk(2)
        return ComponentMetrics(names=self.names, loss_sums=sums.float(), num_targets=counts.long())


def per_component_metrics(losses: torch.Tensor, batch: Mapping[str, Any]) -> ComponentMetrics:
    """Adds up the losses of a mixture's batch, and counts its targets, component by component.

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
        losses: of each token, aligned with `labels`: a floating type [B, L], on any device, which is not waited for.
            What stands where labels are -100 does not count.
        batch: of a mixture, with `labels`, `layout`, `component_ids` and `component_names`, as before a preset.

    Raises:
        ValueError: the batch is of no mixture, or shapes do not fit.
    """
    check_mixed(batch)
    layout, labels, device = as_layout(batch), batch["labels"], losses.device
    if losses.shape != labels.shape or labels.shape != (layout.num_rows, layout.row_tokens):
        raise ValueError(
            f"losses have shape {list(losses.shape)}, labels {list(labels.shape)}, and the batch's layout has "
            f"{layout.num_rows} rows of {layout.row_tokens} tokens: give one loss for each label"
        )
    names = tuple(batch["component_names"])
    of_sequences = torch.nn.functional.pad(move(batch["component_ids"], device), (1, 0), value=len(names))
    is_target = move(labels != IGNORE_INDEX, device).flatten()
    number = torch.where(is_target, of_sequences[sequence_index(layout, device)], len(names)).long()
    sums = torch.zeros(len(names) + 1, dtype=torch.float32, device=device)
    counts = torch.zeros(len(names) + 1, dtype=torch.int64, device=device)
    return ComponentMetrics(
        names=names,
        loss_sums=sums.index_add(0, number, losses.detach().flatten().float())[:-1],
        num_targets=counts.index_add(0, number, torch.ones_like(number))[:-1],
    )


def factors_of_sequences(
    batch: Mapping[str, Any], component_weights: Mapping[str, float], device: torch.device
) -> torch.Tensor:
    """Returns how much every sequence counts by its component, 1 where nothing is said: float32 [n].

    Raises:
        ValueError: the batch is of no mixture, or a weight is of no component of it, or negative.
    """
    check_mixed(batch)
    names = tuple(batch["component_names"])
    for name, weight in component_weights.items():
        if name not in names:
            raise ValueError(f"component_weights names {name!r}; the batch's components are {', '.join(names)}")
        if not weight >= 0:
            raise ValueError(f"component_weights[{name!r}] must be at least 0, got {weight}")
    factors = torch.tensor([float(component_weights.get(name, 1.0)) for name in names], dtype=torch.float32)
    return move(factors, device)[move(batch["component_ids"], device)]


def check_mixed(batch: Mapping[str, Any]) -> None:
    """Refuses a batch that does not say which component its sequences are of."""
    if "component_ids" not in batch or "component_names" not in batch:
        raise ValueError(
            "this batch carries no component_ids: it is of no mixture, or a preset has left them out; measure and "
            "weigh it before the preset, then get_preset(name).convert(batch)"
        )
