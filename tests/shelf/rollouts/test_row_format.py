"""Every option of rows is honoured by `pack_rollouts` and `pack_pairs`, or refused by name with the way out."""

from dataclasses import fields

import numpy as np
import pytest
import torch

from packhorse.client import BatchAssembler, BinBlock
from packhorse.client.batches import Media, RowFormat, Separators
from packhorse.rollouts import Rollouts, pack_pairs, pack_rollouts
from packhorse.tokens import IndexableSource

IMAGE = 9
QUERIES, RESPONSES = [[1, 2, IMAGE], [1, 2, 3]], [[7, 8], [6]]
OF_BATCH = ("input_ids", "labels", "position_ids", "sequence_ids", "attention_mask", "pixel_values")
"""Keys that the assembler makes of tokens and options alone."""


def load(ids):
    return {sequence: {"pixel_values": torch.full((1, 2), float(sequence))} for sequence in ids}


OTHER = {
    "separators": Separators.separator_only(separator_token_id=4),
    "pad_token_id": 5,
    "flatten": True,
    "total_multiple_of": 16,
    "shift_labels": True,
    "continue_positions": True,
    "shared_prefix": True,
    "media": Media(load=load, image_token_id=IMAGE, keys=("pixel_values",), grids=lambda _: np.ones((1, 3), np.int64)),
}
"""Each option of rows → another value than its default."""

WITH = {"total_multiple_of": {"flatten": True}}
"""Option → what it needs beside it."""

REFUSED = {"separators": "put separators into them", "continue_positions": "leave it out", "shared_prefix": "prefixes"}
"""Option → what its error says to do."""

NOT_OF_TREES = {"total_multiple_of", "media"}


def packed(kind, **options):
    options = {"pad_token_id": 0, "max_seq_len": 14, "batch_size": 1, **options}
    if kind == "rollouts":
        return pack_rollouts(Rollouts(queries=QUERIES, responses=RESPONSES), **options)
    return pack_pairs(QUERIES, RESPONSES, [[3], [4]], **options)


def test_every_option_has_a_case():
    assert OTHER.keys() == {each.name for each in fields(RowFormat)}, "say here what the new option is"
    assert all(OTHER[each.name] != each.default for each in fields(RowFormat))


@pytest.mark.parametrize("kind", ["rollouts", "pairs"])
@pytest.mark.parametrize("name", [each.name for each in fields(RowFormat)])
def test_an_option_is_honoured_or_refused(kind, name):
    options = {name: OTHER[name], **WITH.get(name, {})}
    if name in REFUSED:
        with pytest.raises(ValueError, match=f"{name} is not for rollouts and pairs: .*{REFUSED[name]}"):
            packed(kind, **options)
        return
    plain, changed = packed(kind), packed(kind, **options)
    assert any(differ(a, b) for a, b in zip(plain, changed, strict=True)), f"{name} changes nothing"
    for batch in changed:
        expected = assembled(batch, kind, **options)
        for key in set(OF_BATCH) - {"labels"}:  # labels are of responses only
            assert (key in batch) == (key in expected)
            assert key not in batch or torch.equal(batch[key], expected[key]), key
        labels = batch["labels"]
        assert torch.equal(labels, expected["labels"].where(labels != -100, torch.tensor(-100)))


def differ(one, other):
    return any((key in one) != (key in other) or same_key(one, other, key) for key in OF_BATCH)


def same_key(one, other, key):
    return key in one and not torch.equal(one[key], other[key])


def assembled(batch, kind, **options):
    """The same sequences by the assembler of every other batch."""
    lengths = batch["layout"].lengths
    block = BinBlock(
        ids=batch["ids"].numpy(),
        lengths=lengths.astype(np.int32),
        bin_ends=np.array([len(lengths)]),
        positions=np.array([0]),
    )
    sequences = [query + response for query, response in zip(QUERIES, RESPONSES, strict=True)]
    if kind == "pairs":
        others = [query + response for query, response in zip(QUERIES, [[3], [4]], strict=True)]
        sequences = [each for pair in zip(sequences, others, strict=True) for each in pair]
    return BatchAssembler(14, **options).assemble(block, IndexableSource(sequences))


@pytest.mark.parametrize("kind", ["rollouts", "pairs"])
@pytest.mark.parametrize("name", sorted(OTHER.keys() - REFUSED.keys()))
def test_in_trees_an_option_is_honoured_or_refused(kind, name):
    options = {name: OTHER[name], **WITH.get(name, {}), "prefixes": "tree"}
    if name in NOT_OF_TREES:
        with pytest.raises(ValueError, match=f"shared_prefix='tree' goes without .*{name}.*; leave them out"):
            packed(kind, **options)
        return
    assert packed(kind, **options)
    if name != "shift_labels":  # those of trees always are
        plain = packed(kind, prefixes="tree")
        assert any(differ(a, b) for a, b in zip(plain, packed(kind, **options), strict=True)), f"{name} changes nothing"


@pytest.mark.parametrize("kind", ["rollouts", "pairs"])
def test_an_argument_that_is_none_is_named(kind):
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'row_multiple'; options of rows are .*flatten"):
        packed(kind, row_multiple=3)


@pytest.mark.parametrize("kind", ["rollouts", "pairs"])
def test_rows_have_no_total(kind):
    with pytest.raises(ValueError, match="give flatten=True"):
        packed(kind, total_multiple_of=16)
