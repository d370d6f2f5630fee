"""`EncodedSequence`: tokens with their loss mask, as the encoders of chats and of pairs return them.

Owns the error if nothing is trained on or too much is left, and finding the tokens of a range of text; leaves encoding
to `sft.chat` and `sft.pairs`.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class NoTargetsError(ValueError):
    """A sequence has no token to train on, prefers nothing, or does not fit the cutoff without cutting an answer."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedSequence:
    """Tokens with their loss mask. Legend: n tokens.

    Example:
        >>> encoded = EncodedSequence(input_ids=np.array([5, 7, 2]), loss_mask=np.array([False, True, True]))
        >>> len(encoded), encoded.num_trained_tokens
        (3, 2)
    """

    input_ids: NDArray[np.int32]
    """Token ids: int32 [n]."""
    loss_mask: NDArray[np.bool_]
    """Whether the model learns to write a token: bool [n]. Not shifted: entry i is about token i as a target."""
    num_cut_tokens: int = 0
    """Number of tokens that the cutoff removed."""
    is_too_long: bool = False
    """Whether the sequence is longer than the cutoff although everything that may be cut is gone."""
    num_open_turns: int = 0
    """Number of trained turns that no special token ends."""
    open_turn: str = ""
    """The last characters (up to 30) of the first such turn."""

    def __len__(self) -> int:
        """Number of tokens, n."""
        return len(self.input_ids)

    @property
    def num_trained_tokens(self) -> int:
        """Number of tokens that are trained on, without the first token, which no model predicts."""
        return int(np.count_nonzero(self.loss_mask[1:]))

    def check_targets(self) -> None:
        """Raises a NoTargetsError if no token is trained on, or the sequence is longer than the cutoff."""
        if self.is_too_long:
            raise NoTargetsError(
                f"the sequence of {len(self)} tokens does not fit the cutoff, without cutting an answer; raise the "
                "cutoff, or leave it out"
            )
        if self.num_trained_tokens:
            return
        why = (
            f"after cutting {self.num_cut_tokens} tokens; raise the cutoff"
            if self.num_cut_tokens
            else "it has no turn of a trained role, or every one is marked with train: false or weight: 0"
        )
        raise NoTargetsError(f"0 of the sequence's {len(self)} tokens are trained on: {why}, or leave it out")


def token_ranges(offsets: Sequence[tuple[int, int]], ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Finds the tokens of ranges of text. Legend: n tokens.

    A token that straddles the edge of a range belongs to the range: otherwise the first or last characters of an answer
    would not be trained on. transformers' `return_assistant_tokens_mask` does the same.

    Example:
        >>> token_ranges([(0, 3), (3, 6), (6, 8)], [(4, 8)])
        [(1, 3)]

    Args:
        offsets: [begin, end) of each token in the text, ascending: [n].
        ranges: [begin, end) of each range in the text, ascending and disjoint.

    Returns:
        [first, end) of the tokens of each range, ascending and disjoint, in [0, n].
    """
    found: list[tuple[int, int]] = []
    taken = 0  # tokens before this belong to an earlier range
    for begin, end in ranges:
        # The first token from `begin` on, then back over those that straddle it: several tokens may spell one character
        # and share its offsets. A token that a normalizer added has empty offsets, (begin, begin).
        first = bisect_left(offsets, (begin, begin))
        while first > 0 and offsets[first - 1][1] > begin:
            first -= 1
        first = max(taken, first)
        taken = max(first, bisect_left(offsets, (end,)))  # (end,) comes before every (end, …)
        found.append((first, taken))
    return found
