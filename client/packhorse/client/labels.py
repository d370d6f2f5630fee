"""Training labels of packed rows.

Owns which tokens are predicted and which are left out of the loss; leaves the layout of rows to `batch` and the loss
itself to the model.
"""

import numpy as np
from numpy.typing import NDArray

IGNORE_INDEX = -100
"""The label that PyTorch's cross-entropy leaves out."""


def causal_labels(
    input_ids: NDArray[np.int64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    is_padding: NDArray[np.bool_],
    *,
    shift: bool,
) -> NDArray[np.int64]:
    """Labels for next-token prediction, in which no sequence predicts its successor's first token.

    Legend: S sequences, T tokens of all rows end to end.

    Unshifted labels are for models that shift inside, as Hugging Face's do: `labels[t]` is `input_ids[t]`, and the
    first token of each sequence is left out. Shifted labels are for losses that compare logits and labels of the same
    index: `labels[t]` is `input_ids[t + 1]`, and the last token of each sequence is left out. Either way a sequence of
    n tokens has n - 1 targets, and shifting twice would train on the token after the next.

    Args:
        input_ids: int64 [T].
        starts: index of every sequence's first token: int64 [S].
        ends: index after every sequence's last token: int64 [S].
        is_padding: bool [T].
        shift: whether `labels[t]` is the token after `t`.

    Returns:
        int64 [T], -100 on what is left out.
    """
    labels = np.empty_like(input_ids)
    if shift:
        labels[:-1] = input_ids[1:]
    else:
        labels[:] = input_ids
    labels[is_padding] = IGNORE_INDEX
    labels[ends - 1 if shift else starts] = IGNORE_INDEX
    return labels
