"""`load_chat_tokenizer`: makes a `ChatTokenizer` of a user's tokenizer.

Owns reading a fast tokenizer of transformers, a `tokenizers.Tokenizer`, a `tokenizer.json`, or a folder with one as
`save_pretrained` writes it. Leaves what `tokenizer_config.json` changes to `sft.tokenizer_settings`, and encoding to
`sft.tokenizer`.
"""

import json
import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from packhorse.formats import require
from packhorse.sft.dropped_characters import known_characters
from packhorse.sft.tokenizer import ChatTokenizer
from packhorse.sft.tokenizer_settings import with_settings

_CONFIG, _TEMPLATE, _MORE_TEMPLATES = "tokenizer_config.json", "chat_template.jinja", "additional_chat_templates"
"""Names in a tokenizer's folder: its settings, its chat template, and the folder of further templates."""
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Keys of the settings that hold a special token."""


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
        # The map may also hold lists, of additional tokens, which have no names in templates.
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
    # Of <s> a </s>, `of_text` is [1]. If the text itself becomes no token, all that is added counts as opening.
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
