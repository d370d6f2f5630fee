"""`tree_row`: rollouts that share prefixes as the row that TRL's asynchronous GRPO gives its model.

Owns TRL's keys. Leaves the tree to `prefix_tree`, and checks of rows to `flat_rows`.

Legend: R sequences, N distinct tokens, S segments, K gathered keys, M trained tokens.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.batches import IGNORE_INDEX
from packhorse.rollouts.flat_rows import INTEGERS, NUMBERS, check_finite, one_each, rows_of_tokens
from packhorse.rollouts.prefix_tree import PrefixTree


def tree_row(
    sequences: Sequence[Any], trained: Sequence[Any], *, logprobs: Sequence[Any], advantages: Any
) -> dict[str, torch.Tensor]:
    """Builds a row of TRL's asynchronous GRPO: the keys, dtypes and order of its `TreeRow.pack()` (TRL 1.16).

    A position that several sequences share serves each of them: every sequence's trained tokens are there, in the order
    of sequences, whatever they share.

    Example:
        >>> row = tree_row(
        ...     [[1, 2, 4], [1, 2, 5]], [[0, 0, 1]] * 2, logprobs=[[0, 0, -1.0], [0, 0, -2.0]], advantages=[0.5, -0.5]
        ... )
        >>> row["input_ids"].tolist(), row["shift_labels"].tolist(), row["token_index"].tolist()
        ([1, 2, 4, 2, 5], [-100, 4, -100, 5, -100], [1, 3])
        >>> row["tree_kv_index"].tolist(), row["tree_cu_seqlens_k"].tolist()
        ([0, 0, 1, 2, 0, 3, 4], [0, 1, 4, 7])

    Args:
        sequences: R rows of token ids, as in `PrefixTree.of`.
        trained: R rows with one entry for each token: 1 or True if it is trained. A first token never is, because
            nothing predicts it.
        logprobs: R rows with one entry for each token: its log-probability when it was generated.
        advantages: one number for each sequence.

    Returns:
        int64 [N] `input_ids`, `position_ids`, `shift_labels`; int64 [K] `tree_kv_index`; int32 [S + 1]
        `tree_cu_seqlens_q` and `tree_cu_seqlens_k`; int64 [2] `tree_max_seqlens`; int64 [M] `token_index` and
        `segment_id`; float32 [M] `old_log_probs` and `advantages`.

    Raises:
        ValueError: a row or the advantages do not fit the sequences, or a trained token's value is not finite; names
            the argument and the sequence.
    """
    tree = PrefixTree.of(sequences)
    lengths = np.diff(tree.sequence_ends, prepend=0)
    flags = rows_of_tokens("trained", trained, lengths, "b" + INTEGERS, what="sequence") != 0
    of_tokens = rows_of_tokens("logprobs", logprobs, lengths, NUMBERS, what="sequence")
    of_sequences = one_each("advantages", advantages, NUMBERS)
    if len(of_sequences) != len(lengths):
        raise ValueError(f"advantages has {len(of_sequences)} entries for {len(lengths)} sequences")
    flags[tree.sequence_ends - lengths] = False
    for name, values in (("logprobs", of_tokens), ("advantages", np.repeat(of_sequences, lengths))):
        check_finite(name, np.where(flags, values, 0), lengths, row="sequence", token="token")
    at = np.flatnonzero(flags)
    token_index = tree.positions[at - 1]
    which = np.repeat(np.arange(len(lengths)), lengths)[at]
    labels = np.full(tree.num_tokens, IGNORE_INDEX, dtype=np.int64)
    labels[token_index] = tree.next_tokens[token_index]
    keys, path_ends = tree.paths()
    longest = [int(np.diff(ends, prepend=0).max()) for ends in (tree.segment_ends, path_ends)]
    return {
        "input_ids": torch.from_numpy(tree.tokens),
        "position_ids": torch.from_numpy(tree.depths),
        "shift_labels": torch.from_numpy(labels),
        "tree_kv_index": torch.from_numpy(keys),
        "tree_cu_seqlens_q": _offsets(tree.segment_ends),
        "tree_cu_seqlens_k": _offsets(path_ends),
        "tree_max_seqlens": torch.tensor(longest),
        "token_index": torch.from_numpy(token_index),
        "old_log_probs": torch.from_numpy(of_tokens[at].astype(np.float32)),
        "advantages": torch.from_numpy(of_sequences[which].astype(np.float32)),
        "segment_id": torch.from_numpy(which),
    }


def _offsets(ends: NDArray[np.int64]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(([0], ends)).astype(np.int32))
