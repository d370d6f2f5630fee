"""Which values tokens and loss masks may have.

Owns these checks and their messages; leaves where the values come from to `sources` and their use to `batch`.
"""

import numpy as np
from numpy.typing import NDArray

from packhorse.client.batches.layout import PackLayout
from packhorse.client.sources import TokenSource, TokenSourceError

_MOST_TOKENS = 1 << 31


def check_tokens(input_ids: NDArray[np.int64], layout: PackLayout, ids: NDArray[np.int64], source: TokenSource) -> None:
    """Refuses tokens that no model has.

    Args:
        input_ids: tokens of all rows end to end, padding included: int64 [T].
        layout: where n sequences lie in them.
        ids: theirs: int64 [n].
        source: where the tokens are from.

    Raises:
        TokenSourceError: a token is negative, or 2^31 and more; names its sequence.
    """
    if not source.may_be_out_of_range:
        return
    unsigned = input_ids.view(np.uint64)  # negative tokens are the largest, and so one look finds both
    if unsigned.max(initial=0) >= _MOST_TOKENS:
        at = int(unsigned.argmax())
        raise TokenSourceError(
            f"sequence {_id_at(at, layout, ids)}: {source.where} holds the token {input_ids[at]} there, but token ids "
            "are in [0, 2^31); write the file again without it"
        )


def check_loss_mask(values: NDArray[np.int64], layout: PackLayout, ids: NDArray[np.int64], source: TokenSource) -> None:
    """Refuses what is neither 0 nor 1, as when a token file is given for a mask.

    Args:
        values: a loss mask of all rows end to end, 0 on padding: int64 [T].
        layout: where n sequences lie in it.
        ids: theirs: int64 [n].
        source: where the mask is from.

    Raises:
        TokenSourceError: a value is another; names its sequence.
    """
    if values.min(initial=0) < 0 or values.max(initial=0) > 1:
        at = int(((values < 0) | (values > 1)).argmax())
        raise TokenSourceError(
            f"sequence {_id_at(at, layout, ids)}: the loss mask in {source.where} holds {values[at]} there, but it may "
            "hold only 1 (predict this token) and 0 (do not); is it a token file?"
        )


def _id_at(index: int, layout: PackLayout, ids: NDArray[np.int64]) -> int:
    """The id of the sequence that lies at an index in T."""
    return int(ids[np.searchsorted(layout.starts, index, side="right") - 1])
