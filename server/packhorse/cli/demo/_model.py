"""A small language model, for the demo: two blocks of causal attention within each packed sequence.

Owns the model; leaves the data and the training loop to `_trainer`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

# Legend: B bins, L = max_seq_len, D width, H heads, V vocabulary.


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.to_qkv = nn.Linear(width, 3 * width, bias=False)
        self.from_heads = nn.Linear(width, width, bias=False)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
        """Maps [B, L, D] to [B, L, D] under an additive bias [B, 1, L, L]."""
        bins, row, width = hidden.shape
        qkv = self.to_qkv(self.norm_attention(hidden)).view(bins, row, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        hidden = hidden + self.from_heads(mixed.transpose(1, 2).reshape(bins, row, width))
        return hidden + self.feed_forward(hidden)


class DemoModel(nn.Module):
    """Predicts each next token."""

    def __init__(self, vocab_size: int, max_seq_len: int, width: int = 64, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(max_seq_len, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, input_ids: Tensor, position_ids: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        """Returns the mean loss over the tokens that have a label.

        Args:
            input_ids: int64 [B, L].
            position_ids: int64 [B, L], from 0 in every sequence.
            bias: [B, 1, L, L], 0 where a token may be seen and -inf elsewhere.
            labels: int64 [B, L], unshifted, -100 where there is nothing to predict.
        """
        hidden = self.tokens(input_ids) + self.positions(position_ids)
        for block in self.blocks:
            hidden = block(hidden, bias)
        wanted = labels[:, 1:] != -100
        logits = self.norm(hidden[:, :-1][wanted]) @ self.tokens.weight.T  # [predicted tokens, V]
        return torch.nn.functional.cross_entropy(logits, labels[:, 1:][wanted])
