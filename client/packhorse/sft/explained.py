"""`ExplainedSequence`: what a row became, for people: its tokens in stretches of one origin each.

Owns cutting tokens into stretches; leaves finding origins to `sft.tracing.provenance`, and printing to the caller.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive tokens of one origin, all trained on or none.

    Example:
        >>> field = "messages[1].content"
        >>> Stretch(first=4, end=5, text="hello", is_trained=True, message=1, field=field).end
        5
    """

    first: int
    """The first token."""
    end: int
    """The token after the last."""
    text: str
    """The text that they spell."""
    is_trained: bool
    message: int | None
    """Number of the message that the text belongs to, from 0; None for text of no message, such as tools."""
    field: str | None
    """Field of the row that holds the text, such as `messages[1].content`; None for the template's own words."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExplainedSequence:
    """A sequence and where its tokens come from. Legend: n tokens.

    Example:
        >>> from packhorse.sft import ChatEncoder
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> tokenizer = Tokenizer(models.WordLevel({"?": 0, "hi": 1, "hello": 2, "end": 3}, unk_token="?"))
        >>> tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        >>> template = "{% for m in messages %}{{ m.role }} {{ m.content }} end {% endfor %}"
        >>> chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
        >>> explained = ChatEncoder(tokenizer, chat_template=template).explain(chat)
        >>> [(stretch.text.strip(), stretch.field) for stretch in explained.stretches if stretch.is_trained]
        [('hello', 'messages[1].content'), ('end', None)]
    """

    text: str
    """The text that was tokenized."""
    input_ids: NDArray[np.int32]
    """Token ids: int32 [n]."""
    loss_mask: NDArray[np.bool_]
    """Whether each token is trained on: bool [n]."""
    stretches: tuple[Stretch, ...]
    """All tokens, in order and without gaps."""
    unused: tuple[str, ...] = ()
    """Fields of the row that are missing from the text, at least in part."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Consecutive characters of one origin; they begin where the origin before ends."""

    end: int
    """The character after the last."""
    message: int | None
    """As in `Stretch`."""
    field: str | None
    """As in `Stretch`."""


class _Key(NamedTuple):
    """What the tokens of a stretch have in common; it changes where the next stretch begins."""

    message: int | None
    field: str | None
    is_trained: bool
    has_characters: bool


def stretches_of(
    text: str,
    offsets: Sequence[tuple[int, int]],
    loss_mask: NDArray[np.bool_],
    origins: Sequence[Origin],
) -> tuple[Stretch, ...]:
    """Cuts tokens into stretches, where their origin changes or training on them begins or ends.

    A token has the origin of its first character. A token without characters, such as an EOS after the text, has the
    message of the token before it, no field, and a stretch of its own.

    Args:
        text: the text that was tokenized.
        offsets: [begin, end) of each token in the text, ascending; tokens that were added after it may be missing.
        loss_mask: whether each token is trained on: bool [n].
        origins: origins of all characters, in order.
    """
    keys: list[_Key] = []
    at = 0  # the origin of the token's first character
    for token, is_trained in enumerate(loss_mask):
        begin, end = offsets[token] if token < len(offsets) else (len(text), len(text))
        while at + 1 < len(origins) and origins[at].end <= begin:
            at += 1
        origin = origins[at] if origins else Origin(end=0, message=None, field=None)
        has_characters = begin < end
        keys.append(
            _Key(
                message=origin.message,
                field=origin.field if has_characters else None,
                is_trained=bool(is_trained),
                has_characters=has_characters,
            )
        )
    # Where each token's text begins, and then where the last one's ends. A stretch's text reaches to the next's begin.
    begins = [begin for begin, _ in offsets[: len(keys)]]
    begins += [len(text)] * (len(keys) + 1 - len(begins))
    found: list[Stretch] = []
    first = 0
    for key, tokens in groupby(keys):
        end = first + len(list(tokens))
        found.append(
            Stretch(
                first=first,
                end=end,
                text=text[begins[first] : begins[end]],
                is_trained=key.is_trained,
                message=key.message,
                field=key.field,
            )
        )
        first = end
    return tuple(found)
