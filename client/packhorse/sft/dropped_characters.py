"""Characters that a tokenizer drops: which ones it knows, and which characters of a text are lost.

Leaves tokenizers that write an unknown token instead, and counts over a corpus, to `packhorse.tokenize`.
"""

import json
from typing import Any


def known_characters(model: Any) -> frozenset[str] | None:
    """Returns the characters that a `tokenizers.Tokenizer` knows if it drops others; None if it drops none.

    Only a BPE model without an unknown token, byte fallback or byte-level splitting drops characters.
    """
    if type(model.model).__name__ != "BPE" or model.model.unk_token is not None or model.model.byte_fallback:
        return None
    # A ByteLevel may be nested in a sequence of parts, so the whole state, which is JSON in bytes, is searched.
    parts = (part for part in (model.pre_tokenizer, model.normalizer) if part is not None)
    if any('"ByteLevel"' in json.dumps(json.loads(part.__getstate__())) for part in parts):
        return None
    return frozenset(token for token in model.get_vocab(with_added_tokens=False) if len(token) == 1)


def dropped_characters(model: Any, known: frozenset[str], text: str) -> list[str]:
    """Returns the characters of a text, after normalizing, that are not `known`, each as often as it occurs.

    Added tokens and white space do not count: they are not lost.
    """
    if known.issuperset(text):  # the usual case, without the work below
        return []
    for token in model.get_added_tokens_decoder().values():
        text = text.replace(token.content, " ")
    normal = text if model.normalizer is None else model.normalizer.normalize_str(text)
    # U+2581 is SentencePiece's blank.
    return [
        character
        for character in normal
        if character not in known and not character.isspace() and character != "\u2581"
    ]
