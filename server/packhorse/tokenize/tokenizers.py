"""Tokenizers: a local `tokenizer.json`, or a byte-level BPE trained on the documents themselves; and encoding.

Owns loading, training and saving them, which tokens begin and end a sequence, encoding batch by batch, and the file of
keys. Leaves documents to `documents`, and token files to `packhorse.formats`. A `tokenizer.json` cannot name its
end-of-sequence token: as in transformers, `corpus.tokenizer_config.json` beside `corpus.tokenizer.json` does.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast, get_args

import numpy as np

from packhorse.formats import MegatronWriter, require
from packhorse.formats.arrow import open_arrow, record_batches
from packhorse.formats.files import FileStamp
from packhorse.formats.keys import KEY_COLUMN, NUM_TOKENS, keys_path
from packhorse.parameters import parameter
from packhorse.sft.tokenizer import read_tokenizer_json, tokenizer_json_path
from packhorse.sft.tokenizer_settings import with_settings
from packhorse.storage import AtomicFiles
from packhorse.tokenize._special_texts import SpecialInText, SpecialTexts, UnknownCharacters
from packhorse.tokenize._work import Tally

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
        ValueError: it, or the settings beside it, cannot be read.
    """
    require("tokenizers")
    tokenizer, _ = with_settings(read_tokenizer_json(path), _settings(path), settings_path(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = splits_special_tokens(path)
    return tokenizer


def splits_special_tokens(path: Path) -> bool:
    """Whether a tokenizer's settings say that a special token spelled out in a text is text like any other."""
    return bool(_settings(path).get("split_special_tokens"))


def content_to_save(path: Path) -> bytes:
    """Returns a `tokenizer.json` that needs no settings: the file as it is, or with what its settings add."""
    model, is_changed = with_settings(read_tokenizer_json(path), _settings(path), settings_path(path))
    return cast(str, model.to_str(pretty=True)).encode() if is_changed else path.read_bytes()


def end_of_sequence(tokenizer: Any, path: Path, *, none: str) -> str:
    """As `find_eos`, with a ValueError if nothing says which token it is; with `none=False` one does without."""
    eos = find_eos(tokenizer, path)
    if eos is None:
        special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
        raise ValueError(
            (
                f"cannot tell which token of {path} ends a sequence: name it with "
                + parameter("eos", "TOKEN")
                + ", or choose none with "
                + parameter(none, False)
            )
            + (f"; its special tokens are {', '.join(special)}" if special else "")
        )
    return eos


def find_eos(tokenizer: Any, path: Path) -> str | None:
    """Returns the token that ends a sequence of a loaded tokenizer; None if nothing says which.

    It is the `eos_token` of the settings beside its `tokenizer.json` or, where they name none, the token that the
    tokenizer itself puts after a text.
    """
    named = _settings(path).get("eos_token")
    if isinstance(named, dict):
        named = named.get("content")
    if named:
        return str(named)
    closing = closing_id(tokenizer)
    return None if closing is None else str(tokenizer.id_to_token(closing))


def opening_id(tokenizer: Any) -> int | None:
    """Returns the id that a tokenizer by itself puts before every text; None if it puts none."""
    encoding = tokenizer.encode("a")
    added: list[int] = encoding.special_tokens_mask
    return encoding.ids[0] if added and added[0] and not all(added) else None


def closing_id(tokenizer: Any) -> int | None:
    """Returns the id that a tokenizer by itself puts after every text; None if it puts none."""
    encoding = tokenizer.encode("a")
    added: list[int] = encoding.special_tokens_mask
    return encoding.ids[-1] if added and added[-1] and not all(added) else None


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
    # A document that spells out a special token is text like any other; it must not end its sequence early.
    tokenizer.encode_special_tokens = True
    return tokenizer


def settings_path(path: Path) -> Path:
    """Returns the path of the settings of a `tokenizer.json`."""
    return path.with_name(f"{path.name.removesuffix('tokenizer.json')}tokenizer_config.json")


def tokenizer_files(path: Path) -> list[Path]:
    """Returns a tokenizer's files: its `tokenizer.json`, settings and, of a folder, chat templates."""
    file = tokenizer_json_path(path)
    templates = sorted(path.rglob("*.jinja")) if path.is_dir() else []
    return [file, *(settings for settings in [settings_path(file)] if settings.is_file()), *templates]


def checksum_of(files: Iterable[Path]) -> str:
    """Returns a checksum of the contents of some files, 64 hexadecimal digits."""
    whole = hashlib.sha256()
    for file in files:
        whole.update(hashlib.sha256(file.read_bytes()).digest())
    return whole.hexdigest()


def save_tokenizer(path: Path, content: bytes, *, eos: str | None, split_special_tokens: bool) -> None:
    """Writes or replaces a `tokenizer.json` and its settings, for `load_tokenizer` and `end_of_sequence`.

    Args:
        path: ends in `tokenizer.json`.
        content: of that file.
        eos: the end-of-sequence token; None for none.
        split_special_tokens: whether a special token spelled out in a text is text like any other.
    """
    settings = {"eos_token": eos, "split_special_tokens": split_special_tokens}
    with AtomicFiles([settings_path(path), path], overwrite=True) as output:
        output.files[0].write(json.dumps(settings, indent=2).encode())
        output.files[1].write(content)


def _settings(path: Path) -> dict[str, Any]:
    beside = settings_path(path)
    if not path.name.endswith("tokenizer.json") or not beside.is_file():
        return {}
    try:
        settings = json.loads(beside.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{beside} is not JSON: {error}") from None
    if not isinstance(settings, dict):
        raise ValueError(f"{beside} holds a {type(settings).__name__}, not a tokenizer's settings")
    return settings


def id_limit(tokenizer: Any) -> int:
    """Returns the smallest vocab_size with every id of the tokenizer below it; ids may have gaps."""
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    return max(vocabulary.values(), default=0) + 1


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
    special_in_text: SpecialInText = "text"
    """What becomes of special tokens that a document spells out, such as `<|endoftext|>` in a page about models: "text"
    encodes their characters, so that no document writes control tokens; "keep" makes them tokens, as transformers does;
    "error" refuses the document. They are counted in any case. The token that begins or ends every sequence is the
    document's own if the text begins or ends with it, and is not put there twice.
    """

    def __post_init__(self) -> None:
        """Checks the choice."""
        if self.special_in_text not in get_args(SpecialInText):
            raise ValueError(
                parameter("special_in_text")
                + f" is {self.special_in_text!r}; choose one of {', '.join(get_args(SpecialInText))}"
            )


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
    special: SpecialTexts
    unknown: UnknownCharacters

    @classmethod
    def made(cls, path: Path, special: SpecialTokens, *, is_trained: bool) -> Self:
        """Looks up the special tokens."""
        model = _loaded(path, *map(FileStamp.of, tokenizer_files(path)))
        eos, opening, closing = None, opening_id(model), closing_id(model)
        if special.append_eos:
            eos = special.eos or (DEFAULT_EOS if is_trained else end_of_sequence(model, path, none="append_eos"))
        return cls(
            path=path,
            vocab_size=id_limit(model),
            bos=special.bos,
            eos=eos,
            first_id=(first := _added_id(model, "bos", special.bos, opening)),
            last_id=(last := _added_id(model, "eos", eos, closing)),
            special=SpecialTexts.of(
                model,
                special.special_in_text,
                begin_id=first if opening is None else opening,
                end_id=last if closing is None else closing,
            ),
            unknown=UnknownCharacters.of(model),
        )

    @property
    def model(self) -> Any:
        """The tokenizer, which takes special tokens in a text as they are to be taken."""
        model = _loaded(self.path, *map(FileStamp.of, tokenizer_files(self.path)))
        model.encode_special_tokens = self.special.treatment != "keep"
        return model

    @property
    def refused(self) -> SpecialTexts | None:
        """The special tokens whose texts refuse a document; None if none does."""
        return self.special if self.special.treatment == "error" else None

    def write(
        self, documents: Iterable[str], writer: MegatronWriter, tally: Tally, keys: KeysFile | None = None
    ) -> None:
        """Writes documents, and their keys if they have any, batch by batch, and counts them."""
        for batch in _batches(documents):
            sequences = self._sequences(batch, tally)
            if keys is not None:
                pairs = zip(batch, sequences, strict=True)
                keys.append([cast(KeyedText, text).key for text, ids in pairs if ids])
            kept = [ids for ids in sequences if ids]
            tally.empty += len(sequences) - len(kept)
            if not kept:
                continue
            lengths = np.array([len(ids) for ids in kept])
            writer.append_many(np.concatenate([np.array(ids, dtype=np.int32) for ids in kept]), lengths)
            tally.sequences += len(kept)
            tally.tokens += int(lengths.sum())
            tally.longest = max(tally.longest, int(lengths.max()))

    def sequence(self, text: str) -> list[int]:
        """Returns the ids of one document."""
        (ids,) = self._sequences([text], Tally())
        return ids

    def _sequences(self, batch: Sequence[str], tally: Tally) -> list[list[int]]:
        """Returns the ids of each document, and none for one without text; counts what is special or unknown."""
        taken = [self.special.take(text, tally.special) for text in batch]
        texts = [text.text for text in taken]
        model = self.model
        encodings = model.encode_batch_fast(texts)
        sequences: list[list[int]] = []
        for text, encoding in zip(taken, encodings, strict=True):
            ids: list[int] = encoding.ids if text.text.strip() else []
            if ids:
                tally.unknown += self.unknown.count(model, text.text, ids)
                tally.own_ends += text.own_ends
                tally.special_ids += self.special.count(text, encoding)
                self._begin_and_end(ids)
            sequences.append(ids)
        return sequences

    def _begin_and_end(self, ids: list[int]) -> None:
        """Adds what begins and ends a sequence, unless its text did already."""
        begin, end = self.special.begin_id, self.special.end_id
        if begin is not None and self.first_id is None and ids[:2] == [begin, begin]:
            del ids[0]
        if end is not None and self.last_id is None and ids[-2:] == [end, end]:
            del ids[-1]
        if self.first_id is not None and ids[0] != self.first_id:
            ids.insert(0, self.first_id)
        if self.last_id is not None and ids[-1] != self.last_id:
            ids.append(self.last_id)


@lru_cache(maxsize=1)
def _loaded(path: Path, *stamps: FileStamp) -> Any:
    return load_tokenizer(path)


def _added_id(tokenizer: Any, name: str, token: str | None, own: int | None) -> int | None:
    """The id to add to every sequence; None if there is none, or the tokenizer adds it by itself."""
    if token is None:
        return None
    number: int | None = tokenizer.token_to_id(token)
    if number is None:
        raise ValueError(
            f"{name} {token!r} is not a token of the tokenizer; name one that is, or "
            + (("none with " + parameter("append_eos", False)) if name == "eos" else "leave it out")
        )
    return None if own == number else number


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    """Yields documents in batches that are bounded in documents and in characters."""
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
