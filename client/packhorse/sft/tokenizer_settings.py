"""`with_settings`: changes a tokenizer as its `tokenizer_config.json` says, as transformers does when it reads both.

Owns tokens that only the settings name, and the blank that some tokenizers put before a text. Leaves reading files, and
which tokens begin and end a text, to `sft.tokenizer_loading`.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packhorse.formats import require

_GENERIC = (None, "PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")
"""Classes that take a `tokenizer.json` as it is, even if the settings mention a blank."""
_LLAMA = ("LlamaTokenizer", "LlamaTokenizerFast")
"""Classes for which transformers ignores the file's rules for blanks and uses SentencePiece's."""


def with_settings(model: Any, config: Mapping[str, Any], path: Path) -> tuple[Any, bool]:
    """Returns a tokenizer changed by its settings, and whether they changed anything.

    Args:
        model: the `tokenizers.Tokenizer` of the `tokenizer.json`; tokens may be added to it.
        config: content of the settings.
        path: path of the settings, for messages.

    Raises:
        ValueError: the settings give a token another id than the tokenizer does.
    """
    is_changed = False
    prefix = config.get("add_prefix_space")
    if config.get("tokenizer_class") in _LLAMA:
        changed = _as_llama(model, prefix, is_legacy=config.get("legacy") is True)
        model, is_changed = changed, changed is not model
    elif isinstance(prefix, bool) and config.get("tokenizer_class") not in _GENERIC:
        changed = with_prefix_space(model, prefix)
        model, is_changed = changed, changed is not model
    library = require("tokenizers", "sft")
    # In the order of ids, because an added token gets the next free id.
    for number, token in sorted(config.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0])):
        facts = token if isinstance(token, Mapping) else {"content": token}
        text = facts["content"]
        known_id = model.token_to_id(text)
        if known_id is None:
            flags = ("special", "normalized", "lstrip", "rstrip", "single_word")
            added = library.AddedToken(text, **{name: facts[name] for name in flags if name in facts})
            add = model.add_special_tokens if added.special else model.add_tokens
            add([added])
            is_changed = True
        if model.token_to_id(text) != int(number):
            raise ValueError(
                f"{path} gives {text!r} the id {number}, its tokenizer.json {known_id}; load the folder "
                "with transformers and pass that tokenizer, or save it again from there"
            )
    return model, is_changed


def with_prefix_space(model: Any, wanted: bool) -> Any:
    """Returns a tokenizer that puts a blank before a text (`wanted`), or none; the same object if nothing changes.

    Byte-level tokenizers have a flag for this, and those of SentencePiece a pre-tokenizer or a normalizer. Without any
    of these nothing changes.
    """
    state = json.loads(model.to_str())
    is_changed = False
    for part in _parts(state.get("pre_tokenizer")):
        if part["type"] == "ByteLevel" and part["add_prefix_space"] != wanted:
            part["add_prefix_space"], is_changed = wanted, True
        if part["type"] == "Metaspace":
            puts_blank = part["prepend_scheme"] != "never"
            if puts_blank != wanted:
                part["prepend_scheme"], is_changed = "first" if wanted else "never", True
    blanks = [part for part in _parts(state.get("normalizer")) if part["type"] == "Prepend"]
    if blanks and not wanted:
        state["normalizer"], is_changed = _without(state["normalizer"], blanks), True
    return type(model).from_str(json.dumps(state)) if is_changed else model


def _as_llama(model: Any, prefix: bool | None, *, is_legacy: bool) -> Any:
    """Returns a tokenizer with the blanks of Llama's class; the same object if nothing changes, or if it is byte-level.

    `prefix` is the settings' `add_prefix_space`, False for no blank. With `is_legacy` the blank is before each part of
    a text between special tokens, not only before the text.
    """
    state = json.loads(model.to_str())
    if any(part["type"] == "ByteLevel" for part in _parts(state.get("pre_tokenizer"))):
        return model
    scheme = "never" if prefix is False else "always" if is_legacy else "first"
    blanks = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": False}
    changed = {**state, "normalizer": None, "pre_tokenizer": blanks}
    return model if changed == state else type(model).from_str(json.dumps(changed))


def _parts(node: Any) -> Iterator[dict[str, Any]]:
    """Yields a normalizer or pre-tokenizer, or if it is a sequence its parts; `node` is its JSON, or None."""
    if node is None:
        return
    if node["type"] == "Sequence":
        for part in node.get("pretokenizers") or node.get("normalizers") or ():
            yield from _parts(part)
    else:
        yield node


def _without(node: dict[str, Any], parts: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns a normalizer's JSON without some of its parts; None if it is one of these parts itself."""
    if node in parts:
        return None
    if node["type"] != "Sequence":
        return node
    left = [_without(part, parts) for part in node["normalizers"]]
    return {**node, "normalizers": [part for part in left if part is not None]}
