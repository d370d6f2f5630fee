"""A folder with everything that wrong inputs speak of, and the names that cases of Python code use."""

import gzip
import json
import math
import os
import shutil
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from tests import flat_words
from tests.flat_words import packed_dataloader, packed_dataset


@pytest.fixture(scope="session")
def wrong_folder(tmp_path_factory):
    """`corpus` (a Megatron pair of 5, 3, 3, 5 tokens), `datasets/corpus`, and files that are none of what they seem."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tests.flat_words import prepare

    from packhorse.formats import MegatronWriter
    from packhorse.tokenize import train_tokenizer

    folder = tmp_path_factory.mktemp("wrong")
    with MegatronWriter(folder / "corpus", vocab_size=100) as writer:
        for length in (5, 3, 3, 5):
            writer.append(np.arange(length))
    prepare(folder / "corpus.idx", max_seq_len=8, output=folder / "datasets" / "corpus", progress=False)
    shutil.copytree(folder / "datasets" / "corpus", folder / "broken")
    (folder / "broken" / "counts.json").write_text("{}")
    shutil.copytree(folder / "datasets" / "corpus", folder / "mixtures" / "corpus")
    (folder / "mixtures" / "mixed.mixture.toml").write_text("epoch_bins = 8\n[[stages]]\nweights = {corpus = 1}\n")
    columns = {
        "length": [5, 3, 3, 5],
        "name": ["a", "b", "c", "d"],
        "half": [1.5, 2.0, 3.0, 4.0],
        "negative": [5, -3, 3, 5],
        "null": pa.array([5, None, 3, 5]),
        "same": [1, 2, 2, 3],
    }
    pq.write_table(pa.table(columns), folder / "lengths.parquet")
    pq.write_table(pa.table({"length": [1], "num_tokens": [1]}), folder / "two.parquet")
    large = pa.array([[1, 2], None, [3, 2**40]], pa.list_(pa.int64()))
    pq.write_table(pa.table({"tokens": large}), folder / "large.parquet")
    whole = (folder / "lengths.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (folder / "cut.idx").write_bytes((folder / "corpus.idx").read_bytes()[:40])
    (folder / "cut.bin").write_bytes(b"")
    (folder / "empty").mkdir()
    (folder / "notes").mkdir()
    for notes in ("notes/notes.txt", "notes.txt", "notes.parquet"):
        (folder / notes).write_text("some notes, and no data\n" * 9)
    with (folder / "sparse").open("wb") as file:
        file.truncate(1 << 40)  # more than can be read
    (folder / "bad.jsonl").write_text('{"text": "a"}\n{"text": \n')
    (folder / "lines.jsonl").write_text('{"text": "a", "messages": [{"role": "user", "content": "x"}]}\n')
    (folder / "mixed").mkdir()
    (folder / "mixed" / "a.jsonl").write_text('{"text": "a"}')
    (folder / "mixed" / "b.txt").write_text("b")
    (folder / "pairs.jsonl").write_text('{"same": "q a", "a": "x", "b": "y"}')
    (folder / "cut.json").write_text('[{"text": "a"}, {"text')
    (folder / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}')[:-4])
    for name in ("table.csv", "x.tar.gz"):
        (folder / name).write_text("a,b")
    (folder / "counts.json").write_text(json.dumps({"5": 2, "3": 1}))
    (folder / "bad-counts.json").write_text('{"5": -2}')
    (folder / "list-counts.json").write_text('["a"]')
    for suffix in ("npy", "parquet", "arrow", "idx", "jsonl", "json"):
        os.mkfifo(folder / f"pipe.{suffix}")  # whose writer nobody may wait for
    write_keyed(folder)
    train_tokenizer(["some words to learn from"], vocab_size=300).save(str(folder / "tok.json"))
    return folder


def write_keyed(folder: Path) -> None:
    """`keyed/web`, whose keys are a, b, c and d; copies that are damaged; and columns that are no keys."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tests.flat_words import prepare

    columns = {
        "length": [5, 3, 3, 5],
        "url": ["a", "b", "c", "d"],
        "null": ["a", None, "c", "d"],
        "empty": ["a", "b", "", "d"],
        "same": ["a", "b", "a", "d"],
        "long": ["a" * 9000, "b", "c", "d"],
        "bytes": pa.array([b"a", b"b", b"c", b"d"], pa.binary()),
    }
    pq.write_table(pa.table(columns), folder / "keys.parquet")
    options = {"length_column": "length", "id_column": "url", "max_seq_len": 8, "progress": False}
    prepare(folder / "keys.parquet", output=folder / "keyed" / "web", **options)
    shutil.copytree(folder / "keyed", folder / "altered")
    keys = folder / "altered" / "web" / "keys.npy"
    keys.write_bytes(keys.read_bytes()[:-1] + b"e")
    shutil.copytree(folder / "keyed", folder / "short")
    ends = folder / "short" / "web" / "key_ends.npy"
    ends.write_bytes(ends.read_bytes()[:-8])
    for suffix in (".idx", ".bin"):
        shutil.copy(folder / f"corpus{suffix}", folder / f"unkeyed{suffix}")
    schema = pa.schema([("key", pa.large_string())])
    with pa.ipc.new_file(folder / "unkeyed.keys.arrow", schema) as writer:
        writer.write_batch(pa.record_batch([pa.array(["a", "b", "c"], pa.large_string())], schema=schema))


@pytest.fixture
def in_wrong_folder(wrong_folder, monkeypatch):
    """The current folder is a place of its own, as commands may write into it by mistake."""
    before = {path: path.stat().st_mtime_ns for path in wrong_folder.rglob("*")}
    monkeypatch.chdir(wrong_folder)
    yield wrong_folder
    left = {path for path in wrong_folder.rglob("*") if path not in before}
    assert not left, "what is refused leaves nothing behind"
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


@pytest.fixture(scope="session")
def names(wrong_folder):
    """What a case's code may name."""
    import torch
    from transformers import LlamaConfig

    from packhorse import client, epoch, formats, packing, prepare, sft, tokenize, topology

    found = {"np": np, "nan": math.nan, "torch": torch, "Path": Path}
    for package in (topology, tokenize, formats, sft, epoch, packing, prepare):
        found |= {name: getattr(package, name) for name in package.__all__ if hasattr(package, name)}
    found |= {word: getattr(flat_words, word) for word in ("prepare", "shard", "tokenize", "tokenize_fine_tuning")}
    rooms = [f"client.{room}" for room in ("batches", "masks", "presets", "sources", "streams")]
    shelf = ("losses", "parallel", "pictures", "proof", "rollouts", "trainers", "vision")
    for package in (client, *(import_module(f"packhorse.{name}") for name in (*rooms, *shelf))):
        found |= {name: getattr(package, name) for name in package.__all__}
    memory = client.MemoryDatasets({"corpus": [5, 3, 3, 5]}, max_seq_len=8)
    tokens = [np.arange(length) for length in (5, 3, 3, 5)]

    def dataset(**options):
        shape = {"batch_size": 1} | ({} if {"rank", "device_mesh"} & set(options) else {"rank": 0, "world_size": 1})
        return packed_dataset(memory, "corpus", tokens, **(shape | options))

    def dataset_of(tokens):
        shape = {"batch_size": 1, "rank": 0, "world_size": 1}
        return list(packed_dataset(memory, "corpus", tokens, **shape))

    def loader(**options):
        shape = {"batch_size": 1, "rank": 0, "world_size": 1, "num_workers": 0, "device": "cpu"}
        return next(iter(packed_dataloader(memory, "corpus", tokens, **(shape | options))))

    def images(**options):
        """Media of a model that takes one placeholder, the token 3, for each row of pixel_values."""
        fields = {"load": dict.fromkeys, "image_token_id": 3, "keys": ("pixel_values",)}
        grids = lambda tensors: np.ones((len(tensors["pixel_values"]), 3))  # noqa: E731
        return client.batches.Media(**(fields | {"grids": grids} | options))

    def closed(target):
        with client.connect(target) as left:
            return left

    return found | {
        "memory": memory,
        "closed": closed,
        "images": images,
        "LlamaConfig": LlamaConfig,
        "dataset": dataset,
        "dataset_of": dataset_of,
        "loader": loader,
        "batch": next(iter(dataset(batch_size=2))),
        "client": client.connect(memory),
    }
