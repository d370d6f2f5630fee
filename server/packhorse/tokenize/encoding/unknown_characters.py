"""Characters that a tokenizer does not know, and how often texts hold them.

Owns which of two ways a tokenizer treats them, and counting. Special tokens in texts are in `special_texts`.
"""

from dataclasses import dataclass
from typing import Any, Self

from packhorse.sft.tokenizer import dropped_characters, known_characters


@dataclass(frozen=True, slots=True)
class UnknownCharacters:
    """How a tokenizer treats characters that it does not know."""

    unknown_id: int | None
    """Its unknown token; None if it has none."""
    known: frozenset[str] | None
    """The characters that it knows, if others leave no token."""

    @classmethod
    def of(cls, model: Any) -> Self:
        """Reads it off a `tokenizers.Tokenizer`."""
        unknown = getattr(model.model, "unk_token", None)
        unknown_id = model.token_to_id(unknown) if unknown else getattr(model.model, "unk_id", None)
        return cls(unknown_id, known_characters(model))

    def count(self, model: Any, text: str, ids: list[int]) -> int:
        """Returns the unknown characters of a text, white space apart, or its unknown tokens."""
        if self.known is not None:
            return len(dropped_characters(model, self.known, text))
        return 0 if self.unknown_id is None else ids.count(self.unknown_id)
