"""Sums of values over the tokens of each sequence of a packed batch.

Leaves log-probabilities of targets to `log_probs`, weights of tokens to `loss_weights`, and sums for each component of
a mixture to `components`.

Legend: B rows, L tokens in a row, n sequences.
"""

from collections.abc import Mapping
from typing import Any

import torch

from packhorse.client import as_layout
from packhorse.client.masks.token_index import sequence_index
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
    token_values = values.flatten().to(torch.promote_types(values.dtype, torch.float32))
    # `sequence_index` numbers the sequences from 1; sum 0 is of what comes before the first, and is left out.
    sums = token_values.new_zeros(layout.num_sequences + 1)
    return sums.index_add(0, sequence_index(layout, values.device), token_values)[1:]
