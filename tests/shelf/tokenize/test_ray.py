"""`tokenize --engine ray` on a real cluster of two nodes: the same bytes as in processes of this machine."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.flat_words import tokenize, tokenize_fine_tuning

from packhorse.tokenize import PairColumns, train_tokenizer
from packhorse.tokenize.input import parts as _parts

TEXTS = [f"text {number} of many, each a line of some words" for number in range(500)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus and a tokenizer in the working directory, and parts of a few lines."""
    monkeypatch.setattr(_parts, "_LEAST_PART_BYTES", 4000)
    monkeypatch.chdir(tmp_path)  # where the cluster's processes are not
    rows = (json.dumps({"text": text, "question": text, "answer": text}) for text in TEXTS)
    (tmp_path / "corpus.jsonl").write_text("\n".join(rows))
    train_tokenizer(TEXTS, vocab_size=300).save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def contents(folder: Path, prefix: str) -> dict[str, bytes]:
    return {path.name.removeprefix(prefix): path.read_bytes() for path in folder.glob(f"{prefix}.*")}


@pytest.mark.long
def test_a_cluster_writes_the_same_bytes(cluster: Any, folder: Path) -> None:
    options: dict[str, Any] = {"tokenizer": "tokenizer.json", "progress": False}
    far: dict[str, Any] = {"engine": "ray", "ray_address": cluster.address, **options}
    tokenize("corpus.jsonl", "local", append_eos=False, workers=1, **options)
    tokenize("corpus.jsonl", "far", append_eos=False, **far)
    assert contents(folder, "far") == contents(folder, "local")
    columns = PairColumns(prompt="question", response="answer", eos=False)
    tokenize_fine_tuning("corpus.jsonl", "local-pairs", columns, workers=1, **options)
    tokenize_fine_tuning("corpus.jsonl", "far-pairs", columns, **far)
    assert contents(folder, "far-pairs") == contents(folder, "local-pairs")


def test_without_ray_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'packhorse[ray]'")):
        tokenize("corpus.jsonl", "out", tokenizer="tokenizer.json", append_eos=False, engine="ray", progress=False)
    assert not list(folder.glob("out*"))


def test_what_does_not_go_together(folder: Path) -> None:
    with pytest.raises(ValueError, match="leave workers out"):
        tokenize("corpus.jsonl", "out", tokenizer="tokenizer.json", engine="ray", workers=2)
    with pytest.raises(ValueError, match="choose engine='ray'"):
        tokenize("corpus.jsonl", "out", tokenizer="tokenizer.json", ray_address="host:1")
