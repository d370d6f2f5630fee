"""Log-probabilities of a batch's targets: summed for each sequence, or for each trained token of trees.

Leaves choosing which tokens are targets to `packhorse.client.batches`, and sums of other values to `sums`. No function
waits for a device.

Legend: B rows, L tokens in a row, n sequences, V tokens in the vocabulary; in a batch of trees, M trained tokens, each
counted once for every sequence that it is trained in.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from packhorse.client.batches import IGNORE_INDEX, has_shifted_labels
from packhorse.client.masks.transfer import move
from packhorse.losses._batch_facts import is_of_trees, num_sequences_of
from packhorse.losses.sums import sum_over_sequences


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
        >>> logits = torch.zeros(1, 5, 2)  # both tokens are equally likely
        >>> (sequence_log_probs(batch, logits, shift_labels=False).exp()).tolist()
        [0.25, 0.5]

    Args:
        batch: has `labels`, int64 [B, L], −100 where nothing is predicted, and its `layout`; or it is a batch of trees.
        logits: a floating type [B, L, V], on any device; the host does not wait. Sums are taken in the result's type.
        shift_labels: whether `labels[t]` is the token after t, for a batch without the key `shift_labels`.
            Batches without a preset have it.

    Returns:
        float32 [n] (float64 if `logits` are), in the order of `ids`; 0 for a sequence without targets.

    Raises:
        ValueError: neither the batch nor `shift_labels` says whether labels are shifted, or they contradict each other,
            or shapes do not fit.
    """
    if is_of_trees(batch):
        log_probs = trained_log_probs(batch, logits)
        sums = log_probs.new_zeros(num_sequences_of(batch))
        return sums.index_add(0, move(batch["sequence_index"], logits.device), log_probs)
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
        float32 [M] (float64 if `logits` are), in the order of the batch's `token_index`.

    Raises:
        ValueError: the shapes do not fit.
    """
    log_probs = _log_probs(batch["labels"], logits)
    # For each trained token, `token_index` has the position that predicts it, among all rows end to end.
    return log_probs.flatten()[move(batch["token_index"], logits.device)]


def _log_probs(labels: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Returns the log-probability of each label under the logits at its position, 0 where it is -100: [B, L]."""
    if logits.shape[:-1] != labels.shape:
        raise ValueError(f"logits have shape {list(logits.shape)}, and labels {list(labels.shape)}")
    at_least_float32 = logits.to(torch.promote_types(logits.dtype, torch.float32))
    targets = move(labels, logits.device).flatten()
    losses = F.cross_entropy(at_least_float32.flatten(0, 1), targets, ignore_index=IGNORE_INDEX, reduction="none")
    return -losses.view(labels.shape)
