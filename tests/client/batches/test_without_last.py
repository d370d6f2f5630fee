"""Plans with one extra token less: each sequence's last token is only a label, and no target is lost."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.flat_words import prepare
from torch.nn.functional import cross_entropy

from packhorse.client import BatchFormat, PackedDataset, Separators, connect
from packhorse.client.batches.batch import BatchAssembler
from packhorse.client.batches.row_format import Media
from packhorse.client.masks import build_boolean_mask
from packhorse.client.sources import IndexableSource
from packhorse.client.streams.blocks import BinBlock

VOCABULARY, WIDTH = 40, 16
SEPARATORS = {
    "none": Separators(),
    "after": Separators.separator_only(separator_token_id=39),
    "around": Separators.eos_bos(bos_token_id=38, eos_token_id=39),
}


def one_bin(rooms):
    """A block of one bin with sequences 0, 1, 2, … in these rooms."""
    return BinBlock(
        ids=np.arange(len(rooms)),
        lengths=np.array(rooms),
        bin_ends=np.array([len(rooms)]),
        positions=np.array([0]),
    )


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    name=st.sampled_from(sorted(SEPARATORS)),
    is_masked=st.booleans(),
    is_flat=st.booleans(),
)
def test_every_target_is_there_and_no_last_token_is_fed(lengths, name, is_masked, is_flat):
    separators = SEPARATORS[name]
    extra = separators.num_tokens - 1
    sequences = [[10 * number + i for i in range(length)] for number, length in enumerate(lengths)]
    mask = [[(number + i) % 2 for i in range(length)] for number, length in enumerate(lengths)]
    rooms = [max(length + extra, 1) for length in lengths]
    assembler = BatchAssembler(
        sum(rooms) + 2,
        extra_tokens=extra,
        separators=separators,
        shift_labels=True,
        flatten=is_flat,
        pad_token_id=99,
    )
    batch = assembler.assemble(
        one_bin(rooms), IndexableSource(sequences), loss_mask=IndexableSource(mask) if is_masked else None
    )
    fed, targets, positions = [], [], []
    for tokens, wanted in zip(sequences, mask, strict=True):
        whole, is_predicted = list(tokens), list(wanted) if is_masked else [1] * len(tokens)
        if separators.bos_token_id is not None:
            whole, is_predicted = [separators.bos_token_id, *whole], [0, *is_predicted]
        if separators.eos_token_id is not None:
            whole, is_predicted = [*whole, separators.eos_token_id], [*is_predicted, is_predicted[-1]]
        labels = [token if counts else -100 for token, counts in zip(whole[1:], is_predicted[1:], strict=True)]
        fed += whole[:-1] or whole  # a sequence of one token keeps its place, and predicts nothing
        targets += labels or [-100]
        positions += range(max(len(whole) - 1, 1))
    num_padding = 0 if is_flat else 2
    assert batch["input_ids"].tolist() == [fed + [99] * num_padding]
    assert batch["labels"].tolist() == [targets + [-100] * num_padding]
    assert batch["position_ids"].tolist() == [positions + list(range(num_padding))]
    assert batch["cu_seqlens"].tolist() == np.cumsum([0, *rooms]).tolist()


def test_steps_are_the_batches_of_each():
    rng = np.random.default_rng(3)
    sequences = [rng.integers(0, 40, length).tolist() for length in rng.integers(1, 9, 40)]
    block = BinBlock(
        ids=np.arange(40),
        lengths=np.array([max(len(each) - 1, 1) for each in sequences]),
        bin_ends=np.arange(2, 41, 2),
        positions=np.arange(20),
    )
    assembler, source = BatchAssembler(20, extra_tokens=-1, shift_labels=True), IndexableSource(sequences)
    for step, batch in enumerate(assembler.assemble_steps(block, source, batch_size=3)):
        alone = assembler.assemble(block.slice(3 * step, min(3 * step + 3, 20)), source)
        for key in ("input_ids", "labels", "position_ids", "sequence_ids", "attention_mask", "cu_seqlens"):
            assert batch[key].tolist() == alone[key].tolist(), key


class CausalModel(torch.nn.Module):
    """One layer of attention over tokens and positions."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH, dtype=torch.float64)
        self.positions = torch.nn.Embedding(64, WIDTH, dtype=torch.float64)
        self.projections = torch.nn.Linear(WIDTH, 3 * WIDTH, dtype=torch.float64)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, dtype=torch.float64)

    def forward(self, input_ids, position_ids, mask):
        hidden = self.tokens(input_ids) + self.positions(position_ids)
        query, key, value = self.projections(hidden).chunk(3, dim=-1)
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.head(hidden + attended)


def loss_and_gradients(batches):
    """Loss summed over all targets, its gradients, targets, and tokens computed, padding left out."""
    model, loss, targets, computed = CausalModel(), 0.0, 0, 0
    for input_ids, position_ids, labels, mask, is_token in batches:
        logits = model(input_ids, position_ids, mask)
        loss = loss + cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        targets += int((labels != -100).sum())
        computed += int(is_token.sum())
    loss.backward()
    return loss.item(), [parameter.grad for parameter in model.parameters()], targets, computed


def packed(batches):
    for batch in batches:
        mask = build_boolean_mask(batch, "cpu", causal=True, head_dim=False)
        yield batch["input_ids"], batch["position_ids"], batch["labels"], mask, batch["attention_mask"]


@pytest.mark.parametrize("options", [{"over_length": "drop"}, {"over_length": "split", "max_seq_len": 12}])
def test_loss_and_gradients_are_those_of_the_sequences_alone(tmp_path, no_launcher, options):
    rng = np.random.default_rng(11)
    sequences = [rng.integers(0, VOCABULARY, length) for length in rng.integers(1, 26, 60)]
    plan = {"lengths": np.array([len(each) for each in sequences]), "max_seq_len": 32, "progress": False, **options}
    manifest = prepare(output=tmp_path / "root" / "without", extra_tokens=-1, **plan)
    with connect(f"embedded:{tmp_path / 'root'}") as client:
        dataset = PackedDataset(
            lambda: client,
            "without",
            sequences,
            batch_size=2,
            seed=1,
            rank=(0, 1),
            batch=BatchFormat(shift_labels=True),
        )
        loss, gradients, targets, computed = loss_and_gradients(packed(dataset))
    longest = plan["max_seq_len"] + 1
    pieces = [each[at : at + longest] for each in sequences for at in range(0, len(each), longest)]

    def alone():
        for piece in pieces:
            tokens, num = torch.from_numpy(piece)[None], len(piece)
            labels = torch.cat((tokens[:, 1:], torch.tensor([[-100]])), dim=1)
            mask = torch.ones(num, num, dtype=torch.bool).tril()[None]
            yield tokens, torch.arange(num)[None], labels, mask, torch.ones_like(tokens)

    expected, expected_gradients, all_targets, all_tokens = loss_and_gradients(alone())
    assert targets == all_targets == sum(len(each) - 1 for each in pieces)
    assert computed == manifest.total_tokens == all_tokens - sum(len(each) > 1 for each in pieces)
    assert loss == pytest.approx(expected, rel=1e-12)
    for one, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_the_longest_sequence_is_one_more_than_a_bin(tmp_path):
    plan = {"max_seq_len": 8, "extra_tokens": -1, "progress": False}
    manifest = prepare(lengths=np.array([9, 1, 2, 3]), output=tmp_path / "set", **plan)
    assert (manifest.num_bins, manifest.total_tokens, manifest.own_tokens) == (2, 8 + 1 + 1 + 2, 15)
    assert manifest.fed_tokens == 12  # the sequence of one token keeps it
    aligned = prepare(lengths=np.array([9, 1, 2, 3]), output=tmp_path / "aligned", align=2, **plan)
    assert (aligned.total_tokens, aligned.fed_tokens) == (8 + 2 + 2 + 2, 15 - 4)
    with pytest.raises(ValueError, match="10 tokens"):
        prepare(lengths=np.array([10]), output=tmp_path / "other", **plan)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shift_labels": False}, "leaves the last token of each sequence to shifted labels; shift labels"),
        (
            {"shared_prefix": True},
            r"shared_prefix goes without extra_tokens=-1.*prepare the dataset with",
        ),
        (
            {"media": Media(load=lambda ids: {}, image_token_id=5, keys=("pixels",), grids=lambda of: np.ones((0, 3)))},
            "media goes without extra_tokens=-1",
        ),
        ({"separators": SEPARATORS["after"], "extra_tokens": -1}, "planned with extra_tokens -1; prepare it with"),
    ],
)
def test_what_cannot_be_without_last_tokens_says_the_way_out(options, message):
    with pytest.raises(ValueError, match=message):
        BatchAssembler(8, **({"extra_tokens": -1, "shift_labels": True} | options))


def test_trees_refuse_a_plan_without_last_tokens(tmp_path, no_launcher):
    prepare(lengths=np.array([3, 4]), max_seq_len=8, extra_tokens=-1, output=tmp_path / "root" / "set", progress=False)
    with connect(f"embedded:{tmp_path / 'root'}") as client:
        dataset = PackedDataset(
            lambda: client, "set", [[1, 2, 3], [1, 2, 4, 5]], batch_size=1, rank=(0, 1), preset="trl_async"
        )
        with pytest.raises(ValueError, match=r"trees go without extra_tokens=-1.*prepare the dataset with"):
            next(iter(dataset))


def test_separators_say_that_shifted_labels_need_one_extra_token_less():
    with pytest.raises(ValueError, match="prepare it with extra_tokens=1, or shift labels"):
        BatchAssembler(8, separators=SEPARATORS["after"])
    assert BatchAssembler(8, separators=SEPARATORS["after"], shift_labels=True).extra_tokens == 0
