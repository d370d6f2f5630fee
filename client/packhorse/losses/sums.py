"""Sums over the tokens of each sequence of a packed batch, and of each component of a mixture.

Owns reducing values of tokens to one number for each sequence or component. Leaves choosing which tokens are targets,
and the component of each sequence, to `packhorse.client.batches`; weights of tokens are in `loss_weights`. No function
waits for a device.

Legend: B rows, L tokens in a row, n sequences, C components, V tokens in the vocabulary; in a batch of trees, M trained
tokens, each counted once for every sequence that it is trained in.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (its usual name)

from packhorse.client import as_layout
from packhorse.client.batches import IGNORE_INDEX, has_shifted_labels
from packhorse.client.masks.transfer import move, sequence_index
from packhorse.losses._batch_facts import check_shape


def sum_over_sequences(batch: Mapping[str, Any], values: torch.Tensor) -> torch.Tensor:
    """Sums the values of each sequence's tokens. Values on padding must be 0.

    Example:
        >>> from packhorse.client import PackLayout
        >>> layout = PackLayout.of_rows(rooms=[2, 1, 3], row_ends=[2, 3], row_tokens=4)
        >>> sum_over_sequences({"layout": layout}, torch.tensor([[1.0, 2, 4, 0], [1, 1, 1, 0]])).tolist()
        [3.0, 4.0, 3.0]

    Args:
        batch: carries its `layout`.
        values: a floating type [B, L], on any device; the host does not wait.

    Returns:
        float32 [n] (float64 if `values` are), in the order of `ids`; gradients flow to `values`.

    Raises:
        ValueError: the batch has no layout, or the values have another shape.
    """
    layout = as_layout(batch)
    check_shape("values", values, layout)
    of_tokens = values.flatten().to(torch.promote_types(values.dtype, torch.float32))
    sums = of_tokens.new_zeros(layout.num_sequences + 1)
    return sums.index_add(0, sequence_index(layout, values.device), of_tokens)[1:]


def sequence_log_probs(
    batch: Mapping[str, Any], logits: torch.Tensor, *, shift_labels: bool | None = None
) -> torch.Tensor:
    """Sums the log-probabilities of each sequence's targets: log p(completion | prompt), if prompts are not targets.

    Example:
        >>> from packhorse.client import PackLayout
        >>> batch = {
        ...     "labels": torch.tensor([[-100, 1, 0, -100, 1]]),
        ...     "layout": PackLayout.of_rows(rooms=[3, 2], row_ends=[2], row_tokens=5),
        ... }
        >>> logits = torch.zeros(1, 5, 2)  # both tokens are as likely
        >>> (sequence_log_probs(batch, logits, shift_labels=False).exp()).tolist()
        [0.25, 0.5]

    Args:
        batch: has `labels`, int64 [B, L], −100 where nothing is predicted, and its `layout`; or it is a batch of trees.
        logits: a floating type [B, L, V], on any device; the host does not wait. Sums are taken in float32.
        shift_labels: whether `labels[t]` is the token after t, for a batch without the key `shift_labels`. Ours have
            it.

    Returns:
        float32 [n], in the order of `ids`; 0 for a sequence without targets.

    Raises:
        ValueError: neither the batch nor `shift_labels` says whether labels are shifted, or they contradict each other,
            or shapes do not fit.
    """
    if "sequence_index" in batch:  # a tree
        of_trained = trained_log_probs(batch, logits)
        sums = of_trained.new_zeros(len(batch["ids"]))
        return sums.index_add(0, move(batch["sequence_index"], logits.device), of_trained)
    shifted = has_shifted_labels(batch, shift_labels)
    labels = batch["labels"]
    # Labels are shifted and not logits, because shifting logits would copy a large tensor.
    targets = labels if shifted else F.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)
    return sum_over_sequences(batch, _log_probs(targets, logits))


def trained_log_probs(batch: Mapping[str, Any], logits: torch.Tensor) -> torch.Tensor:
    """Returns the log-probability of every trained token, once for each sequence that it is trained in.

    Example:
        >>> from packhorse.rollouts import Rollouts, pack_rollouts
        >>> rollouts = Rollouts(queries=[[1], [1]], responses=[[0], [1]])
        >>> [batch] = pack_rollouts(rollouts, max_seq_len=4, pad_token_id=0, prefixes="tree")
        >>> trained_log_probs(batch, torch.zeros(1, 4, 2)).exp().tolist()
        [0.5, 0.5]

    Args:
        batch: a batch of trees, from `pack_rollouts` with `prefixes="tree"` or a dataset with `shared_prefix="tree"`.
        logits: a floating type [B, L, V], on any device; the host does not wait.

    Returns:
        float32 [M] (float64 if `logits` are), in the order of `token_index`.

    Raises:
        ValueError: the shapes do not fit.
    """
    of_tokens = _log_probs(batch["labels"], logits)
    return of_tokens.flatten()[move(batch["token_index"], logits.device)]


def _log_probs(labels: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Returns the log-probability of each label under the logits at its position, 0 where it is -100: [B, L]."""
    if logits.shape[:-1] != labels.shape:
        raise ValueError(f"logits have shape {list(logits.shape)}, and labels {list(labels.shape)}")
    as_float32 = logits.to(torch.promote_types(logits.dtype, torch.float32))
    targets = move(labels, logits.device).flatten()
    losses = F.cross_entropy(as_float32.flatten(0, 1), targets, ignore_index=IGNORE_INDEX, reduction="none")
    return -losses.view(labels.shape)


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
        """Adds the metrics of another batch.

        One batch may have more components, at the end, because a later stage of the mixture added them.
        """
        names = max(self.names, other.names, key=len)
        if names[: len(self.names)] != self.names or names[: len(other.names)] != other.names:
            raise ValueError(f"metrics of {', '.join(self.names)} and of {', '.join(other.names)} do not add up")

        def widened(values: torch.Tensor) -> torch.Tensor:
            return F.pad(values, (0, len(names) - len(values)))

        return ComponentMetrics(
            names=names,
            loss_sums=widened(self.loss_sums) + widened(other.loss_sums),
            num_targets=widened(self.num_targets) + widened(other.num_targets),
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
        both = torch.cat([self.loss_sums.double(), self.num_targets.double()])  # whole numbers up to 2^53 are exact
        dist.all_reduce(both, group=process_group)
        sums, counts = both.chunk(2)
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
    of_sequences = F.pad(move(batch["component_ids"], device), (1, 0), value=len(names))
    is_target = move(labels != IGNORE_INDEX, device).flatten()
    components = torch.where(is_target, of_sequences[sequence_index(layout, device)], len(names)).long()
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
