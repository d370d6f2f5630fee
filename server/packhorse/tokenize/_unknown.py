"""Characters that a tokenizer does not know: dropped where it has no unknown token, or written as that token."""

import json
from dataclasses import dataclass
from typing import Any, Self

import numpy as np


@dataclass(frozen=True, slots=True)
class UnknownCharacters:
    """How a tokenizer treats characters that it does not know."""

    unknown_id: int | None
    """Its unknown token; None if it has none."""
    are_dropped: bool
    """Whether they leave no token, so that only the offsets of the others show them."""

    @classmethod
    def of(cls, model: Any) -> Self:
        """Reads it off a `tokenizers.Tokenizer`."""
        kind, unknown = type(model.model).__name__, getattr(model.model, "unk_token", None)
        unknown_id = model.token_to_id(unknown) if unknown else getattr(model.model, "unk_id", None)
        is_lossless = getattr(model.model, "byte_fallback", False) or any(
            part is not None and '"ByteLevel"' in json.dumps(json.loads(part.__getstate__()))
            for part in (model.pre_tokenizer, model.normalizer)
        )
        return cls(unknown_id, kind == "BPE" and unknown_id is None and not is_lossless)

    def count(self, text: str, encoding: Any) -> int:
        """Returns the unknown characters of a text, white space apart, or its unknown tokens."""
        if not self.are_dropped:
            return 0 if self.unknown_id is None else encoding.ids.count(self.unknown_id)
        changes = np.zeros(len(text) + 1, dtype=np.int64)
        for begin, end in encoding.offsets:
            changes[begin] += 1
            changes[end] -= 1
        missing = np.flatnonzero(np.cumsum(changes[:-1]) == 0)
        return sum(not text[at].isspace() for at in missing.tolist())
