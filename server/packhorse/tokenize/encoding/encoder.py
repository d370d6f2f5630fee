"""From documents to sequences of token ids, batch by batch.

Owns which tokens begin and end a sequence, so that none is there twice. Loading a tokenizer is in `tokenizers`, and
special tokens within texts are in `special_texts`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, cast, get_args

import numpy as np

from packhorse.formats import MegatronWriter
from packhorse.formats.file_stamp import FileStamp
from packhorse.parameters import parameter
from packhorse.tokenize.encoding._unknown_characters import UnknownCharacters
from packhorse.tokenize.encoding.keys_file import KeyedText, KeysFile
from packhorse.tokenize.encoding.special_texts import SpecialInText, SpecialTexts
from packhorse.tokenize.encoding.tokenizers import (
    ends_added,
    id_limit,
    load_tokenizer,
    required_eos,
    tokenizer_files,
)
from packhorse.tokenize.encoding.training import DEFAULT_EOS
from packhorse.tokenize.tally import Tally

_BATCH_DOCUMENTS = 1024
"""A batch is full at this number of documents; encoding uses the library's threads within a batch."""
_BATCH_CHARACTERS = 1 << 20
"""A batch is also full at this number of characters, so that long documents don't fill memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """Which tokens are put around a document, and what happens to special tokens that its text spells."""

    bos: str | None = None
    """Token put before every sequence, if the tokenizer does not add it itself; None for none."""
    eos: str | None = None
    """Token that ends every sequence. None: `<|endoftext|>` for a trained tokenizer; a local one's own, see
    `required_eos`."""
    append_eos: bool = True
    """Whether `eos` is appended; if False, `eos` is ignored."""
    special_in_text: SpecialInText = "text"
    """What becomes of special tokens that a document spells out, such as `<|endoftext|>` in a page about models: "text"
    encodes their characters, so that no document writes control tokens; "keep" makes them tokens, as transformers does;
    "error" refuses the document. They are counted in any case. The token that begins or ends every sequence is the
    document's own if the text begins or ends with it, and is not put there twice.
    """

    def __post_init__(self) -> None:
        """Raises a ValueError if `special_in_text` is no choice."""
        if self.special_in_text not in get_args(SpecialInText):
            raise ValueError(
                parameter("special_in_text")
                + f" is {self.special_in_text!r}; choose one of {', '.join(get_args(SpecialInText))}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """Turns documents into sequences. Pickled to another process, it loads the tokenizer there."""

    path: Path
    """The tokenizer's file."""
    vocab_size: int
    """Every token id is below it."""
    bos: str | None
    """The token that begins every sequence, as it was given; None for none."""
    eos: str | None
    """The token that ends every sequence; None for none."""
    begin_id_to_add: int | None
    """The id that is added before every sequence; None if there is none, or the tokenizer adds it itself."""
    end_id_to_add: int | None
    """The id that is added after every sequence; None as for `begin_id_to_add`."""
    special_texts: SpecialTexts
    """The tokenizer's special tokens, as texts may spell them."""
    unknown_characters: UnknownCharacters
    """How the tokenizer treats characters that it does not know."""

    @classmethod
    def made(cls, path: Path, special: SpecialTokens, *, is_trained: bool) -> Self:
        """Returns an encoder for a tokenizer's file, after looking up its special tokens.

        `is_trained` says that the tokenizer was trained here, so that its end-of-sequence token is `DEFAULT_EOS`.
        """
        model = _loaded(path, *map(FileStamp.of, tokenizer_files(path)))
        eos = None
        if special.append_eos:
            eos = special.eos or (
                DEFAULT_EOS if is_trained else required_eos(model, path, option_for_none="append_eos")
            )
        opening, closing = ends_added(model)  # what the tokenizer itself puts around a text; None for nothing
        begin_id_to_add = _id_to_add(model, "bos", special.bos, added_by_itself=opening)
        end_id_to_add = _id_to_add(model, "eos", eos, added_by_itself=closing)
        return cls(
            path=path,
            vocab_size=id_limit(model),
            bos=special.bos,
            eos=eos,
            begin_id_to_add=begin_id_to_add,
            end_id_to_add=end_id_to_add,
            special_texts=SpecialTexts.of(
                model,
                special.special_in_text,
                begin_id=begin_id_to_add if opening is None else opening,
                end_id=end_id_to_add if closing is None else closing,
            ),
            unknown_characters=UnknownCharacters.of(model),
        )

    @property
    def model(self) -> Any:
        """The loaded tokenizer, set to encode special tokens in a text as characters, unless they are to be kept."""
        model = _loaded(self.path, *map(FileStamp.of, tokenizer_files(self.path)))
        model.encode_special_tokens = self.special_texts.treatment != "keep"
        return model

    @property
    def special_to_refuse(self) -> SpecialTexts | None:
        """The special tokens, if a document is refused that spells one; else None."""
        return self.special_texts if self.special_texts.treatment == "error" else None

    def write(
        self, documents: Iterable[str], writer: MegatronWriter, tally: Tally, keys: KeysFile | None = None
    ) -> None:
        """Encodes documents batch by batch; writes their sequences, and counts them.

        With `keys`, every document is a `KeyedText`, whose key is written too. A document without a token is left out.
        """
        for batch in _batches(documents):
            sequences = self._sequences(batch, tally)
            if keys is not None:
                texts_with_ids = zip(batch, sequences, strict=True)
                keys.append([cast(KeyedText, text).key for text, ids in texts_with_ids if ids])
            kept = [ids for ids in sequences if ids]
            tally.empty += len(sequences) - len(kept)
            if not kept:
                continue
            lengths = np.array([len(ids) for ids in kept])  # int64 [kept documents]
            writer.append_many(np.concatenate([np.array(ids, dtype=np.int32) for ids in kept]), lengths)
            tally.sequences += len(kept)
            tally.tokens += int(lengths.sum())
            tally.longest = max(tally.longest, int(lengths.max()))

    def sequence(self, text: str) -> list[int]:
        """Returns the ids of one document."""
        (ids,) = self._sequences([text], Tally())
        return ids

    def _sequences(self, batch: Sequence[str], tally: Tally) -> list[list[int]]:
        """Returns the ids of each document; counts special tokens and unknown characters.

        A document without text of its own has none, even if the tokenizer puts tokens around an empty text.
        """
        prepared_texts = [self.special_texts.prepare(text, tally.special) for text in batch]
        model = self.model
        encodings = model.encode_batch_fast([prepared.text for prepared in prepared_texts])
        sequences: list[list[int]] = []
        for prepared, encoding in zip(prepared_texts, encodings, strict=True):
            ids: list[int] = encoding.ids if prepared.text.strip() else []
            if ids:
                tally.unknown += self.unknown_characters.count(model, prepared.text, ids)
                tally.own_ends += prepared.own_ends
                tally.special_ids += self.special_texts.count(prepared, encoding)
                self._begin_and_end(ids)
            sequences.append(ids)
        return sequences

    def _begin_and_end(self, ids: list[int]) -> None:
        """Adds, in place, the tokens that begin and end a sequence, so that each is there once.

        A token is there twice if the tokenizer adds it itself and the text spells it too; then one is removed. A token
        that the tokenizer does not add is added, unless the text spells it.
        """
        begin, end = self.special_texts.begin_id, self.special_texts.end_id
        if begin is not None and self.begin_id_to_add is None and ids[:2] == [begin, begin]:
            del ids[0]
        if end is not None and self.end_id_to_add is None and ids[-2:] == [end, end]:
            del ids[-1]
        if self.begin_id_to_add is not None and ids[0] != self.begin_id_to_add:
            ids.insert(0, self.begin_id_to_add)
        if self.end_id_to_add is not None and ids[-1] != self.end_id_to_add:
            ids.append(self.end_id_to_add)


@lru_cache(maxsize=1)
def _loaded(path: Path, *stamps: FileStamp) -> Any:
    """Loads a tokenizer; `stamps` of its files make the cache miss after a change."""
    return load_tokenizer(path)


def _id_to_add(tokenizer: Any, option: str, token: str | None, *, added_by_itself: int | None) -> int | None:
    """Returns the id to add to every sequence; None without a token, or if the tokenizer adds this id by itself."""
    if token is None:
        return None
    token_id: int | None = tokenizer.token_to_id(token)
    if token_id is None:
        raise ValueError(
            f"{option} {token!r} is not a token of the tokenizer; name one that is, or "
            + (("none with " + parameter("append_eos", False)) if option == "eos" else "leave it out")
        )
    return None if token_id == added_by_itself else token_id


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    """Yields batches of documents, bounded by their number and by their characters."""
    batch: list[str] = []
    characters = 0
    for text in documents:
        batch.append(text)
        characters += len(text)
        if len(batch) >= _BATCH_DOCUMENTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
