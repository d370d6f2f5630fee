"""Labels for next-token prediction: writing them, the label of a token that is no target, and whether they are shifted.

Leaves tokens and the loss mask to `_content`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.client.batches.layout import PackLayout

IGNORE_INDEX = -100
"""The label that PyTorch's cross-entropy ignores by default."""


def write_causal_labels(
    labels: NDArray[np.int64],
    input_ids: NDArray[np.int64],
    layout: PackLayout,
    *,
    is_predicted: NDArray[np.bool_] | None = None,
    shift: bool,
) -> None:
    """Writes labels for next-token prediction, in which no sequence predicts its successor's first token.

    Legend: T tokens of all rows end to end.

    Unshifted labels are for models that shift inside, as Hugging Face's do: `labels[t]` is `input_ids[t]`, and the
    first token of each sequence is left out. Shifted labels are for losses that compare logits and labels of the same
    index: `labels[t]` is `input_ids[t + 1]`, and the last token of each sequence is left out. Either way a sequence of
    n tokens has at most n - 1 targets, and shifting twice would train on the token after the next.

    Args:
        labels: receives the labels, -100 for tokens that are left out: int64 [T].
        input_ids: the tokens: int64 [T].
        layout: where sequences and padding lie.
        is_predicted: whether the loss mask chooses each token: bool [T]; None for all tokens.
        shift: whether `labels[t]` is the token after `t`.
    """
    labels[:] = input_ids if is_predicted is None else np.where(is_predicted, input_ids, IGNORE_INDEX)
    for start, end in layout.padding_ranges:
        labels[start:end] = IGNORE_INDEX
    labels[layout.starts] = IGNORE_INDEX
    if shift:  # a sequence's last token gets the label after it: of a first token or of padding, -100
        labels[:-1] = labels[1:]
        labels[-1:] = IGNORE_INDEX


def has_shifted_labels(batch: Mapping[str, Any], given: bool | None = None) -> bool:
    """Returns whether `labels[t]` is the token after t, so that nothing shifts a batch's labels twice.

    Args:
        batch: the batch; its key `shift_labels` is the answer.
        given: the answer that the user gives, for a batch without that key; None to take the batch's.

    Raises:
        ValueError: nothing says so, or `given` contradicts the batch.
    """
    of_batch = batch.get("shift_labels")
    if of_batch is None:
        if given is None:
            raise ValueError(
                "nothing says whether this batch's labels are shifted; pass shift_labels= as its dataset was made "
                'with, or set batch["shift_labels"]'
            )
        return bool(given)
    if given is not None and bool(of_batch) != bool(given):
        raise ValueError(
            f"shift_labels={given} contradicts the batch, which was made with shift_labels={of_batch}; leave it out"
        )
    return bool(of_batch)
