"""Through each consumer's mask, shift and loss, a batch has the loss of its sequences alone; shifted twice it has not.

Transformers' models are the model and, where they are the consumer, the consumer. Others are written down here as
their own code does it, token by token; `test_recorded` compares what they are fed with.
"""

from itertools import pairwise

import pytest
import torch
from torch.nn.functional import cross_entropy

from packhorse.client.presets import get_preset, list_presets, padding_free_preset

MAX_SEQ_LEN = 20
LENGTHS = [[5, 2, 7], [20], [], [4, 1, 3, 3]]
IGNORED = -100


def by_transformers(model, batch):
    return model(**batch, use_cache=False, num_items_in_batch=torch.tensor(1)).loss


def by_llama_factory(model, batch):
    labels = batch["attention_mask"]
    allowed = (labels[:, :, None] == labels[:, None]) & (labels != 0)[:, None]
    return by_transformers(model, {**batch, "attention_mask": additive(allowed.tril())})


def by_torchtune(model, batch, *, recipe_shifts):
    blocks = [torch.block_diag(*(torch.ones(n, n) for n in lengths)) for lengths in batch["seq_lens"]]
    logits = logits_of(model, batch["tokens"], torch.stack(blocks).bool().tril(), batch["input_pos"])
    labels = batch["labels"]
    if recipe_shifts:
        labels = torch.hstack((labels[:, 1:], labels.new_full((len(labels), 1), IGNORED)))
    return cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")


def by_megatron(model, batch):
    """Attention of Transformer Engine's THD layout: a segment's held tokens see each other, its padding nothing."""
    num_tokens = batch["tokens"].shape[1]
    allowed = torch.zeros(1, num_tokens, num_tokens, dtype=torch.bool)
    held = batch["cu_seqlens_q"].diff().tolist()
    for (start, end), count in zip(pairwise(batch["cu_seqlens_q_padded"].tolist()), held, strict=True):
        assert count <= end - start <= batch["max_seqlen_q"]
        allowed[0, start : start + count, start : start + count] = True
    logits = logits_of(model, batch["tokens"], allowed.tril(), batch["position_ids"])
    # vocab_parallel_cross_entropy takes any target, and the loss mask decides
    losses = cross_entropy(logits.flatten(0, 1), batch["labels"].flatten().clamp(min=0), reduction="none")
    return (losses * batch["loss_mask"].flatten()).sum()


def by_megatron_lm(model, batch):
    """As Megatron-LM's forward step takes rows with `cu_seqlens`: what lies between two offsets sees itself."""
    num_tokens = batch["tokens"].shape[1]
    allowed = torch.zeros(len(batch["tokens"]), num_tokens, num_tokens, dtype=torch.bool)
    for row, offsets, max_seqlen in zip(
        allowed, batch["cu_seqlens"].tolist(), batch["max_seqlen"].tolist(), strict=True
    ):
        assert max(end - start for start, end in pairwise(offsets)) == max_seqlen
        for start, end in pairwise(offsets):
            row[start:end, start:end] = True
    logits = logits_of(model, batch["tokens"], allowed.tril(), batch["position_ids"])
    losses = cross_entropy(logits.flatten(0, 1), batch["labels"].flatten().clamp(min=0), reduction="none")
    return (losses * batch["loss_mask"].flatten()).sum()


def by_jax(model, batch, *, segments, positions):
    tensors = {key: torch.from_numpy(value).long() for key, value in batch.items()}
    segment_ids = tensors[f"inputs_{segments}"]
    allowed = (segment_ids[:, :, None] == segment_ids[:, None]).tril()
    logits = logits_of(model, tensors["inputs"], allowed, tensors[f"inputs_{positions}"])
    losses = cross_entropy(logits.flatten(0, 1), tensors["targets"].flatten(), reduction="none")
    return (losses * (tensors[f"targets_{segments}"].flatten() != 0)).sum()


def logits_of(model, tokens, allowed, positions):
    return model(input_ids=tokens, attention_mask=additive(allowed), position_ids=positions, use_cache=False).logits


def additive(allowed):
    return torch.where(allowed, 0.0, torch.finfo(torch.float32).min)[:, None]


CONSUMERS = {
    "jax": lambda model, batch: by_jax(model, batch, segments="segment_ids", positions="positions"),
    "llama-factory": by_llama_factory,
    "maxtext": lambda model, batch: by_jax(model, batch, segments="segmentation", positions="position"),
    "megatron": by_megatron,
    "megatron-lm": by_megatron_lm,
    "open-instruct": by_transformers,
    "padding-free": by_transformers,
    "rows": by_transformers,
    "torchtune": lambda model, batch: by_torchtune(model, batch, recipe_shifts=False),
    "torchtune-0.6": lambda model, batch: by_torchtune(model, batch, recipe_shifts=True),
    "trl": by_transformers,
}


@pytest.fixture(scope="module")
def bins():
    """Bins of token lists: a full one, an empty one, and a sequence of one token among them."""
    generator = torch.Generator().manual_seed(9)
    return [[torch.randint(1, 64, (n,), generator=generator).tolist() for n in one_bin] for one_bin in LENGTHS]


@pytest.fixture(scope="module", params=[False, True], ids=["every token", "loss mask"])
def loss_masks(request, bins):
    """What of the sequences is predicted; None for all."""
    if not request.param:
        return None
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(0, 2, (len(s),), generator=generator).tolist() for one_bin in bins for s in one_bin]


@pytest.fixture(scope="module")
def alone(model, bins, loss_masks):
    """The sum of the losses of the sequences, each by itself."""
    total = torch.zeros(())
    sequences = [sequence for one_bin in bins for sequence in one_bin]
    for sequence, mask in zip(sequences, loss_masks or [[1] * MAX_SEQ_LEN] * len(sequences), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([sequence]), use_cache=False).logits[0]
        for t in range(len(sequence) - 1):
            total += cross_entropy(logits[t], torch.tensor(sequence[t + 1])) * mask[t + 1]
    return total


def test_every_preset_has_its_consumer():
    assert set(CONSUMERS) == {preset.name for preset in list_presets()} - {"trl_async"}  # which the shelf makes


@pytest.mark.parametrize("align", [1, 4], ids=["packed tightly", "aligned"])
@pytest.mark.parametrize("name", CONSUMERS)
def test_the_loss_is_that_of_the_sequences_alone(name, align, model, bins, loss_masks, alone, assemble):
    preset = get_preset(name)
    batch = assemble(bins, MAX_SEQ_LEN, preset, loss_masks=loss_masks, align=align)
    with torch.no_grad():
        loss = CONSUMERS[name](model, preset.convert(batch))
    torch.testing.assert_close(loss, alone, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", CONSUMERS)
def test_labels_shifted_once_more_or_never_have_another_loss(name, model, bins, alone, assemble):
    """The control: a preset that declares the other shift. `convert` refuses such a batch, so it is built directly."""
    preset = get_preset(name)
    batch = assemble(bins, MAX_SEQ_LEN, preset, shift_labels=not preset.shift_labels)
    with torch.no_grad():
        loss = CONSUMERS[name](model, preset.build(batch))
    assert not torch.isclose(loss, alone, rtol=1e-2)


@pytest.mark.parametrize("use_cache", [False, True])
def test_transformers_finds_sequences_only_without_a_cache(use_cache, model, bins, assemble):
    """Why the preset says use_cache=False. Should this fail, transformers has become kinder: drop the warning."""
    preset = padding_free_preset(return_flash_attn_kwargs=False)
    sequence = bins[0][2]
    packed = preset.convert(assemble([bins[0]], MAX_SEQ_LEN, preset))
    with torch.no_grad():
        logits = model(**packed, use_cache=use_cache).logits[0, -len(sequence) :]
        expected = model(torch.tensor([sequence]), use_cache=False).logits[0]
    assert torch.allclose(logits, expected, atol=1e-4) is (not use_cache)
