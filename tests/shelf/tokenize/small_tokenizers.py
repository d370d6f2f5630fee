"""Small tokenizers in the forms of public ones, saved as folders that transformers loads too."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

_WORDS = ["The quick brown fox jumps over the lazy dog. What is 2 + 2 = 4? See the fox here, ä user asks."] * 4
SPECIAL = ["<unk>", "<s>", "</s>", "<|eot|>"]


def byte_level() -> Tokenizer:
    """GPT's form, with a BOS that the tokenizer adds itself, as Llama 3's does."""
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    _train(model, SPECIAL, sorted(pre_tokenizers.ByteLevel.alphabet()))
    _open_with_bos(model)
    return model


def sentence_piece(form: str) -> Tokenizer:
    """Llama's forms: "metaspace" puts a blank before the first word, "prepend" before each stretch of text."""
    fallback = [f"<0x{number:02X}>" for number in range(256)]
    model = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if form == "metaspace":
        model.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    else:
        model.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    _train(model, SPECIAL + fallback, [])
    state = json.loads(model.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in fallback]
    model = Tokenizer.from_str(json.dumps(state))
    strip = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    model.decoder = decoders.Sequence(strip)
    _open_with_bos(model)
    return model


def _train(model: Tokenizer, special: list[str], alphabet: list[str]) -> None:
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    model.train_from_iterator(_WORDS, trainer=trainer)


def _open_with_bos(model: Tokenizer) -> None:
    bos = [("<s>", model.token_to_id("<s>"))]
    model.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=bos)


def saved(model: Tokenizer, folder: Path, **settings: Any) -> Path:
    """Writes a tokenizer as transformers does, with settings."""
    folder.mkdir()
    model.save(str(folder / "tokenizer.json"))
    whole = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(whole))
    return folder
