"""Sums over each sequence of a packed batch, such as the log-probability of its targets.

Owns the way from logits to one number a sequence; leaves what a loss makes of these numbers to the trainer.

Legend: B rows, L tokens in a row, n sequences, V tokens in the vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from packhorse.client.batches.layout import as_layout
from packhorse.client.batches.targets import IGNORE_INDEX
from packhorse.client.masks.on_device import move, sequence_index


def sum_over_sequences(batch: Mapping[str, Any], values: torch.Tensor) -> torch.Tensor:
    """Adds up the values at each sequence's tokens; values on padding must be 0.

    Example:
        >>> from packhorse.client import PackLayout
        >>> layout = PackLayout.of_rows(rooms=[2, 1, 3], row_ends=[2, 3], row_tokens=4)
        >>> sum_over_sequences({"layout": layout}, torch.tensor([[1.0, 2, 4, 0], [1, 1, 1, 0]])).tolist()
        [3.0, 4.0, 3.0]

    Args:
        batch: carries its `layout`.
        values: a floating type [B, L], on any device, which is not waited for.

    Returns:
        float32 [n] (float64 of float64), in the order of `ids`; gradients go back to `values`.

    Raises:
        ValueError: the batch carries no layout, or the values have another shape.
    """
    layout = as_layout(batch)
    if values.shape != (layout.num_rows, layout.row_tokens):
        raise ValueError(
            f"values have shape {list(values.shape)}, and the batch's layout has {layout.num_rows} rows of "
            f"{layout.row_tokens} tokens"
        )
    of_tokens = values.flatten().to(torch.promote_types(values.dtype, torch.float32))
    sums = of_tokens.new_zeros(layout.num_sequences + 1)
    return sums.index_add(0, sequence_index(layout, values.device), of_tokens)[1:]


def sequence_log_probs(
    batch: Mapping[str, Any], logits: torch.Tensor, *, shift_labels: bool | None = None
) -> torch.Tensor:
    """Adds up the log-probabilities of each sequence's targets: log p(completion | prompt), where labels say so.

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
        batch: carries `labels`, int64 [B, L], −100 where nothing is predicted, and its `layout`.
        logits: a floating type [B, L, V], on any device, which is not waited for. Sums are taken in float32.
        shift_labels: whether `labels[t]` is the token after t. None where the batch says so itself, as those of
            `pack_pairs` and `pack_rollouts` do.

    Returns:
        float32 [n], in the order of `ids`; 0 for a sequence without targets.

    Raises:
        ValueError: nothing says how labels stand, or shapes do not fit.
    """
    shifted = batch.get("shift_labels") if shift_labels is None else shift_labels
    if shifted is None:
        raise ValueError(
            "nothing says whether this batch's labels are shifted; pass shift_labels= as its dataset was made with"
        )
    labels = batch["labels"]
    if logits.shape[:-1] != labels.shape:
        raise ValueError(f"logits have shape {list(logits.shape)}, and labels {list(labels.shape)}")
    # Not the logits are shifted, which would copy them.
    targets = move(labels if shifted else F.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX), logits.device)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    losses = F.cross_entropy(wide.flatten(0, 1), targets.flatten(), ignore_index=IGNORE_INDEX, reduction="none")
    return sum_over_sequences(batch, -losses.view(labels.shape))
