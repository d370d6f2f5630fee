"""A language model of usual parts for one GPU, its attention by any of the masks, and how long work takes there.

Owns the model, its training step and the clock; leaves which masks and which batches to `bench_gpu`.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from packhorse.client.masks import VarlenOffsets, varlen_attention

VOCABULARY = 50_304
WIDTH, HEADS, LAYERS = 768, 12, 12

Where = BlockMask | VarlenOffsets | torch.Tensor | None
"""What a token attends to: by FlexAttention, a variable-length kernel, a dense mask, or all before it in its row."""


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, where: Where) -> torch.Tensor:
    """Causal attention over [B, heads, L, head size]."""
    if isinstance(where, BlockMask):
        return flex_attention(query, key, value, block_mask=where)
    if isinstance(where, VarlenOffsets):
        rows, _, length, _ = query.shape
        states = (each.transpose(1, 2).flatten(0, 1) for each in (query, key, value))
        return varlen_attention(*states, where, causal=True).unflatten(0, (rows, length)).transpose(1, 2)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=where, is_causal=where is None)


class Decoder(nn.Module):
    """As GPT-2's smallest: 12 layers of width 768; where to attend comes with every call."""

    def __init__(self, max_positions: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(max_positions, WIDTH)
        self.layers = nn.ModuleList(_Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, labels: torch.Tensor, where: Where
    ) -> torch.Tensor:
        """Returns the mean loss of labels that are shifted already; all [B, L]."""
        hidden = self.tokens(input_ids) + self.positions(position_ids)
        for layer in self.layers:
            hidden = layer(hidden, where)
        logits = self.head(self.norm(hidden))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.inward, self.outward = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, hidden: torch.Tensor, where: Where) -> torch.Tensor:
        rows, length, _ = hidden.shape
        states = self.inward(self.norms[0](hidden)).view(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = attend(states[0], states[1], states[2], where).transpose(1, 2).reshape(rows, length, WIDTH)
        hidden = hidden + self.outward(attended)
        return hidden + self.wide(self.norms[1](hidden))


class Trainer:
    """A compiled model in bfloat16 with its optimizer."""

    def __init__(self, max_positions: int) -> None:
        torch.manual_seed(0)
        self._model = Decoder(max_positions).to("cuda", torch.bfloat16)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4, fused=True)
        self._run = torch.compile(self._model, dynamic=False)

    def step(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, labels: torch.Tensor, where: Where
    ) -> torch.Tensor:
        """One step of training; does not wait for the GPU. Returns the loss on it."""
        self._optimizer.zero_grad()
        loss = self._run(input_ids, position_ids, labels, where)
        loss.backward()
        self._optimizer.step()
        return loss.detach()


def gpu_milliseconds(work: Callable[[], Any], calls: int) -> float:
    """Of one call, on average, until the GPU has done what it queued."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(calls):
        work()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - started) / calls
