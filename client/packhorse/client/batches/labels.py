"""Labels of next tokens, and how long each sequence is without what its room adds."""

import numpy as np
from numpy.typing import NDArray

from packhorse.client.batches.layout import IGNORE_INDEX, PackLayout
from packhorse.client.sources import TokenSourceError
from packhorse.client.sources.base import refuse_length
from packhorse.topology import RoomRule


def own_lengths(
    rule: RoomRule,
    ids: NDArray[np.int64],
    planned: NDArray[np.int64],
    held: NDArray[np.int64],
    first_tokens: NDArray[np.int64] | None,
    *,
    longest: int | NDArray[np.int64] | None,
) -> NDArray[np.int64]:
    """Returns how many of its own tokens each sequence, or piece, puts into its room: int64 [S], at least 1.

    With `longest`, what is left of a sequence from its piece's first token on either has at least that length and fills
    a whole room, or needs exactly the planned room. A source whose sequence continues after its last planned piece is
    not noticed here, but by the piece that follows.

    Args:
        rule: how a room follows from a length.
        ids: int64 [S].
        planned: each room in tokens: int64 [S].
        held: length of each whole sequence in the source, in tokens: int64 [S].
        first_tokens: first token of each piece: int64 [S]; None for all 0.
        longest: the length to which longer sequences were truncated or split: one for all, or int64 [S]. None where
            none was cut.

    Raises:
        TokenSourceError: a sequence's length in the source does not need the planned room.
    """
    left = held if first_tokens is None else held - first_tokens
    own = left if longest is None else np.minimum(left, longest)
    needed = rule.room(own)
    is_wrong = (own < 1) | (needed != planned)
    if is_wrong.any():
        i = int(is_wrong.argmax())
        first = 0 if first_tokens is None else int(first_tokens[i])
        if rule.is_plain:
            refuse_length(int(ids[i]), int(planned[i]), int(held[i]), start=first, is_whole=False)
        piece = f" from token {first} on" if first else ""
        raise TokenSourceError(
            f"sequence {ids[i]}: the plan has a room of {planned[i]} tokens for it{piece}, but the {held[i]} tokens "
            f"that the source holds need {needed[i]} with align {rule.align} and extra_tokens {rule.extra_tokens}; use "
            "the token file that the dataset was prepared from"
        )
    return own


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
        labels: receives them, -100 on what is left out: int64 [T].
        input_ids: int64 [T].
        layout: where sequences and padding lie.
        is_predicted: tokens that the loss mask chooses: bool [T]; None for all.
        shift: whether `labels[t]` is the token after `t`.
    """
    labels[:] = input_ids if is_predicted is None else np.where(is_predicted, input_ids, IGNORE_INDEX)
    for start, end in layout.padding_ranges:
        labels[start:end] = IGNORE_INDEX
    labels[layout.starts] = IGNORE_INDEX
    if shift:
        labels[:-1] = labels[1:]
        labels[-1:] = IGNORE_INDEX
