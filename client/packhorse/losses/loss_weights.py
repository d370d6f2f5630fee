"""Loss weights: each target's share of the loss, independent of its bin, micro-batch and rank.

Owns the weights. Leaves counting targets over all ranks and micro-batches to `counts`, groups of sequences to `groups`,
choosing which tokens are targets to `packhorse.client.batches`, and the loss of a token to the model. Sums over
sequences are in `sums`, those of log-probabilities in `log_probs`.

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

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import torch

from packhorse.client.batches import IGNORE_INDEX
from packhorse.client.masks.token_index import sequence_index
from packhorse.client.masks.transfer import move
from packhorse.losses._batch_facts import group_ids_of, is_of_trees, layout_of, target_counts_of
from packhorse.losses.components import component_names
from packhorse.losses.counts import LossCounts, counts_of_targets, counts_on
from packhorse.losses.groups import SequenceGroups, groups_of, numbers_on


class LossReduction(StrEnum):
    """The items that have equal weight in the mean loss. Sequences and groups without a target are not counted."""

    TOKEN = "token"
    """Every target has equal weight: 1 / targets."""
    SEQUENCE = "sequence"
    """Every sequence has equal weight, shared by its targets: 1 / (sequences · targets of the sequence)."""
    SAMPLE = "sample"
    """Every group of sequences (pieces of one document, responses to one prompt) has equal weight, shared by its
    targets: 1 / (groups · targets of the group)."""


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
        >>> from packhorse.client import PackLayout
        >>> layout = PackLayout.of_rows([2, 2], [2, 2], 5)  # the second row is empty
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
    is_whole_step = counts is None and groups is None and "groups" not in batch
    if is_whole_step and group_ids_of(batch) is not None:
        (groups,) = SequenceGroups.of_batches(batch)
    target_counts, groups = target_counts_of(batch), groups_of(batch, groups)
    counts = counts or counts_of_targets(target_counts, groups)
    labels = batch["labels"]
    # Labels in host memory go to the counts' device: copying counts to the host would wait for the device.
    device = counts.num_targets.device if labels.device.type == "cpu" else labels.device
    denominators = _denominators(
        LossReduction(reduction), move(target_counts, device), groups, counts_on(counts, device)
    )
    # 0 only if there is no target, and then no token has this weight.
    sequence_weights = gradient_divisor / denominators.clamp(min=1).to(torch.float32)  # [n], of each of its targets
    if component_weights is not None:
        sequence_weights = sequence_weights * _component_factors(batch, component_weights, device)
    if is_of_trees(batch):
        return sequence_weights[move(batch["sequence_index"], device)]
    sequence_of_tokens = sequence_index(layout_of(batch), device)  # [T]: i + 1 in sequence i, 0 before the first
    token_weights = torch.nn.functional.pad(sequence_weights, (1, 0))[sequence_of_tokens].view(labels.shape)
    return token_weights * move(labels != IGNORE_INDEX, device)


def _denominators(
    reduction: LossReduction, target_counts: torch.Tensor, groups: SequenceGroups | None, counts: LossCounts
) -> torch.Tensor:
    """Returns, for every sequence, the number by which the loss of each of its targets is divided: int64 [n].

    `target_counts` has the number of targets of every sequence: int64 [n].
    """
    if reduction is LossReduction.TOKEN:
        return counts.num_targets.expand(len(target_counts))
    if reduction is LossReduction.SEQUENCE:
        return counts.num_sequences * target_counts
    if groups is None:
        raise ValueError(
            'reduction "sample" needs to know which sequences belong together: pass groups=SequenceGroups(…)'
        )
    if len(counts.targets_of_groups) != groups.num_groups:
        raise ValueError(
            f"counts know {len(counts.targets_of_groups)} groups and this batch is of {groups.num_groups}: count "
            "every micro-batch with its groups"
        )
    return counts.num_groups * counts.targets_of_groups[numbers_on(groups, target_counts.device)]


def _component_factors(
    batch: Mapping[str, Any], component_weights: Mapping[str, float], device: torch.device
) -> torch.Tensor:
    """Returns the factor of every sequence's component, 1 for components without one: float32 [n]."""
    names = component_names(batch)
    for name, weight in component_weights.items():
        if name not in names:
            raise ValueError(f"component_weights names {name!r}; the batch's components are {', '.join(names)}")
        if not weight >= 0:  # also NaN
            raise ValueError(f"component_weights[{name!r}] must be at least 0, got {weight}")
    factors = torch.tensor([float(component_weights.get(name, 1.0)) for name in names], dtype=torch.float32)
    return move(factors, device)[move(batch["component_ids"], device)]
