"""What tokens, masks and special tokens may be: refused with the sequence, the value and the file."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packhorse.client import BatchAssembler, LoaderOptions, PackedDataLoader, Separators
from packhorse.client.presets.llama_factory import llama_factory_preset
from packhorse.client.sources import IndexableSource, MegatronSource, TokenSourceError
from packhorse.client.streams.blocks import BinBlock
from packhorse.formats import MegatronWriter
from packhorse.rollouts import Rollouts, pack_rollouts

LENGTHS = [3, 5, 2]


def assembled(tokens, *, loss_mask=None, **options):
    """Two rows of eight tokens: sequences 0 and 1, and sequence 2."""
    block = BinBlock(
        ids=np.arange(3), lengths=np.array(LENGTHS, np.int32), bin_ends=np.array([2, 3]), positions=np.arange(2)
    )
    tokens, loss_mask = (IndexableSource(x) if isinstance(x, list) else x for x in (tokens, loss_mask))
    return BatchAssembler(8, **options).assemble(block, tokens, loss_mask=loss_mask)


def written(path, sequences):
    with MegatronWriter(path, vocab_size=70_000) as writer:
        for tokens in sequences:
            writer.append(np.array(tokens))
    return MegatronSource(path)


@given(
    where=st.sampled_from([(i, j) for i, n in enumerate(LENGTHS) for j in range(n)]),
    value=st.integers(-(2**31), 2**31 - 1),
    flatten=st.booleans(),
)
def test_values_of_one_sequence(where, value, flatten):
    """The same value as a token and in a loss mask."""
    rows = [[1] * length for length in LENGTHS]
    rows[where[0]][where[1]] = value
    good = [[1] * length for length in LENGTHS]
    if value < 0:
        with pytest.raises(TokenSourceError, match=f"sequence {where[0]}: the list holds the token {value} there"):
            assembled(rows, flatten=flatten)
    else:
        assert value in assembled(rows, flatten=flatten)["input_ids"]
    if value in (0, 1):
        assembled(good, loss_mask=rows, flatten=flatten)
    else:
        message = f"sequence {where[0]}: the loss mask in the list holds {value} there"
        with pytest.raises(TokenSourceError, match=message):
            assembled(good, loss_mask=rows, flatten=flatten)


def test_files_are_named(tmp_path):
    good = [[7] * length for length in LENGTHS]
    source = written(tmp_path / "tokens", good)
    with pytest.raises(TokenSourceError, match=r"sequence 0: the loss mask in .*tokens\.bin holds 7 there.*token file"):
        assembled(source, loss_mask=source)
    tokens = np.memmap(tmp_path / "tokens.bin", np.int32, "r+")
    tokens[-1] = -5  # as another writer might
    with pytest.raises(TokenSourceError, match=r"sequence 2: .*tokens\.bin holds the token -5"):
        assembled(MegatronSource(tmp_path / "tokens"))


@pytest.mark.parametrize("make", [np.array, torch.tensor, list])
def test_masks_of_bools(make_dataset, corpus, make):
    rows = [np.arange(len(tokens)) % 3 > 0 for tokens in corpus.sequences]
    masks = [make(row.tolist()) for row in rows]
    numbers = [row.astype(int) for row in rows]
    batch, expected = (next(iter(make_dataset(loss_mask=mask))) for mask in (masks, numbers))
    assert torch.equal(batch["labels"], expected["labels"])
    assert (batch["labels"] == -100).float().mean() > 0.3
    with pytest.raises(TokenSourceError, match=r"tokens must be integers, got bool.*loss_mask="):
        next(iter(make_dataset(tokens=masks)))


@pytest.mark.parametrize("value", [-1, 2**31, 10**12, 1.5, True, None, "0", float("nan")])
def test_special_tokens_are_token_ids(make_dataset, value):
    for take in (
        lambda: make_dataset(pad_token_id=value),
        lambda: BatchAssembler(8, pad_token_id=value),
        lambda: llama_factory_preset(pad_token_id=value),
        lambda: pack_rollouts(Rollouts(queries=[[1]], responses=[[2]]), max_seq_len=4, pad_token_id=value),
    ):
        with pytest.raises(ValueError, match=r"pad_token_id must be an integer in \[0, 2\^31\), got"):
            take()
    if value is not None:
        with pytest.raises(ValueError, match="eos_token_id must be an integer"):
            Separators(eos_token_id=value)


def test_numpy_s_integers_are_integers(make_dataset):
    loader = PackedDataLoader(
        make_dataset(pad_token_id=np.int32(2**31 - 1)), LoaderOptions(num_workers=0, device="cpu")
    )
    batch = next(iter(loader))
    assert (batch["input_ids"][batch["attention_mask"] == 0] == 2**31 - 1).all()
    loader.close()
