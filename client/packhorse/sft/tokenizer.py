"""`ChatTokenizer`: a user's tokenizer, made ready to encode chats.

Owns reading a fast tokenizer of transformers, a `tokenizers.Tokenizer`, a `tokenizer.json`, or a folder with one as
`save_pretrained` writes it; and encoding text with offsets. Leaves what `tokenizer_config.json` changes to
`sft.tokenizer_settings`, and rendering templates to `sft.template`.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from packhorse.formats import require
from packhorse.parameters import parameter
from packhorse.sft.tokenizer_settings import with_settings
from packhorse.storage import read_text

_CONFIG, _TEMPLATE, _MORE_TEMPLATES = "tokenizer_config.json", "chat_template.jinja", "additional_chat_templates"
"""Names in a tokenizer's folder: its settings, its chat template, and the folder of further templates."""
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Keys of the settings that hold a special token."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Texts of a tokenizer's added tokens, by which turns are found; longest first."""

    special: tuple[str, ...]
    """Texts of the added tokens that may end a turn."""
    added: tuple[str, ...]
    """Texts of all added tokens."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChatTokenizer:
    """A tokenizer for chats. Make one with `load_chat_tokenizer`; it pickles.

    Example:
        >>> from tokenizers import Tokenizer, models
        >>> tokenizer = load_chat_tokenizer(Tokenizer(models.WordLevel({"hi": 0, "<eos>": 1}, unk_token="hi")))
        >>> tokenizer.eos_id("<eos>")
        1
    """

    model: Any
    """A `tokenizers.Tokenizer` that does not truncate, pad or add tokens; its offsets include white space."""
    opening: tuple[int, ...]
    """Ids that the tokenizer adds before a text, such as BOS."""
    closing: tuple[int, ...]
    """Ids that the tokenizer adds after a text, such as EOS."""
    special_texts: tuple[str, ...]
    """Texts of the special tokens."""
    added_texts: tuple[str, ...] = ()
    """Texts of all added tokens, which the tokenizer finds before it splits a text."""
    known: frozenset[str] | None = None
    """The characters that the tokenizer knows, if it drops others; None if every character becomes tokens."""
    special_tokens: Mapping[str, str] | None = None
    """Name in templates ("eos_token") → text; None if unknown."""
    chat_templates: Mapping[str, str] | None = None
    """Name ("default", "tool_use") → template; None if it has none."""

    @property
    def marks(self) -> Marks:
        """The added tokens, for the search for turns."""
        special = {*self.special_texts, *filter(None, [(self.special_tokens or {}).get("eos_token")])}
        added = special | {text for text in self.added_texts if text.strip()}
        return Marks(*(tuple(sorted(texts, key=len, reverse=True)) for texts in (special, added)))

    def dropped_in(self, text: str) -> list[str]:
        """Returns the characters of a text, except white space, that the tokenizer drops."""
        return [] if self.known is None else dropped_characters(self.model, self.known, text)

    def num_tokens(self, text: str) -> int:
        """Returns how many tokens a text has by itself."""
        return len(self.encode([text])[0].ids)

    def encode(self, texts: Sequence[str]) -> list[Any]:
        """Encodes texts without adding tokens: a `tokenizers.Encoding` each, with `ids` and `offsets` in characters."""
        encodings: list[Any] = self.model.encode_batch(list(texts), add_special_tokens=False)
        return encodings

    def template(self, chosen: str | os.PathLike[str] | None, *, has_tools: bool = False) -> str:
        """Returns the text of a chat template.

        Args:
            chosen: the text of a template, a `Path` to one, or the name of one of the tokenizer's; None for "tool_use"
                if there are tools and such a template, else "default".
            has_tools: whether the conversation has tools.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: None was given, and the tokenizer has no default.
        """
        if isinstance(chosen, os.PathLike):
            return read_text(chosen)
        own = self.chat_templates or {}
        if chosen is not None:
            return own.get(chosen, chosen)
        name = "tool_use" if has_tools and "tool_use" in own else "default"
        if name not in own:
            there = f"only templates named {', '.join(own)}; choose one" if own else "no chat template; give one"
            raise ValueError(f"the tokenizer has {there} with " + parameter("chat_template"))
        return own[name]

    def eos_id(self, eos: str | None) -> int:
        """Returns the id of the end-of-sequence token `eos`, or of the tokenizer's own for None.

        Raises:
            ValueError: `eos` is not a token, or it is None and the tokenizer does not say which token is its own.
        """
        if eos is None:
            if self.special_tokens is not None and "eos_token" in self.special_tokens:
                eos = self.special_tokens["eos_token"]
            elif self.closing:
                return self.closing[-1]
            else:
                raise ValueError(
                    "the tokenizer does not say which token ends a sequence; name it with eos=, or append no such token"
                )
        number: int | None = self.model.token_to_id(eos)
        if number is None:
            raise ValueError(f"eos {eos!r} is not a token of the tokenizer; name one that is, or append no such token")
        return number


def load_chat_tokenizer(source: Any) -> ChatTokenizer:
    """Makes a tokenizer ready for chats.

    The result is cached for the next call with the same object, so change a tokenizer before its first use.

    Example:
        >>> from tokenizers import Tokenizer, models
        >>> loaded = load_chat_tokenizer(Tokenizer(models.WordLevel({"hi": 0}, unk_token="hi")))
        >>> loaded.model.encode("hi").ids
        [0]

    Args:
        source: a fast tokenizer of transformers, a `tokenizers.Tokenizer`, the path of a `tokenizer.json` or of a
            folder with one, or a `ChatTokenizer`.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ImportError: the extra `packhorse[sft]` is not installed.
        ValueError: `source` is something else, a slow tokenizer, or a folder whose files contradict each other.
    """
    if isinstance(source, ChatTokenizer):
        return source
    if isinstance(source, str | os.PathLike):
        return _load_path(Path(source))
    if hasattr(source, "encode_batch") and hasattr(source, "to_str"):
        return _prepared_copy(source, source.get_vocab_size(with_added_tokens=True))
    if hasattr(source, "apply_chat_template"):
        return _load_transformers(source)
    raise ValueError(
        f"{type(source).__name__} is not a tokenizer that can be read; give a fast tokenizer of transformers, "
        "a tokenizers.Tokenizer, or the path of a tokenizer.json or of the folder that holds it"
    )


def known_characters(model: Any) -> frozenset[str] | None:
    """Returns the characters that a `tokenizers.Tokenizer` knows if it drops others; None if it drops none.

    Only a BPE model without an unknown token, byte fallback or byte-level splitting drops characters.
    """
    if type(model.model).__name__ != "BPE" or model.model.unk_token is not None or model.model.byte_fallback:
        return None
    parts = (part for part in (model.pre_tokenizer, model.normalizer) if part is not None)
    if any('"ByteLevel"' in json.dumps(json.loads(part.__getstate__())) for part in parts):
        return None
    return frozenset(token for token in model.get_vocab(with_added_tokens=False) if len(token) == 1)


def dropped_characters(model: Any, known: frozenset[str], text: str) -> list[str]:
    """Returns the characters of a text, after normalizing, that are not `known`, except white space."""
    if known.issuperset(text):
        return []
    for token in model.get_added_tokens_decoder().values():
        text = text.replace(token.content, " ")
    normal = text if model.normalizer is None else model.normalizer.normalize_str(text)
    # U+2581 is SentencePiece's blank.
    return [each for each in normal if each not in known and not each.isspace() and each != "\u2581"]


def tokenizer_json_path(path: Path) -> Path:
    """Returns the path of a `tokenizer.json`, given as such or as its folder; a FileNotFoundError if it is missing."""
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        is_hub_name = not path.exists() and not path.is_absolute() and path.suffix != ".json" and len(path.parts) < 3
        raise FileNotFoundError(
            f"tokenizer {path} is no folder or file here. If it is a model's name on the Hugging Face Hub, get it: "
            f"hf download {path} --include 'tokenizer*' --local-dir my-model"
            if is_hub_name
            else f"tokenizer {file} is not there; name a tokenizer.json or its folder (a slow tokenizer has none: "
            "load it with transformers and save it again)"
        )
    return file


def read_tokenizer_json(file: Path) -> Any:
    """Reads a `tokenizer.json` into a `tokenizers.Tokenizer`.

    Raises:
        ImportError: the extra `packhorse[sft]` is not installed.
        ValueError: it is not a tokenizer.
    """
    library = require("tokenizers", "sft")
    try:
        return library.Tokenizer.from_file(str(file))
    except Exception as error:  # The library raises a bare Exception for any fault of the file.
        raise ValueError(f"{file} is not a tokenizer.json that the tokenizers library reads: {error}") from None


def _load_transformers(tokenizer: Any) -> ChatTokenizer:
    """Makes a fast tokenizer of transformers ready for chats."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not hasattr(backend, "to_str"):
        raise ValueError(
            f"{type(tokenizer).__name__} is a slow tokenizer, which gives no offsets of tokens in the text; load the "
            "fast one"
        )
    templates = tokenizer.chat_template
    return replace(
        _prepared_copy(backend, len(tokenizer)),
        special_tokens={
            name: str(token) for name, token in tokenizer.special_tokens_map.items() if not isinstance(token, list)
        },
        chat_templates={"default": templates} if isinstance(templates, str) else templates,
    )


def _load_path(path: Path) -> ChatTokenizer:
    """Reads a `tokenizer.json`, or a folder with one, its settings and its chat templates."""
    file = tokenizer_json_path(path)
    model = read_tokenizer_json(file)
    config_path = path / _CONFIG
    if not path.is_dir() or not config_path.is_file():
        return replace(_prepared(model), chat_templates=_folder_templates(path))
    try:
        config = json.loads(config_path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{config_path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{config_path} holds a {type(config).__name__}, not a mapping of settings")
    model, _ = with_settings(model, config, config_path)
    named = {name: config[name] for name in _SPECIAL_TOKENS if config.get(name)}
    return replace(
        _prepared(model),
        special_tokens={name: token if isinstance(token, str) else token["content"] for name, token in named.items()},
        chat_templates=_folder_templates(path) or _config_templates(config.get("chat_template")),
    )


def _folder_templates(path: Path) -> dict[str, str] | None:
    """Returns a folder's templates that are files, which override those in its settings; None if there are none."""
    files = {
        "default": path / _TEMPLATE,
        **{file.stem: file for file in sorted((path / _MORE_TEMPLATES).glob("*.jinja"))},
    }
    return {name: file.read_text(encoding="utf-8") for name, file in files.items() if file.is_file()} or None


def _config_templates(templates: Any) -> dict[str, str] | None:
    """Returns the templates in the settings, by name: one text, a list of named ones, or None."""
    if isinstance(templates, list):
        return {entry["name"]: entry["template"] for entry in templates}
    return {"default": templates} if isinstance(templates, str) else templates


@lru_cache(maxsize=4)
def _prepared_copy(model: Any, vocab_size: int) -> ChatTokenizer:
    """Copies a user's model and makes it ready; `vocab_size` is for the cache, in case the model has grown since."""
    return _prepared(type(model).from_str(model.to_str()))


def _prepared(model: Any) -> ChatTokenizer:
    """Changes a model so that it encodes a text and adds nothing; what it added before becomes `opening`, `closing`."""
    model.no_truncation()
    model.no_padding()
    model.encode_special_tokens = False
    probe = model.encode("a")
    of_text = [at for at, is_added in enumerate(probe.special_tokens_mask) if not is_added] or [len(probe.ids)]
    opening, closing = probe.ids[: of_text[0]], probe.ids[of_text[-1] + 1 :]
    # This post-processor adds no token and keeps white space in offsets, so that the begin of a turn is exact.
    model.post_processor = require("tokenizers.processors", "sft").ByteLevel(trim_offsets=False)
    added_tokens = list(model.get_added_tokens_decoder().values())
    return ChatTokenizer(
        model=model,
        opening=tuple(opening),
        closing=tuple(closing),
        special_texts=tuple(token.content for token in added_tokens if token.special),
        added_texts=tuple(token.content for token in added_tokens),
        known=known_characters(model),
    )
