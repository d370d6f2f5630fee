"""Special tokens that a text spells, such as `<|endoftext|>` in a crawled page.

Owns finding and counting them, and telling a document's own first and last token from the others. Leaves
adding tokens around a document to `encoder`.
"""

import re
from collections.abc import MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Self

SpecialInText = Literal["text", "keep", "error"]
"""What happens if a text spells a special token: "text" encodes its characters, "keep" makes it the token, and "error"
refuses the document."""


@dataclass(frozen=True, slots=True)
class PreparedText:
    """A text as it is given to the tokenizer, and what it spells."""

    text: str
    """The text; without its own first and last token, unless special tokens are kept."""
    own_ends: int = 0
    """How many of the two tokens that begin and end a sequence the text spells at its ends: 0, 1 or 2."""
    spells_special: bool = False
    """Whether the text spells a special token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTexts:
    """The special tokens of a tokenizer, as texts may spell them."""

    texts: tuple[str, ...]
    """The special tokens' texts, the longest first."""
    ids: frozenset[int]
    """The special tokens' ids."""
    treatment: SpecialInText
    """What happens to a special token that a text spells."""
    begin_id: int | None
    """The token that is put before every text; None for none."""
    begin: str
    """The text of `begin_id`; empty for none, and for a token that is not special."""
    end_id: int | None
    """The token that ends every text; None for none."""
    end: str
    """The text of `end_id`; empty for none, and for a token that is not special."""

    @classmethod
    def of(cls, model: Any, treatment: SpecialInText, *, begin_id: int | None, end_id: int | None) -> Self:
        """Collects the special tokens of a `tokenizers.Tokenizer`."""
        found = {number: token.content for number, token in model.get_added_tokens_decoder().items() if token.special}
        return cls(
            texts=tuple(sorted(found.values(), key=lambda text: (-len(text), text))),
            ids=frozenset(found),
            treatment=treatment,
            begin_id=begin_id,
            begin=found.get(begin_id, ""),
            end_id=end_id,
            end=found.get(end_id, ""),
        )

    def prepare(self, text: str, counts: MutableMapping[str, int]) -> PreparedText:
        """Prepares a text for the tokenizer, and adds the special tokens that it spells to `counts`.

        The text's own first and last token are not counted. They are also cut off, unless special tokens are kept:
        encoded as characters they would be lost, and the encoder puts them around the sequence anyway.
        """
        if not self.texts or special_pattern(self.texts).search(text) is None:
            return PreparedText(text)
        begin, end = self._inner(text)
        for found in special_pattern(self.texts).findall(text, begin, end):
            counts[found] = counts.get(found, 0) + 1
        own_ends = (begin > 0) + (end < len(text))
        return PreparedText(text if self.treatment == "keep" else text[begin:end], own_ends, True)

    def first_in(self, text: str) -> str | None:
        """Returns the first special token that a text spells, apart from its own first and last; None without one."""
        found = special_pattern(self.texts).search(text, *self._inner(text)) if self.texts else None
        return None if found is None else found[0]

    def count(self, prepared: PreparedText, encoding: Any) -> int:
        """Returns how many special tokens are in a text's encoding, apart from the text's own first and last token."""
        if not prepared.spells_special:
            return 0
        # (id, 1 if the tokenizer put it around the text)
        pairs = zip(encoding.ids, encoding.special_tokens_mask, strict=True)
        in_text = sum(number in self.ids for number, is_around in pairs if not is_around)
        # Only if special tokens are kept does the text still have its own ends.
        return in_text - (prepared.own_ends if self.treatment == "keep" else 0)

    def _inner(self, text: str) -> tuple[int, int]:
        """Returns (begin, end) of the text between its own first and last token, as indices of characters."""
        begin = len(self.begin) if self.begin and text.startswith(self.begin) else 0
        end = len(text)
        if self.end and text.endswith(self.end) and end - len(self.end) >= begin:
            end -= len(self.end)
        return begin, end


@lru_cache(maxsize=4)
def special_pattern(texts: tuple[str, ...]) -> re.Pattern[str]:
    """Returns a pattern that matches any of these texts, and the longest if several match."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))
