"""Characters that a tokenizer does not know, and counting them in texts.

A tokenizer treats them in one of two ways: it drops them, or makes them its unknown token. Owns telling which, and the
counts. Which characters are dropped is in `sft/dropped_characters`, special tokens in texts are in `special_texts`.
"""

from dataclasses import dataclass
from typing import Any, Self

from packhorse.sft.dropped_characters import dropped_characters, known_characters


@dataclass(frozen=True, slots=True)
class UnknownCharacters:
    """How a tokenizer treats characters that it does not know."""

    unknown_id: int | None
    """The id of its unknown token; None if it has none."""
    known: frozenset[str] | None
    """The characters that it knows, if it drops all others; None if it drops none."""

    @classmethod
    def of(cls, model: Any) -> Self:
        """Finds out how a `tokenizers.Tokenizer` treats them.

        Its model has the unknown token's text as `unk_token`, or, if it is a Unigram, the id as `unk_id`.
        """
        unknown = getattr(model.model, "unk_token", None)
        unknown_id = model.token_to_id(unknown) if unknown else getattr(model.model, "unk_id", None)
        return cls(unknown_id, known_characters(model))

    def count(self, model: Any, text: str, ids: list[int]) -> int:
        """Returns how many characters of a text, white space aside, were dropped, or how many unknown tokens `ids` has.

        `ids` are the tokens of the text.
        """
        if self.known is not None:
            return len(dropped_characters(model, self.known, text))
        return 0 if self.unknown_id is None else ids.count(self.unknown_id)
