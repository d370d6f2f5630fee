"""Documents to sequences of token ids, with the tokens that begin and end them.

Owns encoding batch by batch; leaves documents to `documents`, tokenizers to `tokenizers`, files to `packhorse.formats`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from packhorse.formats import MegatronWriter
from packhorse.formats.files import FileStamp
from packhorse.tokenize._keys import KeysFile, keys_of
from packhorse.tokenize._work import Tally
from packhorse.tokenize.tokenizers import (
    DEFAULT_EOS,
    closing_id,
    end_of_sequence,
    id_limit,
    load_tokenizer,
    opening_id,
    tokenizer_files,
)

_BATCH_DOCUMENTS = 1024
_BATCH_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """Which tokens are put around a document."""

    bos: str | None = None
    """Token that is put before every sequence, unless the tokenizer puts it there by itself; None for none."""
    eos: str | None = None
    """Token that ends every sequence. None: `<|endoftext|>` for a trained tokenizer; a local one's own, see
    `end_of_sequence`."""
    append_eos: bool = True
    """False appends nothing, whatever `eos` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """Documents to sequences; it travels to other processes by pickle, which load the tokenizer themselves."""

    path: Path
    """The tokenizer's file."""
    vocab_size: int
    bos: str | None
    eos: str | None
    first_id: int | None
    """Put before every sequence; None for nothing."""
    last_id: int | None
    """Put behind it."""

    @classmethod
    def made(cls, path: Path, special: SpecialTokens, *, is_trained: bool) -> Self:
        """Looks up the special tokens."""
        model = _loaded(path, *map(FileStamp.of, tokenizer_files(path)))
        eos = None
        if special.append_eos:
            eos = special.eos or (DEFAULT_EOS if is_trained else end_of_sequence(model, path))
        return cls(
            path=path,
            vocab_size=id_limit(model),
            bos=special.bos,
            eos=eos,
            first_id=_added_id(model, "bos", special.bos, opening_id(model)),
            last_id=_added_id(model, "eos", eos, closing_id(model)),
        )

    @property
    def model(self) -> Any:
        """The tokenizer."""
        return _loaded(self.path, *map(FileStamp.of, tokenizer_files(self.path)))

    def write(
        self, documents: Iterable[str], writer: MegatronWriter, tally: Tally, keys: KeysFile | None = None
    ) -> None:
        """Writes documents, and their keys if they have any, batch by batch, and counts them."""
        for batch, encodings in _encode(self.model, documents):
            if keys is not None:
                keys.append(keys_of([text for text, encoding in zip(batch, encodings, strict=True) if encoding.ids]))
            sequences = [ids for ids in (encoding.ids for encoding in encodings) if ids]
            tally.empty += len(encodings) - len(sequences)
            if not sequences:
                continue
            for ids in sequences:
                if self.first_id is not None:
                    ids.insert(0, self.first_id)
                if self.last_id is not None:
                    ids.append(self.last_id)
            lengths = np.array([len(ids) for ids in sequences])
            writer.append_many(np.concatenate([np.array(ids, dtype=np.int32) for ids in sequences]), lengths)
            tally.sequences += len(sequences)
            tally.tokens += int(lengths.sum())
            tally.longest = max(tally.longest, int(lengths.max()))


@lru_cache(maxsize=1)
def _loaded(path: Path, *stamps: FileStamp) -> Any:
    return load_tokenizer(path)


def _added_id(tokenizer: Any, name: str, token: str | None, own: int | None) -> int | None:
    """The id to add to every sequence; None where there is none, or the tokenizer adds it by itself."""
    if token is None:
        return None
    number: int | None = tokenizer.token_to_id(token)
    if number is None:
        raise ValueError(
            f"{name} {token!r} is not a token of the tokenizer; name one that is (--{name}), or "
            + ("none (--no-eos)" if name == "eos" else "leave it out")
        )
    return None if own == number else number


def _encode(tokenizer: Any, documents: Iterable[str]) -> Iterator[tuple[list[str], list[Any]]]:
    """Yields documents and their encodings batch by batch; a batch is bounded in documents and in characters."""
    batch: list[str] = []
    characters = 0
    for text in documents:
        batch.append(text)
        characters += len(text)
        if len(batch) >= _BATCH_DOCUMENTS or characters >= _BATCH_CHARACTERS:
            yield batch, tokenizer.encode_batch_fast(batch)
            batch, characters = [], 0
    if batch:
        yield batch, tokenizer.encode_batch_fast(batch)
