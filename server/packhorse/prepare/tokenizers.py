"""Tokenizers: a local `tokenizer.json`, or a byte-level BPE trained on the documents themselves.

Owns making one that is fit for writing token files; leaves encoding and writing to `tokenize`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packhorse.prepare.extras import require
from packhorse.sft.tokenizer import read_tokenizer_json

DEFAULT_VOCAB_SIZE = 16_384
"""Tokens of a trained tokenizer."""
DEFAULT_EOS = "<|endoftext|>"
"""End of sequence of a trained tokenizer."""
MIN_VOCAB_SIZE = 257
"""Every byte, and the end of sequence."""


def load_tokenizer(path: Path) -> Any:
    """Loads a `tokenizer.json`, without its truncation and padding: a document is tokenized whole.

    Raises:
        ImportError: the tokenizers library is not installed.
        ValueError: it is not a tokenizer.
    """
    require("tokenizers")
    tokenizer = read_tokenizer_json(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def train_tokenizer(
    documents: Iterable[str], *, vocab_size: int = DEFAULT_VOCAB_SIZE, special_tokens: Iterable[str] = (DEFAULT_EOS,)
) -> Any:
    """Trains a byte-level BPE, which takes any text and gives it back unchanged.

    Args:
        documents: the texts to learn from, read once.
        vocab_size: how many tokens at most, every byte and special token included; fewer come out of a small corpus.
        special_tokens: tokens that text never makes; they come first, from id 0.

    Raises:
        ImportError: the tokenizers library is not installed.
        ValueError: vocab_size is below 257.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        raise ValueError(f"vocab_size is {vocab_size}; a byte-level tokenizer needs at least {MIN_VOCAB_SIZE}")
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
    # A document that spells out a special token is text like any other; it must not end a sequence in its middle.
    tokenizer.encode_special_tokens = True
    return tokenizer


def id_limit(tokenizer: Any) -> int:
    """Returns the smallest vocab_size with every id of the tokenizer below it; ids may have gaps."""
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    return max(vocabulary.values(), default=0) + 1
