"""Loss weights: each target's share of the loss, independent of its bin, micro-batch and rank.

Owns counting targets, the denominators over all ranks and micro-batches, and the weights; leaves choosing which tokens
are targets to `packhorse.client.batches`, and the loss of a token to the model. Sums over sequences are in `sums`.

A mean of the bins' means depends on which sequences share a bin, and a mean of the ranks' means depends on the ranks.
So losses are summed here, and each is divided by a count over all micro-batches and ranks, which is known beforehand:

    counts = sum(LossCounts.of_batch(batch) for batch in micro_batches).all_reduce()
    for batch in micro_batches:
        weights = build_loss_weights(batch, "sequence", counts=counts, gradient_divisor=world_size)
        (weights * loss_of_each_token(batch)).sum().backward()

A rank may get a batch without a target, for example in a last step with fewer sequences than rows. All its weights are
0, so its loss is 0 and not NaN, and the rank takes part in the reduction of gradients. A model of transformers computes
the token mean itself: `model(**batch, num_items_in_batch=counts.num_targets).loss`.

Legend: B rows, L tokens in a row, T = B·L, n sequences, G groups.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray

from packhorse.client import PackLayout, as_layout
from packhorse.client.batches import IGNORE_INDEX
from packhorse.client.batches.layout import reduced
from packhorse.client.masks.transfer import move, sequence_index, transfer
from packhorse.losses.sums import check_shape, component_names, is_distributed


class LossReduction(StrEnum):
    """The items that have equal weight in the mean loss. Sequences and groups without a target are not counted."""

    TOKEN = "token"
    """Every target has equal weight: 1 / targets."""
    SEQUENCE = "sequence"
    """Every sequence has equal weight, shared by its targets: 1 / (sequences · targets of the sequence)."""
    SAMPLE = "sample"
    """Every group of sequences (pieces of one document, responses to one prompt) has equal weight, shared by its
    targets: 1 / (groups · targets of the group)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SequenceGroups:
    """The group of each sequence of a batch; a group is one sample of the loss.

    Example:
        >>> first, second = SequenceGroups.of_ids([70, 70, 30], [30])  # documents of two micro-batches
        >>> first.numbers.tolist(), second.numbers.tolist(), first.num_groups
        ([1, 1, 0], [0], 2)
    """

    numbers: NDArray[np.int64]
    """Number of every sequence's group, in the layout's order: int64 [n], each in [0, num_groups)."""
    num_groups: int
    """G, the number of groups over all ranks and micro-batches. Every rank has the same G and the same numbers."""

    def __post_init__(self) -> None:
        if self.numbers.dtype != np.int64 or self.numbers.ndim != 1:
            raise ValueError(f"numbers must be int64 [n], got {self.numbers.dtype} {list(self.numbers.shape)}")
        if ((self.numbers < 0) | (self.numbers >= self.num_groups)).any():
            raise ValueError(f"numbers must be in [0, num_groups), which is [0, {self.num_groups})")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return reduced(self)

    @classmethod
    def of_ids(cls, *ids: ArrayLike, process_group: dist.ProcessGroup | None = None) -> list[Self]:
        """Numbers groups by their ids, with the same numbers on every rank.

        If torch.distributed runs, the ranks exchange their ids. These are in host memory, so give a gloo process group:
        NCCL would copy them to the device and wait for it.

        Args:
            ids: for each micro-batch, the id of every sequence's group, such as its document: integers [n].
            process_group: the ranks that share a step; None for all.

        Returns:
            The groups of each micro-batch.
        """
        return cls._of_keys([np.asarray(part, dtype=np.int64).reshape(-1, 1) for part in ids], 1, process_group)

    @classmethod
    def of_batches(cls, *batches: Mapping[str, Any], process_group: dist.ProcessGroup | None = None) -> list[Self]:
        """Numbers the groups of batches whose dataset was prepared with groups, with the same numbers on every rank.

        A sequence without a group, as a mixture may have, is a group by itself.

        Example:
            >>> layout = PackLayout.of_rows([2, 1, 3], [3], 6, group_ids=np.array([70, 70, 30]))
            >>> [groups] = SequenceGroups.of_batches({"layout": layout, "ids": torch.tensor([4, 5, 9])})
            >>> groups.numbers.tolist(), groups.num_groups
            ([1, 1, 0], 2)

        Args:
            batches: this rank's batches of one step.
            process_group: as for `of_ids`.

        Raises:
            ValueError: a batch has no groups.
        """
        return cls._of_keys([_keys_of_groups(batch) for batch in batches], 3, process_group)

    @classmethod
    def _of_keys(
        cls, parts: list[NDArray[np.int64]], width: int, process_group: dist.ProcessGroup | None
    ) -> list[Self]:
        """Numbers groups by their keys, in ascending order over all ranks.

        `parts` has the key of every sequence's group, for each micro-batch: int64 [n, width].
        """
        known = np.unique(np.concatenate([np.zeros((0, width), dtype=np.int64), *parts]), axis=0)
        if is_distributed():
            of_ranks: list[Any] = [None] * dist.get_world_size(process_group)
            dist.all_gather_object(of_ranks, known, group=process_group)
            known = np.unique(np.concatenate(of_ranks), axis=0)
        numbers = [
            np.unique(np.concatenate((known, part)), axis=0, return_inverse=True)[1].reshape(-1)[len(known) :]
            for part in parts
        ]
        return [cls(numbers=part.astype(np.int64), num_groups=len(known)) for part in numbers]

    def _on(self, device: torch.device) -> torch.Tensor:
        """Returns the numbers on a device, without waiting for it: int32 [n]."""
        (numbers,) = transfer([self.numbers], device)
        return numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossCounts:
    """The denominators of all three means. Add the counts of several batches with `+` or `sum`.

    Counts stay on the labels' device, and the host does not wait for it.

    Example:
        >>> layout = PackLayout.of_rows(np.array([2, 2]), np.array([2, 2]), 5)  # the second row is empty
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
    def of_batch(cls, batch: Mapping[str, Any], *, groups: SequenceGroups | None = None) -> Self:
        """Counts one batch.

        Args:
            batch: has `labels`, integers [B, L] on any device, and `layout` or, as batches of the presets padding-free,
                trl and open-instruct, `cu_seq_lens_q` in host memory; or it is a batch of trees. Count batches of other
                presets before the preset: `LossCounts.of_batch(batch)`, then `get_preset(name).convert(batch)`.
            groups: groups of the batch's sequences; None for the batch's own `groups`, if it has any.

        Raises:
            ValueError: the labels' shape or the number of groups does not fit the layout, or the batch has no layout.
        """
        return cls._of_targets(_targets_of_sequences(batch), _groups_of(batch, groups))

    @classmethod
    def _of_targets(cls, targets: torch.Tensor, groups: SequenceGroups | None) -> Self:
        """Counts a batch from the number of targets of every sequence: int64 [n]."""
        of_groups = targets.new_zeros(groups.num_groups if groups else 0)
        if groups:
            of_groups.index_add_(0, groups._on(targets.device), targets)
        return cls(num_targets=targets.sum(), num_sequences=(targets > 0).sum(), targets_of_groups=of_groups)

    @property
    def num_groups(self) -> torch.Tensor:
        """Groups with at least one target: int64 []."""
        return (self.targets_of_groups > 0).sum()

    def _to(self, device: torch.device) -> "LossCounts":
        """Returns the counts on a device, without waiting for it; never copies from a device to the host."""
        return LossCounts(
            num_targets=move(self.num_targets, device),
            num_sequences=move(self.num_sequences, device),
            targets_of_groups=move(self.targets_of_groups, device),
        )

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
        """Adds up the counts of all ranks, in one reduction; every rank must call it, with the same num_groups.

        With gloo and labels in host memory, no device is used. With NCCL the reduction is queued on the device, where
        the counts stay, and the host does not wait.

        Args:
            process_group: the ranks that share a step; None for all.
            device: where the backend reduces ("cuda" for NCCL); None for the device of the counts.

        Returns:
            Counts on `device`; the same counts if torch.distributed does not run.
        """
        counts = torch.cat([self.num_targets[None], self.num_sequences[None], self.targets_of_groups])
        if device is not None:
            counts = move(counts, torch.device(device)) if counts.device.type == "cpu" else counts.to(device)
        if is_distributed():
            dist.all_reduce(counts, group=process_group)
        return LossCounts(num_targets=counts[0], num_sequences=counts[1], targets_of_groups=counts[2:])


def build_loss_weights(
    batch: Mapping[str, Any],
    reduction: LossReduction | str = LossReduction.TOKEN,
    *,
    counts: LossCounts | None = None,
    groups: SequenceGroups | None = None,
    gradient_divisor: int = 1,
    component_weights: Mapping[str, float] | None = None,
) -> torch.Tensor:
    """Builds weights with which the sum of all tokens' losses is a mean that does not depend on packing or ranks.

    Sequences without a target have weight 0 and are not counted. Without any target, all weights and the loss are 0
    (a mean would be 0 / 0).

    Example:
        >>> layout = PackLayout.of_rows(np.array([2, 2]), np.array([2, 2]), 5)  # the second row is empty
        >>> batch = {"labels": torch.tensor([[-100, 7, -100, 8, -100], [-100] * 5]), "layout": layout}
        >>> build_loss_weights(batch, "sequence").tolist()
        [[0.0, 0.5, 0.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]]

    Args:
        batch: as for `LossCounts.of_batch`, with labels shifted or not. The host does not wait for their device.
        reduction: the items with equal weight: "token", "sequence" or "sample"; see `LossReduction`.
        counts: counts over all micro-batches and ranks of the step. None if the batch is the whole step.
        groups: groups of the sequences, for "sample". None takes the batch's `groups` or, if the batch is the whole
            step, the groups that its dataset was prepared with. For several batches, see `SequenceGroups.of_batches`.
        gradient_divisor: the number by which the training loop divides gradients: world_size with DDP and FSDP, times
            the number of micro-batches if the loop averages them. Weights are multiplied by it, so that the gradient is
            that of the global mean. The losses of all ranks then add up to gradient_divisor times the mean.
        component_weights: in a mixture, component → factor for the weights of its targets, at least 0; by default 1.
            Denominators do not change. For a component that should have the share o of the loss and has the share s of
            the samples, give o / s.

    Returns:
        float32 [B, L], aligned with `labels`: 0 where they are -100. For a batch of trees float32 [M], aligned with its
        `token_index`. If labels are not shifted and the loss is computed from `labels[:, 1:]`, take `[:, 1:]` of the
        weights too. Weights are on the labels' device, or on that of `counts` if labels are in host memory.

    Raises:
        ValueError: the reduction is unknown, "sample" lacks groups, shapes do not fit the layout, or component_weights
            do not fit the mixture.
    """
    if reduction not in list(LossReduction):
        raise ValueError(f"reduction {reduction!r} is not one of {', '.join(LossReduction)}")
    if gradient_divisor < 1:
        raise ValueError(f"gradient_divisor must be at least 1, got {gradient_divisor}")
    is_alone = counts is None and groups is None and "groups" not in batch
    if is_alone and _group_ids(batch) is not None:
        (groups,) = SequenceGroups.of_batches(batch)
    targets, groups = _targets_of_sequences(batch), _groups_of(batch, groups)
    counts = counts or LossCounts._of_targets(targets, groups)
    labels = batch["labels"]
    # Labels in host memory go to the counts' device: copying counts to the host would wait for the device.
    device = counts.num_targets.device if labels.device.type == "cpu" else labels.device
    denominators = _denominators(LossReduction(reduction), move(targets, device), groups, counts._to(device))
    of_sequences = gradient_divisor / denominators.clamp(min=1).to(torch.float32)
    if component_weights is not None:
        of_sequences = of_sequences * _component_factors(batch, component_weights, device)
    if "sequence_index" in batch:
        return of_sequences[move(batch["sequence_index"], device)]
    sequence_of_tokens = sequence_index(_layout_of(batch), device)  # 0 before the first sequence
    of_tokens = torch.nn.functional.pad(of_sequences, (1, 0))[sequence_of_tokens].view(labels.shape)
    return of_tokens * move(labels != IGNORE_INDEX, device)


def _denominators(
    reduction: LossReduction, targets: torch.Tensor, groups: SequenceGroups | None, counts: LossCounts
) -> torch.Tensor:
    """Returns, for every sequence, the number by which the loss of each of its targets is divided: int64 [n].

    `targets` has the number of targets of every sequence: int64 [n].
    """
    if reduction is LossReduction.TOKEN:
        return counts.num_targets.expand(len(targets))
    if reduction is LossReduction.SEQUENCE:
        return counts.num_sequences * targets
    if groups is None:
        raise ValueError(
            'reduction "sample" needs to know which sequences belong together: pass groups=SequenceGroups(…)'
        )
    if len(counts.targets_of_groups) != groups.num_groups:
        raise ValueError(
            f"counts know {len(counts.targets_of_groups)} groups and this batch is of {groups.num_groups}: count "
            "every micro-batch with its groups"
        )
    return counts.num_groups * counts.targets_of_groups[groups._on(targets.device)]


def _component_factors(
    batch: Mapping[str, Any], component_weights: Mapping[str, float], device: torch.device
) -> torch.Tensor:
    """Returns the factor of every sequence's component, 1 for components without one: float32 [n]."""
    names = component_names(batch)
    for name, weight in component_weights.items():
        if name not in names:
            raise ValueError(f"component_weights names {name!r}; the batch's components are {', '.join(names)}")
        if not weight >= 0:
            raise ValueError(f"component_weights[{name!r}] must be at least 0, got {weight}")
    factors = torch.tensor([float(component_weights.get(name, 1.0)) for name in names], dtype=torch.float32)
    return move(factors, device)[move(batch["component_ids"], device)]


def _layout_of(batch: Mapping[str, Any]) -> PackLayout:
    """Returns a batch's layout, or makes it from offsets, as batches of some presets have them."""
    if "layout" in batch:
        return as_layout(batch)
    if "cu_seq_lens_q" in batch:
        return as_layout(batch["cu_seq_lens_q"])
    raise ValueError(
        "this batch carries no 'layout', as those of most presets do not: count and weigh it before the preset, with "
        "LossCounts.of_batch(batch) and build_loss_weights(batch), then get_preset(name).convert(batch)"
    )


def _targets_of_sequences(batch: Mapping[str, Any]) -> torch.Tensor:
    """Returns the number of targets of every sequence, on the labels' device: int64 [n]."""
    if "sequence_index" in batch:  # a tree
        which = batch["sequence_index"]
        return which.new_zeros(len(batch["ids"])).index_add_(0, which, torch.ones_like(which))
    layout = _layout_of(batch)
    labels = batch["labels"]
    check_shape("labels", labels, layout)
    # Shifted or not, a sequence's targets are at positions of its own tokens, so a difference of sums counts them.
    num_before = torch.nn.functional.pad((labels != IGNORE_INDEX).flatten().cumsum(0), (1, 0))
    starts, ends = transfer([layout.starts, layout.starts + layout.lengths], labels.device)
    return num_before[ends] - num_before[starts]


def _group_ids(batch: Mapping[str, Any]) -> NDArray[np.int64] | None:
    """Returns the id of every sequence's group: int64 [n], negative for none; None if the batch has no groups."""
    if "sequence_index" not in batch:  # no tree
        return _layout_of(batch).group_ids
    return batch["group_ids"].cpu().numpy() if "group_ids" in batch else None


def _keys_of_groups(batch: Mapping[str, Any]) -> NDArray[np.int64]:
    """Returns a key for every sequence's group: int64 [n, 3].

    The three are the sequence's component, whether it has a group, and the group's id, or the sequence's id without
    one.
    """
    groups = _group_ids(batch)
    if groups is None:
        raise ValueError(
            "this batch has no groups: prepare its dataset with group_column or group_size, or number them by "
            "SequenceGroups.of_ids"
        )
    keys = np.zeros((len(groups), 3), dtype=np.int64)
    if "component_ids" in batch:
        keys[:, 0] = batch["component_ids"].cpu().numpy()
    keys[:, 1] = groups >= 0
    keys[:, 2] = np.where(groups >= 0, groups, batch["ids"].cpu().numpy())
    return keys


def _groups_of(batch: Mapping[str, Any], groups: SequenceGroups | None) -> SequenceGroups | None:
    """Returns the groups given, or else the batch's own; a ValueError if their number of sequences differs."""
    groups = batch.get("groups") if groups is None else groups
    num_sequences = len(batch["ids"]) if "sequence_index" in batch else _layout_of(batch).num_sequences
    if groups is not None and len(groups.numbers) != num_sequences:
        raise ValueError(f"groups number {len(groups.numbers)} sequences, and the batch has {num_sequences}")
    return groups


torch.serialization.add_safe_globals([SequenceGroups])
