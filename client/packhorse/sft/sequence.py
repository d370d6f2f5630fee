"""A sequence with its loss mask: the tokens of ranges of text, and cutting to a length.

Owns what both encoders return, and the error where nothing is trained on; leaves encoding to `sft.chat`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class NoTargetsError(ValueError):
    """A sequence has no token to train on."""


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
    """Whether the model learns to write the token: bool [n]. Unshifted: entry i is for token i as a target."""
    num_cut_tokens: int = 0
    """Number of tokens that the cutoff removed."""

    def __len__(self) -> int:
        """Number of tokens, n."""
        return len(self.input_ids)

    @property
    def num_trained_tokens(self) -> int:
        """Number of tokens that are trained on; never the first, which no model predicts."""
        return int(np.count_nonzero(self.loss_mask[1:]))

    def check_targets(self) -> None:
        """Raises a NoTargetsError where no token is trained on."""
        if self.num_trained_tokens:
            return
        why = (
            f"after cutting {self.num_cut_tokens} tokens; raise the cutoff"
            if self.num_cut_tokens
            else ("it has no turn of a trained role, or every one is marked with train: false or weight: 0")
        )
        raise NoTargetsError(f"0 of the sequence's {len(self)} tokens are trained on: {why}, or leave it out")


def token_ranges(offsets: Sequence[tuple[int, int]], ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Finds the tokens of ranges of text. Legend: n tokens.

    A token that straddles the edge of a range belongs to it: otherwise the first or last characters of an answer would
    not be trained on. transformers' `return_assistant_tokens_mask` does the same.

    Args:
        offsets: [begin, end) of each token in the text, ascending: [n].
        ranges: [begin, end) in the text, ascending and disjoint.

    Returns:
        [first, end) of the tokens of each range, ascending and disjoint, in [0, n].
    """
    begins, ends = np.asarray(offsets, dtype=np.int64).reshape(-1, 2).T
    found: list[tuple[int, int]] = []
    taken = 0
    for begin, end in ranges:
        # Several tokens may spell one character and share its offsets; one that a normalizer added has empty offsets.
        inside = np.flatnonzero((begins < end) & ((ends > begin) | (begins >= begin)))
        first = max(taken, int(inside[0]) if inside.size else int(np.searchsorted(begins, begin)))
        taken = max(first, int(inside[-1]) + 1 if inside.size else first)
        found.append((first, taken))
    return found


def truncate_pair(source_len: int, target_len: int, cutoff_len: int) -> tuple[int, int]:
    """Returns how many tokens of a source and of its target stay.

    A side shorter than half the budget stays whole and the other one gets the rest; else each side is cut in proportion
    to its length, the target's share rounded down.

    Example:
        >>> truncate_pair(100, 10, cutoff_len=50)  # a short target stays whole
        (40, 10)
        >>> truncate_pair(100, 100, cutoff_len=50)
        (25, 25)

    Args:
        source_len: tokens of the source, the model's input.
        target_len: tokens of the target, which the model learns to write.
        cutoff_len: most tokens of both together.

    Returns:
        (source tokens, target tokens) that stay. If anything is cut, they sum to cutoff_len.

    Raises:
        ValueError: a length is negative.
    """
    if min(source_len, target_len, cutoff_len) < 0:
        raise ValueError(
            f"source_len {source_len}, target_len {target_len} and cutoff_len {cutoff_len} are numbers of tokens; "
            "none may be negative"
        )
    if 2 * target_len < cutoff_len:
        target_room = cutoff_len
    elif 2 * source_len < cutoff_len:
        target_room = cutoff_len - source_len
    elif source_len + target_len == 0:
        target_room = 0
    else:
        # In floating point and in this order, like the original: exact integers differ by one now and then.
        target_room = int(cutoff_len * (target_len / (source_len + target_len)))
    target = min(target_len, target_room)
    return min(source_len, cutoff_len - target), target


def truncate_turns(
    turns: Sequence[tuple[int, int]], cutoff_len: int, *, last_first: bool = False
) -> list[tuple[int, int]]:
    """Cuts the turns of a chat in order, each with `truncate_pair`, to the tokens that earlier turns left.

    Example:
        >>> truncate_turns([(30, 10), (20, 20)], cutoff_len=50)
        [(30, 10), (5, 5)]

    Args:
        turns: (source tokens, target tokens) of each turn, in the order of the chat.
        cutoff_len: most tokens of all together.
        last_first: whether the last turn comes first, for chats that train on it alone.

    Returns:
        (source tokens, target tokens) that stay of each turn, in the order of the chat.

    Raises:
        ValueError: a length is negative.
    """
    kept: list[tuple[int, int]] = []
    room = cutoff_len
    for source_len, target_len in reversed(turns) if last_first else turns:
        kept.append(truncate_pair(source_len, target_len, room))
        room -= sum(kept[-1])
    return kept[::-1] if last_first else kept
