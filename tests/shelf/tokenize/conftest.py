"""Inputs of the tokenizing tests: a corpus of text, and a tokenizer that a model came with."""

import json
from pathlib import Path

import pytest
from tests.shelf.tokenize.made import TEXTS
from tokenizers import Tokenizer, models, pre_tokenizers, processors


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in [*TEXTS, "", " \n"]))
    return path


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A word tokenizer with what trips a careless user: truncation, padding, a gap in the ids, [CLS] in front."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2, "<eos>": 3, "[CLS]": 9}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<eos>", "[CLS]"])
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 9)])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    path = tmp_path / "local.json"
    tokenizer.save(str(path))
    return path
