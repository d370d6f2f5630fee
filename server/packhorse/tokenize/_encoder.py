"""Documents to sequences of token ids, with the tokens that begin and end them, and their keys.

Owns encoding batch by batch, and the file of keys. Leaves documents to `documents`, tokenizers to `tokenizers`, token
files to `packhorse.formats`.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import numpy as np

from packhorse.formats import MegatronWriter, require
from packhorse.formats.arrow import open_arrow, record_batches
from packhorse.formats.files import FileStamp
from packhorse.formats.keys import KEY_COLUMN, NUM_TOKENS, keys_path
from packhorse.storage import AtomicFiles
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
    """Tokens put around a document."""

    bos: str | None = None
    """Token put before every sequence, if the tokenizer does not add it itself; None for none."""
    eos: str | None = None
    """Token that ends every sequence. None: `<|endoftext|>` for a trained tokenizer; a local one's own, see
    `end_of_sequence`."""
    append_eos: bool = True
    """False appends nothing, and ignores `eos`."""


class KeyedText(str):
    """A document that comes with its key."""

    __slots__ = ("key",)
    key: str


class KeysFile:
    """Writes `X.keys.arrow`, the keys beside token files, whole or not at all; a context manager.

    Args:
        output: the prefix of the token files.
        num_tokens: of all of them, by which keys and tokens are known to belong together; None for a part's.
        overwrite: whether a file that is there is replaced.
    """

    def __init__(self, output: str | os.PathLike[str], *, num_tokens: int | None = None, overwrite: bool) -> None:
        arrow = require("pyarrow")
        self._files = AtomicFiles([keys_path(output)], overwrite=overwrite)
        facts = None if num_tokens is None else {NUM_TOKENS: str(num_tokens)}
        self._schema = arrow.schema([(KEY_COLUMN, arrow.large_string())], metadata=facts)
        self._writer = require("pyarrow.ipc").new_file(self._files.files[0], self._schema)

    def append(self, keys: Sequence[str]) -> None:
        """Adds the keys of the next sequences."""
        arrow = require("pyarrow")
        self._writer.write_batch(arrow.record_batch([arrow.array(keys, arrow.large_string())], schema=self._schema))

    def extend(self, output: str | os.PathLike[str]) -> None:
        """Adds the keys of other token files."""
        path = str(keys_path(output))
        for batch in record_batches(open_arrow(path)[1], path):
            self.append(batch.column(0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._writer.close()
        self._files.__exit__(kind, error, trace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """Turns documents into sequences. Pickled to another process, it loads the tokenizer there."""

    path: Path
    """The tokenizer's file."""
    vocab_size: int
    bos: str | None
    eos: str | None
    first_id: int | None
    """Put before every sequence; None for nothing."""
    last_id: int | None
    """Put after it."""

    @classmethod
    def made(cls, path: Path, special: SpecialTokens, *, is_trained: bool) -> Self:
        """Looks up the special tokens."""
        model = _loaded(path, *map(FileStamp.of, tokenizer_files(path)))
        eos = None
        if special.append_eos:
            eos = special.eos or (DEFAULT_EOS if is_trained else end_of_sequence(model, path, none="append_eos=False"))
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
                pairs = zip(batch, encodings, strict=True)
                keys.append([cast(KeyedText, text).key for text, encoding in pairs if encoding.ids])
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
            f"{name} {token!r} is not a token of the tokenizer; name one that is, or "
            + ("none with append_eos=False" if name == "eos" else "leave it out")
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
