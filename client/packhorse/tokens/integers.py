"""`as_integers`: the tokens of one sequence as an array of integers, whatever holds them.

Owns which dtypes and shapes are tokens. Leaves whole columns of a table to `tables._token_columns`.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.tokens.base import TokenSourceError


def as_integers(sequence_id: int, item: Any, *, takes_bool: bool = False) -> NDArray[np.integer]:
    """Returns a tensor, array or list of tokens as integers [n].

    Args:
        sequence_id: the sequence's id, for messages.
        item: the tokens.
        takes_bool: whether True and False become 1 and 0, as in loss masks.

    Raises:
        TokenSourceError: the tokens are not 1-D, or not integers.
    """
    is_tensor = hasattr(item, "detach") and hasattr(item, "cpu")  # without importing torch: servers read tokens too
    tokens = item.detach().cpu().numpy() if is_tensor else np.asarray(item)
    if tokens.dtype == np.bool_ and tokens.ndim == 1:
        if takes_bool:
            return tokens.view(np.uint8)
        raise TokenSourceError(
            f"sequence {sequence_id}: tokens must be integers, got bool; a loss mask is given as loss_mask=..., or as "
            "IndexableSource(..., takes_bool=True)"
        )
    if tokens.ndim != 1 or (tokens.dtype.kind not in "iu" and tokens.size):
        raise TokenSourceError(
            f"sequence {sequence_id}: tokens must be a 1-D list of integers, "
            f"got shape {list(tokens.shape)} of {tokens.dtype}"
        )
    return tokens if tokens.dtype.kind in "iu" else np.empty(0, np.int64)  # NumPy makes floats of an empty list
