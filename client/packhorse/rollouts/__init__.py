"""Packing on demand: rollouts of reinforcement learning, preference pairs, and trees of common prefixes.

Only re-exports. `pack_rollouts` is in `pack`, `pack_pairs` in `pairs`, and trees are in `prefix_tree` and `tree_batch`.
"""

from packhorse.client.options import PackOptions
from packhorse.rollouts.given import Rollouts
from packhorse.rollouts.open_instruct import OpenInstructPacks, to_open_instruct
from packhorse.rollouts.pack import RolloutBatch, as_micro_batches, pack_rollouts
from packhorse.rollouts.pairs import PairBatch, PairLogProbs, as_pair_batch, pack_pairs, pair_log_probs
from packhorse.rollouts.prefix_tree import PrefixTree
from packhorse.rollouts.tree_batch import PrefixSharing, TreeBatch, prefix_sharing
from packhorse.rollouts.tree_masks import build_tree_block_mask, build_tree_mask
from packhorse.rollouts.trl_async import to_trl_async, tree_row

__all__ = [
    "OpenInstructPacks",
    "PackOptions",
    "PairBatch",
    "PairLogProbs",
    "PrefixSharing",
    "PrefixTree",
    "RolloutBatch",
    "Rollouts",
    "TreeBatch",
    "as_micro_batches",
    "as_pair_batch",
    "build_tree_block_mask",
    "build_tree_mask",
    "pack_pairs",
    "pack_rollouts",
    "pair_log_probs",
    "prefix_sharing",
    "to_open_instruct",
    "to_trl_async",
    "tree_row",
]
