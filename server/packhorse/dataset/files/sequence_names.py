"""Lists of sequences, as users write them: ids, and keys of datasets that have keys.

Owns their checks. Leaves what is done to the sequences to `takedown_file`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.formats.keys import check_key, ids_and_keys


class SequenceNames(NamedTuple):
    """Ids and keys of sequences."""

    ids: NDArray[np.int64]
    """The ids: int64 [n], ascending, distinct."""
    keys: tuple[str, ...]
    """The keys, ascending, distinct."""


def parse_ids(text: str, name: str) -> SequenceNames:
    r"""Reads ids, separated by commas, spaces or line ends, and keys, one on a line; see `ids_and_keys`.

    Example:
        >>> names = parse_ids("17, 4 # private\n4711\nhttps://example.org/a", "ids.txt")
        >>> names.ids.tolist(), names.keys
        ([4, 17, 4711], ('https://example.org/a',))

    Args:
        text: the ids and keys.
        name: the field or file, for messages.

    Raises:
        ValueError: the text holds no id and no key, or a line holds neither.
    """
    ids, keys = ids_and_keys(text, name)
    return checked_names([*ids, *keys], name)


def checked_names(given: Sequence[Any], where: str) -> SequenceNames:
    """Sorts ids (integers) and keys (strings), and refuses anything else; `where` is for messages."""
    if not given:
        raise ValueError(f"{where} holds no id; give at least one, e.g. ids = [17, 4711]")
    types = set(map(type, given))  # one pass without a loop, because a list may have a million ids
    keys = {each for each in given if isinstance(each, str)} if str in types else set()
    for key in keys:
        check_key(key)
    numbers = [each for each in given if not isinstance(each, str)] if keys else given
    ids = _sorted_ids(numbers) if types <= {int, str} else None
    if ids is None:  # a wrong type, or a number that is too large
        wrong = next(each for each in numbers if type(each) is not int or not -(2**63) <= each < 2**63)
        raise ValueError(
            f"{where} must hold whole numbers of 64 bits, or keys in quotes, got {wrong!s:.60}"
            + (": in quotes it is a key" if isinstance(wrong, int) else "")
        )
    is_first = np.diff(ids, prepend=ids[:1] - 1) != 0  # np.unique takes eight times as long
    return SequenceNames(ids[is_first], tuple(sorted(keys)))


def _sorted_ids(numbers: Sequence[int]) -> NDArray[np.int64] | None:
    """Returns the numbers in ascending order: int64 [n]; None if one has more than 64 bits."""
    try:
        return np.sort(np.array(numbers, dtype=np.int64))
    except OverflowError:
        return None
