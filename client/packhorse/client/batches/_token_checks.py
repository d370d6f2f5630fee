"""Checks of what token sources returned for a batch: token ids, and the values and lengths of a loss mask.

Owns the errors, which name the sequence at fault. Leaves lengths that do not fit their rooms to `packhorse.tokens`.

Legend: n sequences, T tokens of all rows end to end.
"""

import numpy as np
from numpy.typing import NDArray

from packhorse.client.batches.layout import PackLayout
from packhorse.client.batches.row_format import MAX_TOKEN_ID
from packhorse.tokens import TokenSource, TokenSourceError


def check_tokens(input_ids: NDArray[np.int64], layout: PackLayout, ids: NDArray[np.int64], source: TokenSource) -> None:
    """Checks that every token is in the range of a token id.

    Args:
        input_ids: the tokens of all rows end to end: int64 [T].
        layout: where the sequences lie, to name the one at fault.
        ids: ids of the sequences: int64 [n].
        source: the source of the tokens.

    Raises:
        TokenSourceError: a token is outside [0, 2^31); the text names its sequence.
    """
    if not source.may_be_out_of_range:
        return
    unsigned = input_ids.view(np.uint64)  # negative tokens are the largest, so one comparison finds both
    if unsigned.max(initial=0) > MAX_TOKEN_ID:
        at = int(unsigned.argmax())
        raise TokenSourceError(
            f"sequence {_id_at(at, layout, ids)}: {source.where} holds the token {input_ids[at]} there, but token ids "
            "are in [0, 2^31); write the file again without it"
        )


def check_loss_mask(values: NDArray[np.int64], layout: PackLayout, ids: NDArray[np.int64], source: TokenSource) -> None:
    """Checks that a loss mask holds only 0 and 1; it does not if e.g. a token file was given as the mask.

    Args:
        values: the mask of all rows end to end: int64 [T].
        layout: where the sequences lie, to name the one at fault.
        ids: ids of the sequences: int64 [n].
        source: the source of the mask.

    Raises:
        TokenSourceError: a value is neither 0 nor 1; the text names its sequence.
    """
    if values.min(initial=0) < 0 or values.max(initial=0) > 1:
        at = int(((values < 0) | (values > 1)).argmax())
        raise TokenSourceError(
            f"sequence {_id_at(at, layout, ids)}: the loss mask in {source.where} holds {values[at]} there, but it may "
            "hold only 1 (predict this token) and 0 (do not); is it a token file?"
        )


def check_mask_lengths(
    loss_mask: TokenSource,
    component_ids: NDArray[np.int32] | None,
    ids: NDArray[np.int64],
    source_lengths: NDArray[np.int64],
) -> None:
    """Checks that a loss mask has a value for each token of whole sequences.

    Args:
        loss_mask: the source of the mask.
        component_ids: index of each sequence's component in the mixture: int32 [n]; None for a single dataset.
        ids: ids of the sequences: int64 [n].
        source_lengths: their tokens in the source of tokens: int64 [n].

    Raises:
        TokenSourceError: a sequence's mask is longer or shorter; the text names the sequence.
    """
    mask_lengths = loss_mask.of_sequences(component_ids).lengths(ids)
    is_other = mask_lengths != source_lengths
    if is_other.any():
        i = int(is_other.argmax())
        raise TokenSourceError(
            f"sequence {ids[i]}: the loss mask in {loss_mask.where} holds {mask_lengths[i]} values for "
            f"its {source_lengths[i]} tokens; use the mask that was written with these tokens"
        )


def _id_at(index: int, layout: PackLayout, ids: NDArray[np.int64]) -> int:
    """Returns the id of the sequence whose token is at an index among the T tokens."""
    return int(ids[np.searchsorted(layout.starts, index, side="right") - 1])
