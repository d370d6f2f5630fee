"""Cutting a sequence to its budget so that neither prompt nor response takes all of it.

Owns the rule for one (source, target) pair and for the turns of a chat; leaves tokens to the encoders.

The rule is that of LLaMA-Factory's `cutoff_len` (`infer_seqlen` in its data processor), so that data cut here has the
lengths that it has there. Both sides keep their first tokens.
"""

from collections.abc import Sequence


def truncate_pair(source_len: int, target_len: int, cutoff_len: int) -> tuple[int, int]:
    """Says how much of a source and of its target stay.

    A side shorter than half the budget stays whole and the other one gets the rest; else each side is cut in proportion
    to its length, the target's share rounded down.

    Example:
        >>> truncate_pair(100, 10, cutoff_len=50)  # a short target stays whole
        (40, 10)
        >>> truncate_pair(100, 100, cutoff_len=50)
        (25, 25)

    Args:
        source_len: tokens of the source, what the model is given.
        target_len: tokens of the target, what it learns to write.
        cutoff_len: tokens that both may have together.

    Returns:
        (source tokens, target tokens) that stay. They sum to cutoff_len where anything is cut.

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
    """Cuts the turns of a chat one after the other, each by `truncate_pair` with what the ones before it left.

    Example:
        >>> truncate_turns([(30, 10), (20, 20)], cutoff_len=50)
        [(30, 10), (5, 5)]

    Args:
        turns: (source tokens, target tokens) of each turn, in the order of the chat.
        cutoff_len: tokens that all may have together.
        last_first: whether the budget goes to the last turn first, for chats that train on it alone.

    Returns:
        (source tokens, target tokens) of each turn that stay, in the order of the chat; (0, 0) where nothing was left.

    Raises:
        ValueError: a length is negative.
    """
    kept: list[tuple[int, int]] = []
    room = cutoff_len
    for source_len, target_len in reversed(turns) if last_first else turns:
        kept.append(truncate_pair(source_len, target_len, room))
        room -= sum(kept[-1])
    return kept[::-1] if last_first else kept
