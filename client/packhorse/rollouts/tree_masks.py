"""Masks of trees: which keys each query of a `TreeBatch` sees, for SDPA and for FlexAttention.

Owns the rule, with and without a sliding window. Leaves what a batch holds to `tree_batch`.
"""

from collections.abc import Callable

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from packhorse.rollouts.tree_batch import TreeBatch


def build_tree_mask(batch: TreeBatch, *, window: int | None = None) -> torch.Tensor:
    """Returns which keys each query sees, for SDPA: bool [B, 1, L, L]. A token sees itself and its prefix.

    A model that is given a mask applies no sliding window of its own. If only some layers have a window, give a model
    of transformers both masks:
    `{"full_attention": build_tree_mask(batch), "sliding_attention": build_tree_mask(batch, window=128)}`.

    Example:
        >>> from packhorse.rollouts import Rollouts, pack_rollouts
        >>> rollouts = Rollouts(queries=[[1, 2], [1, 2]], responses=[[7], [8]])
        >>> [batch] = pack_rollouts(rollouts, max_seq_len=5, pad_token_id=0, prefixes="tree")
        >>> batch["input_ids"].tolist()  # the 2 comes twice, because it predicts 7 and 8
        [[1, 2, 7, 2, 8]]
        >>> build_tree_mask(batch).int().tolist()
        [[[[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 1, 1]]]]

    Args:
        batch: a batch of `pack_rollouts` with `prefixes="tree"`, on any device.
        window: how many tokens of its sequence a token sees, itself included; None for all.

    Raises:
        ValueError: the window is below 1.
    """
    sees = _rule(batch, window)
    at = torch.arange(batch["subtree_ends"].shape[1], device=batch["subtree_ends"].device)
    rows = torch.arange(len(batch["subtree_ends"]), device=at.device)
    # Rows [B, 1, 1], queries [L, 1] and keys [1, L] make [B, L, L]. The rule ignores the head, so any tensor will do.
    return sees(rows[:, None, None], at, at[:, None], at[None])[:, None]


def build_tree_block_mask(batch: TreeBatch, *, window: int | None = None) -> BlockMask:
    """Builds FlexAttention's mask of a batch, on the batch's device.

    Example:
        >>> from packhorse.rollouts import Rollouts, pack_rollouts
        >>> rollouts = Rollouts(queries=[[1], [1]], responses=[[7], [8]])
        >>> [batch] = pack_rollouts(rollouts, max_seq_len=4, pad_token_id=0, prefixes="tree")
        >>> build_tree_block_mask(batch).shape
        (1, 1, 4, 4)

    Args:
        batch: a batch of `pack_rollouts` with `prefixes="tree"`, on the device where attention runs.
        window: as in `build_tree_mask`.

    Raises:
        ValueError: the window is below 1.
    """
    num_rows, length = batch["subtree_ends"].shape
    device = str(batch["subtree_ends"].device)
    # Without H the mask is the same for every head.
    return create_block_mask(_rule(batch, window), B=num_rows, H=None, Q_LEN=length, KV_LEN=length, device=device)


def _rule(batch: TreeBatch, window: int | None) -> Callable[..., torch.Tensor]:
    """Returns the function of (row, head, query, key) that says whether the query sees the key."""
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1, got {window}; None is for no window")
    ends, depths = batch["subtree_ends"], batch["position_ids"]

    def sees(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        seen = (key <= query) & (query < ends[row, key])  # a key's descendants follow it, up to its subtree's end
        return seen if window is None else seen & (depths[row, query] - depths[row, key] < window)

    return sees
