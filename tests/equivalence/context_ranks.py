"""A rank of `test_context_parallel`: an epoch of a tiny Llama with gathered attention, as one optimizer step.

Owns the trainer, whose ranks wait for each other at every micro-step or, with `step`, only where they share a part.
Each rank writes which sequences it saw at which size; the first compares gradients with those of every sequence alone
and writes the greatest difference.
"""

import json
import random
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from packhorse.client import PackedDataset
from packhorse.parallel import (
    ContextCounts,
    context_batch,
    context_batches,
    context_parallel_indices,
    context_process_groups,
)
from packhorse.topology import ContextRule

VOCABULARY = 61


class Gathered(torch.autograd.Function):
    """Keys or values of all ranks of a group, in the order of ranks."""

    @staticmethod
    def forward(ctx, value, group):
        ctx.group, ctx.size = group, value.shape[2]
        parts = [torch.empty_like(value) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, value.contiguous(), group=group)
        return torch.cat(parts, dim=2)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        first = dist.get_rank(ctx.group) * ctx.size
        return gradient[:, :, first : first + ctx.size], None


class Attention:
    """Attention of the micro-batch in hand."""

    def __call__(self, module, query, key, value, mask, scaling=None, **_):
        if self.group is not None:
            key, value = Gathered.apply(key, self.group), Gathered.apply(value, self.group)
        out = scaled_dot_product_attention(query, key, value, attn_mask=self.mask, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2).contiguous(), None

    def take(self, part, layout, groups):
        num_tokens = int(part.cu_seqlens[-1])
        keys = context_parallel_indices(part.cu_seqlens, num_tokens, part.cp_size, layout=layout)
        queries = keys.chunk(part.cp_size)[part.cp_rank]
        segment = torch.searchsorted(part.cu_seqlens.long(), torch.arange(num_tokens), right=True)
        alike = segment[queries][:, None] == segment[keys][None]
        self.mask = alike & (queries[:, None] >= keys[None])
        self.group = groups.get(part.cp_size)


def tokens_of(id):
    """The tokens of a sequence; the test wrote the lengths."""
    return np.random.default_rng(id).integers(0, VOCABULARY, LENGTHS[id])


def loss_of(model, tokens, labels, positions):
    logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
    return cross_entropy(logits[0], labels[0], ignore_index=-100, reduction="sum")


folder, tokens_per_rank, max_context_parallel, layout, wait = sys.argv[1:]
LENGTHS = json.loads(Path(folder, "lengths.json").read_text())
TOKENS = [tokens_of(id) for id in range(len(LENGTHS))]
rule = ContextRule(int(tokens_per_rank), int(max_context_parallel))
dist.init_process_group("gloo")
rank, num_groups = dist.get_rank(), dist.get_world_size() // rule.max_context_parallel
groups = context_process_groups(rule)
for size, group in groups.items():
    assert dist.get_process_group_ranks(group) == [*range(rank // size * size, rank // size * size + size)]
attention = Attention()
AttentionInterface.register("gathered", attention)
torch.manual_seed(0)
shape = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
config = LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=2, max_position_embeddings=512, **shape)
config._attn_implementation = "gathered"
model = LlamaForCausalLM(config).double()
seen = []
of_group = (rank // rule.max_context_parallel, num_groups)
speed = random.Random(rank)


def parts_of_rank():
    """This rank's parts of the epoch, by the plan that the test asks for."""
    options = {"rank": of_group, "batch_size": 1, "balance": "micro-step"}
    if wait == "step":
        options |= {"batch_size": 3, "balance": "none"}
    for batch in PackedDataset(f"embedded:{folder}", "long", TOKENS, **options):
        if wait == "step":
            yield from context_batches(batch, rule, rank, layout=layout)
        else:
            yield context_batch(batch, rule, rank, layout=layout)


parts = list(parts_of_rank())
counts = ContextCounts.of_parts(parts).all_reduce()
assert counts.num_micro_steps == len(parts)
assert counts.num_tokens == sum(LENGTHS)
assert counts.sum_of_squares == sum(length**2 for length in LENGTHS)
assert counts.num_targets == sum(LENGTHS) - len(LENGTHS)
for part in parts:
    for _ in range(speed.randrange(4)):  # ranks are not equally fast
        torch.randn(300, 300).matmul(torch.randn(300, 300))
    attention.take(part, layout, groups)
    loss = loss_of(model, part.input_ids, part.labels, part.position_ids)
    loss.backward()
    assert part.first_rank <= rank == part.first_rank + part.cp_rank
    if part.cp_rank == 0:
        seen += [(int(id), part.cp_size) for id in part.ids]
for parameter in model.parameters():
    dist.all_reduce(parameter.grad)
Path(folder, f"seen{rank}.json").write_text(json.dumps(seen))
if rank == 0:
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    attention.group = None
    for id in range(len(LENGTHS)):
        tokens = torch.from_numpy(tokens_of(id))[None]
        length = tokens.shape[1]
        attention.mask = torch.ones(length, length, dtype=torch.bool).tril()
        labels = torch.cat((tokens[:, 1:], torch.tensor([[-100]])), dim=1)
        loss_of(model, tokens, labels, torch.arange(length)[None]).backward()
    pairs = zip(found, model.parameters(), strict=True)
    off = max(float((a - b.grad).abs().max() / b.grad.abs().max()) for a, b in pairs)
    Path(folder, "off.json").write_text(json.dumps(off))
dist.destroy_process_group()
