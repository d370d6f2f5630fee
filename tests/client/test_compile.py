"""torch.compile takes packed batches as they come: one whole graph, compiled once, for every batch of every path."""

from functools import partial
from itertools import islice, pairwise

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch.nn.attention.flex_attention import flex_attention

from packhorse.client.masks import (
    AttentionBiasBuffer,
    build_block_mask,
    build_boolean_mask,
    build_packing_attention_bias,
    build_varlen_offsets,
)

NUM_BATCHES, BATCH_SIZE, MAX_SEQ_LEN, HEADS, WIDTH = 55, 4, 256, 2, 32  # heads of 16: FlexAttention's least on GPUs
MAX_SEQUENCES = 80  # in a batch

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")]


@pytest.fixture(scope="module")
def batches(corpus):
    """55 batches of one shape with other sequences in each, the spread last one of an epoch among them."""
    from packhorse.client import PackedDataset

    dataset = PackedDataset(
        f"embedded:{corpus.root}", "rows", corpus.megatron, batch_size=BATCH_SIZE, seed=3, rank=(0, 1)
    )
    batches = list(dataset)[-NUM_BATCHES:]
    assert len(batches) == NUM_BATCHES
    assert len({batch["layout"].num_sequences for batch in batches}) > 10
    assert len({batch["max_seqlen"] for batch in batches}) > 1
    return batches


@pytest.fixture(scope="module")
def weights():
    torch.manual_seed(0)
    return {
        "tokens": torch.randn(60_000, WIDTH) * 0.3,
        "positions": torch.randn(MAX_SEQ_LEN, WIDTH) * 0.3,
        "head": (torch.randn(WIDTH, 32) * 0.3).requires_grad_(),
    }


def loss_of(batch, weights, attend):
    """A model of one layer: what of a batch it reads, a compiled step sees too."""
    hidden = weights["tokens"][batch["input_ids"]] + weights["positions"][batch["position_ids"]]
    rows, length, _ = hidden.shape
    heads = hidden.view(rows, length, HEADS, -1).transpose(1, 2)
    out = attend(heads).transpose(1, 2).reshape(rows, length, WIDTH)
    targets = torch.where(batch["labels"] < 0, -100, batch["labels"] % 32)
    return F.cross_entropy((out @ weights["head"])[:, :-1].flatten(0, 1), targets[:, 1:].flatten())


def dense_step(batch, weights, mask):
    return loss_of(batch, weights, lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=mask))


def flex_step(batch, weights, mask):
    return loss_of(batch, weights, lambda x: flex_attention(x, x, x, block_mask=mask))


def offsets_step(batch, weights, offsets):
    """Attention as a variable-length kernel does it: over all rows end to end, by their offsets alone."""

    def attend(heads):
        rows, num_heads, length, size = heads.shape
        end_to_end = heads.transpose(0, 1).reshape(1, num_heads, rows * length, size)
        segment = torch.bucketize(torch.arange(rows * length), offsets.cu_seqlens_padded[1:], right=True)
        mask = (segment[:, None] == segment).tril()
        out = F.scaled_dot_product_attention(end_to_end, end_to_end, end_to_end, attn_mask=mask)
        assert offsets.max_seqlen == MAX_SEQ_LEN
        return out.view(num_heads, rows, length, size).transpose(0, 1)

    return loss_of(batch, weights, attend)


def bias_of(batch):
    return build_packing_attention_bias(batch, torch.float32, "cpu", causal=True)


def offsets_of(batch):
    return build_varlen_offsets(batch, "cpu", num_sequences=MAX_SEQUENCES, max_seqlen=MAX_SEQ_LEN)


PATHS = {
    "additive bias": (dense_step, bias_of),
    "boolean mask": (dense_step, lambda batch: build_boolean_mask(batch, "cpu", causal=True)),
    "block mask": (flex_step, lambda batch: build_block_mask(batch, "cpu", causal=True)),
    "offsets": (offsets_step, offsets_of),
}


def compiled(function, backend="aot_eager"):
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True)


@pytest.fixture
def compiled_once():
    """A second compilation is an error."""
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize("path", PATHS)
def test_every_batch_runs_in_the_graph_of_the_first(path, batches, weights, compiled_once):
    """The whole batch goes in, host values and all; FlexAttention has no gradient on the CPU."""
    step, mask_of = PATHS[path]
    is_trained = path != "block mask"
    weights["head"].requires_grad_(is_trained)
    run = compiled(step, "aot_eager" if is_trained else "eager")
    for number, batch in enumerate(batches):
        mask = mask_of(batch)
        loss = run(batch, weights, mask)
        if is_trained:
            loss.backward()
            weights["head"].grad = None
        if number % 18 == 0:
            with torch.no_grad():
                expected = dense_step(batch, weights, bias_of(batch))
            torch.testing.assert_close(loss.detach(), expected, rtol=1e-4, atol=1e-4)


def test_a_bias_in_the_same_memory_serves_the_same_graph(batches, weights, compiled_once):
    buffer = AttentionBiasBuffer(BATCH_SIZE, MAX_SEQ_LEN, torch.float32, causal=True)
    run = compiled(dense_step)
    for batch in batches[:10]:
        run(batch, weights, buffer.build(batch)).backward()


def test_offsets_of_their_own_lengths_compile_again(batches, weights, compiled_once):
    """The control: without `num_sequences` every batch has another shape."""
    run = compiled(offsets_step)
    first, other = batches[0], next(b for b in batches if b["cu_seqlens"].shape != batches[0]["cu_seqlens"].shape)
    run(first, weights, build_varlen_offsets(first, "cpu", max_seqlen=MAX_SEQ_LEN))
    with pytest.raises(torch._dynamo.exc.RecompileError):
        run(other, weights, build_varlen_offsets(other, "cpu", max_seqlen=MAX_SEQ_LEN))


def test_a_llama_compiled_whole_takes_rows(corpus, compiled_once):
    """Preset `rows` through transformers, which finds the sequences in the positions, inside the graph too."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from packhorse.client import PackedDataset

    config = LlamaConfig(
        vocab_size=60_000, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    model = LlamaForCausalLM(config).eval()
    dataset = PackedDataset(f"embedded:{corpus.root}", "rows", corpus.megatron, batch_size=2, preset="rows")

    def loss(batch):
        inputs = {name: batch[name] for name in ("input_ids", "labels", "position_ids")}
        return model(**inputs, use_cache=False).loss

    run = compiled(loss, "eager")
    for number, batch in zip(range(NUM_BATCHES), dataset, strict=False):
        with torch.no_grad():
            found = run(batch)
            if number % 18 == 0:
                torch.testing.assert_close(found, loss(batch), rtol=1e-4, atol=1e-4)


def attend_by_offsets(module, query, key, value, attention_mask, scaling, cu_seq_lens_q, max_length_q, **_):
    """Attention as a variable-length kernel does it, by offsets alone, in operations that compile on the CPU."""
    assert max_length_q <= query.shape[2]
    segment = torch.bucketize(torch.arange(query.shape[2]), cu_seq_lens_q[1:], right=True)
    mask = (segment[:, None] == segment).tril()
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2).contiguous(), None


STATIC = {
    "padding-free": ("cu_seq_lens_q", "max_length_q", lambda plan: {"max_sequences": 2 * plan.max_sequences_per_bin}),
    "megatron": (
        *("cu_seqlens_q_padded", "max_seqlen_q"),
        lambda plan: {"num_sequences": 2 * (plan.max_sequences_per_bin + 1)},
    ),
    "megatron-lm": ("cu_seqlens", "max_seqlen", lambda plan: {"max_sequences": plan.max_sequences_per_bin}),
}
"""Preset → where its offsets and longest length are, and the options that give them one size."""


def inputs_of(batch, offsets, longest):
    """A batch of any preset by the names of transformers, its tokens and targets in a vocabulary of 64."""
    is_shifted = "tokens" in batch
    labels = torch.where(batch["labels"] < 0, -100, batch["labels"] % 64).view(1, -1)
    return {
        "input_ids": batch["tokens" if is_shifted else "input_ids"].view(1, -1) % 64,
        "labels": labels,
        **({"shift_labels": labels} if is_shifted else {}),
        "position_ids": batch["position_ids"].view(1, -1),
        "cu_seq_lens_q": batch[offsets].view(-1),
        "max_length_q": int(batch[longest]),
    }


@pytest.mark.filterwarnings("ignore:preset 'padding-free' lays all")
@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("name", STATIC)
def test_a_llama_trains_an_epoch_of_static_batches_in_one_graph(name, is_static, corpus):
    """Every batch of an epoch, forward and backward; without static shapes, the control, it compiles again."""
    from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

    from packhorse.client import PackedDataset, connect
    from packhorse.client.presets import megatron_lm_preset, megatron_preset, padding_free_preset

    AttentionInterface.register("compiled_by_offsets", attend_by_offsets)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        attn_implementation="compiled_by_offsets",
    )
    model = LlamaForCausalLM(config)
    with connect(f"embedded:{corpus.root}") as client:
        plan = client.get_dataset("rows")
    *keys, sizes = STATIC[name]
    make = {
        "padding-free": partial(padding_free_preset, total_multiple_of=2 * plan.max_seq_len),
        "megatron": megatron_preset,
        "megatron-lm": megatron_lm_preset,
    }[name]
    dataset = PackedDataset(
        f"embedded:{corpus.root}",
        "rows",
        corpus.megatron,
        batch_size=1 if name == "megatron-lm" else 2,
        preset=make(**(sizes(plan) if is_static else {})),
    )

    def loss(batch):
        return model(**batch, use_cache=False).loss

    torch._dynamo.utils.counters.clear()
    run = compiled(loss)
    num_sequences, num_batches = set(), 0
    for batch in dataset if is_static else islice(dataset, 5):
        inputs = inputs_of(batch, *keys)
        num_sequences.add(len(inputs["cu_seq_lens_q"].unique()))
        run(inputs).backward()
        num_batches += 1
    assert num_batches == (len(dataset) if is_static else 5)
    assert len(num_sequences) > 1
    num_graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert num_graphs == 1 if is_static else num_graphs > 1
    torch._dynamo.reset()


@pytest.mark.gpu
def test_one_cuda_graph_replays_every_batch(batches):
    """The variable-length kernel over static rows and offsets: each batch is copied into the graph's own tensors."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    torch.manual_seed(0)
    num_tokens = BATCH_SIZE * MAX_SEQ_LEN
    query = torch.zeros(num_tokens, HEADS, 64, device="cuda", dtype=torch.bfloat16)
    offsets = build_varlen_offsets(batches[0], "cuda", num_sequences=MAX_SEQUENCES, max_seqlen=MAX_SEQ_LEN)
    static = offsets.cu_seqlens_padded.clone()

    def attend(query, cu_seqlens):
        return varlen.varlen_attn(
            query, query, query, cu_seqlens, cu_seqlens, MAX_SEQ_LEN, MAX_SEQ_LEN, window_size=(-1, 0)
        )

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        attend(query, static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = attend(query, static)
    for batch in batches:
        offsets = build_varlen_offsets(batch, "cuda", num_sequences=MAX_SEQUENCES, max_seqlen=MAX_SEQ_LEN)
        query.copy_(torch.randn_like(query))
        static.copy_(offsets.cu_seqlens_padded)
        graph.replay()
        for first, end in pairwise(offsets.cu_seqlens_padded.tolist()[: batch["layout"].num_sequences + 1]):
            alone = query[first:end].transpose(0, 1)[None].float()
            expected = F.scaled_dot_product_attention(alone, alone, alone, is_causal=True)[0].transpose(0, 1)
            torch.testing.assert_close(out[first:end].float(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("path", ["additive bias", "boolean mask", "block mask"])
def test_every_batch_runs_in_the_cuda_graph_of_the_first(path, batches, weights, compiled_once):
    """`mode="reduce-overhead"`: Inductor's kernels, replayed."""
    weights = {name: tensor.detach().cuda() for name, tensor in weights.items()}
    build = {
        "additive bias": lambda batch: build_packing_attention_bias(batch, torch.float32, "cuda", causal=True),
        "boolean mask": lambda batch: build_boolean_mask(batch, "cuda", causal=True),
        "block mask": lambda batch: build_block_mask(batch, "cuda", causal=True),
    }[path]
    step = PATHS[path][0]
    torch._dynamo.reset()
    run = torch.compile(step, mode="reduce-overhead", fullgraph=True)
    for batch in batches:
        tensors = {name: batch[name].cuda() for name in ("input_ids", "position_ids", "labels")}
        with torch.no_grad():
            found = run(tensors, weights, build(batch)).clone()
            expected = dense_step(
                tensors, weights, build_packing_attention_bias(batch, torch.float32, "cuda", causal=True)
            )
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
