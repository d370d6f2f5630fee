"""`num_redacted`: how many sequences of a block a takedown masks or replaces."""

import numpy as np
from numpy.typing import NDArray

from packhorse.client.streams import MASKED


def num_redacted(redactions: NDArray[np.int64] | None) -> tuple[int, int]:
    """Returns (sequences masked from the loss, sequences replaced) among a block's redactions, int64 [S] or None.

    Example:
        >>> num_redacted(np.array([MASKED, 17, 0]))  # two are replaced, by the tokens 17 and 0
        (1, 2)
    """
    if redactions is None:
        return 0, 0
    return int((redactions == MASKED).sum()), int((redactions >= 0).sum())
