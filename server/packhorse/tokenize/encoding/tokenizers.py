"""Tokenizers on disk: a `tokenizer.json`, and the settings in a `tokenizer_config.json` beside it.

Owns loading and saving them, their checksum, and finding the tokens that a tokenizer puts around a text. Training is in
`training`, and encoding is in `encoder`. A `tokenizer.json` cannot name its end-of-sequence token. As in transformers,
its settings do: `corpus.tokenizer.json` has them in `corpus.tokenizer_config.json`.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, cast

from packhorse.formats import require
from packhorse.parameters import parameter
from packhorse.sft.tokenizer_loading import read_tokenizer_json, tokenizer_json_path
from packhorse.sft.tokenizer_settings import with_settings
from packhorse.storage import AtomicFiles


def load_tokenizer(path: Path) -> Any:
    """Loads a `tokenizer.json`, without its truncation and padding: a document is tokenized whole.

    Raises:
        ImportError: the tokenizers library is not installed.
        ValueError: the file, or the settings beside it, cannot be read.
    """
    require("tokenizers")
    tokenizer, _ = with_settings(read_tokenizer_json(path), _settings(path), settings_path(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = splits_special_tokens(path)
    return tokenizer


def splits_special_tokens(path: Path) -> bool:
    """Whether a tokenizer's settings say that a special token that a text spells is encoded as characters."""
    return bool(_settings(path).get("split_special_tokens"))


def content_to_save(path: Path) -> bytes:
    """Returns the content of a `tokenizer.json` that needs no settings, except those that `save_tokenizer` writes.

    These are the file's bytes, or the tokenizer with its settings applied if they change it.
    """
    model, is_changed = with_settings(read_tokenizer_json(path), _settings(path), settings_path(path))
    return cast(str, model.to_str(pretty=True)).encode() if is_changed else path.read_bytes()


def required_eos(tokenizer: Any, path: Path, *, option_for_none: str) -> str:
    """Returns the token that ends a sequence, as `find_eos`; a ValueError if nothing says which token it is.

    `option_for_none` is the option whose value False means "no such token", for the message: "append_eos" or "eos".
    """
    eos = find_eos(tokenizer, path)
    if eos is None:
        special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
        raise ValueError(
            f"cannot tell which token of {path} ends a sequence: name it with "
            + parameter("eos", "TOKEN")
            + ", or choose none with "
            + parameter(option_for_none, False)
            + (f"; its special tokens are {', '.join(special)}" if special else "")
        )
    return eos


def find_eos(tokenizer: Any, path: Path) -> str | None:
    """Returns the token that ends a sequence of a loaded tokenizer; None if nothing says which.

    It is the `eos_token` of the settings beside its `tokenizer.json`. If they name none, it is the token that the
    tokenizer itself puts after a text.
    """
    named = _settings(path).get("eos_token")
    if isinstance(named, dict):  # transformers also writes a token as an object with its properties
        named = named.get("content")
    if named:
        return str(named)
    closing = ends_added(tokenizer).closing
    return None if closing is None else str(tokenizer.id_to_token(closing))


class AddedEnds(NamedTuple):
    """The ids that a tokenizer itself puts around every text."""

    opening: int | None
    """The id before the text; None if there is none."""
    closing: int | None
    """The id after the text; None if there is none."""


def ends_added(tokenizer: Any) -> AddedEnds:
    """Finds the ids that a tokenizer itself puts around every text, by encoding one."""
    encoding = tokenizer.encode("a")
    is_added: list[int] = encoding.special_tokens_mask  # <s> a </s> -> [1, 0, 1]
    if not is_added or all(is_added):  # the text itself has no token, so nothing tells what is before and after it
        return AddedEnds(opening=None, closing=None)
    return AddedEnds(
        opening=encoding.ids[0] if is_added[0] else None,
        closing=encoding.ids[-1] if is_added[-1] else None,
    )


def id_limit(tokenizer: Any) -> int:
    """Returns the smallest vocab_size with every id of the tokenizer below it; ids may have gaps."""
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    return max(vocabulary.values(), default=0) + 1


def settings_path(path: Path) -> Path:
    """Returns the path of the settings of a `tokenizer.json`."""
    return path.with_name(f"{path.name.removesuffix('tokenizer.json')}tokenizer_config.json")


def tokenizer_files(path: Path) -> list[Path]:
    """Returns a tokenizer's files: its `tokenizer.json`, settings and, if `path` is a folder, chat templates."""
    file = tokenizer_json_path(path)
    settings = settings_path(file)
    templates = sorted(path.rglob("*.jinja")) if path.is_dir() else []
    return [file, *([settings] if settings.is_file() else []), *templates]


def checksum_of(files: Iterable[Path]) -> str:
    """Returns a checksum of the contents of some files, 64 hexadecimal digits."""
    whole = hashlib.sha256()
    for file in files:
        whole.update(hashlib.sha256(file.read_bytes()).digest())
    return whole.hexdigest()


def save_tokenizer(path: Path, content: bytes, *, eos: str | None, split_special_tokens: bool) -> None:
    """Writes or replaces a `tokenizer.json` and its settings, for `load_tokenizer` and `required_eos`.

    Args:
        path: ends in `tokenizer.json`.
        content: content of that file.
        eos: the end-of-sequence token; None for none.
        split_special_tokens: whether a special token that a text spells is encoded as characters.
    """
    settings = {"eos_token": eos, "split_special_tokens": split_special_tokens}
    with AtomicFiles([settings_path(path), path], overwrite=True) as output:
        settings_file, tokenizer_file = output.files
        settings_file.write(json.dumps(settings, indent=2).encode())
        tokenizer_file.write(content)


def _settings(path: Path) -> dict[str, Any]:
    """Returns the settings beside a `tokenizer.json`; empty if there are none."""
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
