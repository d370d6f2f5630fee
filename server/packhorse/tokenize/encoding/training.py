"""Training a byte-level BPE tokenizer on documents.

Owns the default size and special token of a trained tokenizer. Loading and saving tokenizers is in `tokenizers`.
"""

from collections.abc import Iterable
from typing import Any

from packhorse.formats import require
from packhorse.parameters import parameter

DEFAULT_VOCAB_SIZE = 16_384
"""The most tokens of a trained tokenizer, if no size is given."""

DEFAULT_EOS = "<|endoftext|>"
"""The end-of-sequence token of a trained tokenizer, if none is given."""

MIN_VOCAB_SIZE = 257
"""The least size: a token for each of 256 bytes, and the end-of-sequence token."""


def train_tokenizer(
    documents: Iterable[str], *, vocab_size: int = DEFAULT_VOCAB_SIZE, special_tokens: Iterable[str] = (DEFAULT_EOS,)
) -> Any:
    """Trains a byte-level BPE, which encodes and decodes any text without loss.

    Example:
        >>> tokenizer = train_tokenizer(["low lower lowest"] * 2, vocab_size=260)
        >>> tokenizer.decode(tokenizer.encode("slower").ids), tokenizer.token_to_id("<|endoftext|>")
        ('slower', 0)

    Args:
        documents: the texts to learn from, read once.
        vocab_size: the most tokens, including every byte and special token; a small corpus gives fewer.
        special_tokens: tokens that no text is encoded to; they have the first ids, from 0.

    Raises:
        ImportError: the tokenizers library is not installed.
        ValueError: vocab_size is below 257.
    """
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or vocab_size < MIN_VOCAB_SIZE:
        raise ValueError(
            parameter("vocab_size") + f" is {vocab_size!r}; a byte-level tokenizer needs at least {MIN_VOCAB_SIZE}"
        )
    library, models = require("tokenizers"), require("tokenizers.models")
    byte_level = require("tokenizers.pre_tokenizers").ByteLevel
    tokenizer = library.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    tokenizer.decoder = require("tokenizers.decoders").ByteLevel()
    trainer = require("tokenizers.trainers").BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(byte_level.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer=trainer)
    # If a document spells a special token, its characters are encoded: the token would end the sequence early.
    tokenizer.encode_special_tokens = True
    return tokenizer
