"""What `PackedDataset` can be asked for beyond plain rows, from a real server: every token still there, once."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.flat_words import packed_dataset, prepare

from packhorse.client import Separators, get_preset
from packhorse.formats import MegatronWriter

ROWS, LIMIT, BOS, EOS = 400, 60, 70_001, 70_002


@pytest.fixture(scope="module")
def sequences(corpus):
    return [tokens.tolist() for tokens in corpus.sequences[:ROWS]]


@pytest.fixture(scope="module")
def target(sequences, tmp_path_factory):
    folder = tmp_path_factory.mktemp("forms")
    pq.write_table(pa.table({"n": [len(tokens) for tokens in sequences]}), folder / "x.parquet")
    options = {"length_column": "n", "max_seq_len": LIMIT, "over_length": "split", "progress": False}
    prepare(folder / "x.parquet", output=folder / "root" / "roomy", extra_tokens=2, **options)
    prepare(folder / "x.parquet", output=folder / "root" / "tight", **options)
    return f"embedded:{folder / 'root'}"


@pytest.fixture(scope="module")
def mask(sequences, tmp_path_factory):
    """Path of a Megatron pair of uint8: 1 on every third token of a sequence."""
    path = tmp_path_factory.mktemp("mask") / "mask"
    with MegatronWriter(path, vocab_size=2) as writer:
        for tokens in sequences:
            writer.append((np.arange(len(tokens)) % 3 == 0).astype(np.uint8))
    return path.with_name("mask.idx")


def open_dataset(target, corpus, name, **options):
    return packed_dataset(target, name, corpus.megatron, batch_size=4, seed=5, rank=0, world_size=1, **options)


def pieces(sequences, size):
    """(sequence, start, end) of everything that a dataset of pieces of `size` tokens holds."""
    return [
        (tokens, start, min(start + size, len(tokens))) for tokens in sequences for start in range(0, len(tokens), size)
    ]


def runs(batch, key):
    """Values of `key`, by sequence."""
    layout = batch["layout"]
    flat = batch[key].flatten().tolist()
    return [
        tuple(flat[start : start + length])
        for start, length in zip(layout.starts.tolist(), layout.lengths.tolist(), strict=True)
    ]


@pytest.mark.parametrize("flatten", [False, True])
def test_separators_stand_at_true_beginnings_and_ends(target, corpus, sequences, load, flatten):
    separators = Separators.eos_bos(bos_token_id=BOS, eos_token_id=EOS)
    dataset = open_dataset(target, corpus, "roomy", separators=separators, flatten=flatten)
    found = Counter(tokens for batch in load(dataset, 2) for tokens in runs(batch, "input_ids"))
    expected = Counter(
        (BOS,) * (start == 0) + tuple(tokens[start:end]) + (EOS,) * (end == len(tokens))
        for tokens, start, end in pieces(sequences, LIMIT - 2)
    )
    assert found == expected


def test_separators_without_room_are_refused_with_the_way_out(target, corpus):
    dataset = open_dataset(target, corpus, "tight", separators=Separators.separator_only(separator_token_id=EOS))
    with pytest.raises(ValueError, match=r"extra_tokens 0; prepare it with extra_tokens=1"):
        next(iter(dataset))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loss_mask_chooses_targets_token_by_token(target, corpus, sequences, mask, load, num_workers):
    dataset = open_dataset(target, corpus, "tight", loss_mask=mask)
    found = Counter(labels for batch in load(dataset, num_workers) for labels in runs(batch, "labels"))
    expected = Counter(
        tuple(tokens[t] if t % 3 == 0 and t > start else -100 for t in range(start, end))
        for tokens, start, end in pieces(sequences, LIMIT)
    )
    assert found == expected


def test_flattened_batches_have_no_padding(target, corpus, sequences, load):
    found = Counter()
    for batch in load(open_dataset(target, corpus, "tight", flatten=True), 2):
        tokens, offsets = batch["input_ids"], batch["cu_seqlens"].tolist()
        assert tokens.shape == (1, offsets[-1])
        assert batch["attention_mask"].all()
        found.update(tuple(tokens[0, a:b].tolist()) for a, b in pairwise(offsets))
    assert found == Counter(tuple(tokens[start:end]) for tokens, start, end in pieces(sequences, LIMIT))


def test_a_preset_decides_the_form(target, corpus):
    dataset = open_dataset(target, corpus, "tight", preset="padding-free")
    batch = next(iter(dataset))
    assert set(batch) == {*get_preset("padding-free").convert(assemble_like(target, corpus, "tight")), "cursor"}
    with pytest.raises(ValueError, match=r"shift_labels=True contradicts preset 'padding-free'"):
        open_dataset(target, corpus, "tight", preset="padding-free", shift_labels=True)
    with pytest.raises(ValueError, match=r"no preset 'nothing'; there are .*padding-free"):
        open_dataset(target, corpus, "tight", preset="nothing")


def assemble_like(target, corpus, name):
    """A batch in the form that a padding-free preset converts from."""
    plain = open_dataset(target, corpus, name, flatten=True)
    batch = next(iter(plain))
    del batch["cursor"]
    return batch
