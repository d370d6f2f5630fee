"""Special tokens that a text spells, such as `<|endoftext|>` in a crawled page.

Owns finding and counting them, and which are a document's own beginning and end. Leaves adding tokens around a document
to `encoder`.
"""

import re
from collections.abc import MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Self

SpecialInText = Literal["text", "keep", "error"]
"""What becomes of a special token that a text spells: text like any other, the token itself, or a refused document."""


@dataclass(frozen=True, slots=True)
class TakenText:
    """A text as it is encoded."""

    text: str
    own_ends: int = 0
    """How many of the tokens that begin and end a sequence its text spells already: 0, 1 or 2."""
    spells_special: bool = False
    """Whether it spells a special token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTexts:
    """The special tokens of a tokenizer, as texts may spell them."""

    texts: tuple[str, ...]
    ids: frozenset[int]
    treatment: SpecialInText
    begin_id: int | None
    """The token that is put before every text; None for none."""
    begin: str
    """Its text; empty for none."""
    end_id: int | None
    """The token that ends every text; None for none."""
    end: str
    """Its text; empty for none."""

    @classmethod
    def of(cls, model: Any, treatment: SpecialInText, *, begin_id: int | None, end_id: int | None) -> Self:
        """Collects those of a `tokenizers.Tokenizer`."""
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

    def take(self, text: str, counts: MutableMapping[str, int]) -> TakenText:
        """Counts the special tokens in a text, apart from its own beginning and end.

        If special tokens are encoded as text, these two are left out of it, since they are put around it.
        """
        if not self.texts or special_pattern(self.texts).search(text) is None:
            return TakenText(text)
        first, last = self._inner(text)
        for found in special_pattern(self.texts).findall(text, first, last):
            counts[found] = counts.get(found, 0) + 1
        own_ends = (first > 0) + (last < len(text))
        return TakenText(text if self.treatment == "keep" else text[first:last], own_ends, True)

    def first_in(self, text: str) -> str | None:
        """Returns the first special token within a text; None if there is none."""
        found = special_pattern(self.texts).search(text, *self._inner(text)) if self.texts else None
        return None if found is None else found[0]

    def count(self, taken: TakenText, encoding: Any) -> int:
        """Returns how many special tokens a text became, apart from its own beginning and end."""
        if not taken.spells_special:
            return 0
        pairs = zip(encoding.ids, encoding.special_tokens_mask, strict=True)
        in_text = sum(number in self.ids for number, is_around in pairs if not is_around)
        return in_text - (taken.own_ends if self.treatment == "keep" else 0)

    def _inner(self, text: str) -> tuple[int, int]:
        """Returns where a text begins after its own first token, and where it ends before its own last."""
        first = len(self.begin) if self.begin and text.startswith(self.begin) else 0
        last = len(text)
        if self.end and text.endswith(self.end) and last - len(self.end) >= first:
            last -= len(self.end)
        return first, last


@lru_cache(maxsize=4)
def special_pattern(texts: tuple[str, ...]) -> re.Pattern[str]:
    """Returns a pattern that finds the longest of some texts."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))
