"""How a sequence begins: how many of its tokens are read, and what is shown of their text."""

from collections.abc import Callable, Sequence

FIRST_TOKENS = 24
"""Number of tokens that are shown of a sequence's beginning."""
_MOST_LETTERS = 80
"""Letters of a sequence's beginning that are shown."""

Decode = Callable[[list[int]], str]
"""Turns tokens into text."""


def shortened(decode: Decode | None, tokens: Sequence[int]) -> str:
    """Returns the text of tokens, shortened to one line; empty without tokens or a decoder."""
    if decode is None or not len(tokens):
        return ""
    text = " ".join(decode(list(tokens)).split())
    return text if len(text) <= _MOST_LETTERS else text[: _MOST_LETTERS - 1] + "…"
