"""torchtitan's own code on our batches: its masks, its offsets and its loss, where it is installed (0.3.0 was)."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from packhorse.client import BatchFormat, PackedDataset
from packhorse.client.masks import build_boolean_mask

attention = pytest.importorskip("torchtitan.models.common.attention", exc_type=ImportError)
VOCAB_SIZE = 64


@pytest.fixture(params=[1, 3])
def batches(request, small_corpus):
    """An epoch of one or three bins a batch, with labels shifted, as torchtitan's loss wants them."""
    target, tokens, _ = small_corpus
    form = BatchFormat(shift_labels=True)
    dataset = PackedDataset(target, "small", tokens, batch_size=request.param, seed=2, batch=form, rank=(0, 1))
    return list(dataset)


def test_documents_are_our_sequences(batches):
    """Both of its masks for FlexAttention, of one row and of several, with its causal one."""
    for batch in batches:
        positions, is_token = batch["position_ids"], batch["attention_mask"].bool()
        num_rows, length = positions.shape
        where = torch.meshgrid(torch.arange(num_rows), torch.arange(length), torch.arange(length), indexing="ij")
        expected = build_boolean_mask(batch, "cpu", causal=True)[:, 0]
        causal = attention.get_causal_mask_mod()
        for make in (attention.get_document_mask_mod, attention.get_efficient_causal_mask_mod_for_packed_document):
            row, query, key = where
            found = causal(row, None, query, key) & make(positions)(row, None, query, key)
            assert torch.equal(found[is_token], expected[is_token])


def test_offsets_are_where_our_sequences_begin_and_end(batches):
    for batch in batches:
        layout, num_tokens = batch["layout"], batch["input_ids"].numel()
        metadata = attention.create_varlen_metadata_for_document(batch["position_ids"])
        rows = range(0, num_tokens + 1, layout.row_tokens)
        borders = {*layout.starts.tolist(), *(layout.starts + layout.lengths).tolist(), *rows}
        assert metadata.cu_seq_q.tolist() == sorted(borders)
        assert metadata.max_q >= batch["max_seqlen"]


def test_its_loss_is_that_of_each_sequence_alone(batches):
    loss = pytest.importorskip("torchtitan.components.loss", exc_type=ImportError)
    torch.manual_seed(0)
    table = torch.randn(VOCAB_SIZE, VOCAB_SIZE)
    for batch in batches:
        tokens, layout = batch["input_ids"].flatten(), batch["layout"]
        of_batch = loss.cross_entropy_loss(table[batch["input_ids"]], batch["labels"])
        alone = 0
        for start, length in zip(layout.starts.tolist(), layout.lengths.tolist(), strict=True):
            one = tokens[start : start + length]
            alone += F.cross_entropy(table[one[:-1]], one[1:], reduction="sum") if length > 1 else 0
        torch.testing.assert_close(of_batch, torch.as_tensor(alone))
