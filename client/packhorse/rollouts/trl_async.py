"""`tree_row` and `to_trl_async`: rollouts that share prefixes, in the form in which TRL's asynchronous GRPO takes them.

Owns TRL's keys and padding, also for preset `trl_async` (`trl_async_rows`). Leaves the tree to `prefix_tree`, and
checks of rows to `flat_rows`.

Legend: R sequences, N distinct tokens, S segments, K gathered keys, M trained tokens.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client import PackedBatch
from packhorse.client.batches import IGNORE_INDEX
from packhorse.rollouts.flat_rows import BOOLS, INTEGERS, NUMBERS, check_finite, one_each, rows_of_tokens
from packhorse.rollouts.prefix_tree import PrefixTree
from packhorse.rollouts.tree_batch import TreeBatch, rows_as_trees
from packhorse.rollouts.tree_rows import joined_rows

_PADDING = {
    "shift_labels": IGNORE_INDEX,
    "token_index": -1,
    "tree_kv_index": -1,
    "tree_cu_seqlens_q": -1,
    "tree_cu_seqlens_k": -1,
}
"""Value that pads each of TRL's keys to the longest rank's; other keys take 0, and `input_ids` the padding token."""


def tree_row(
    sequences: Sequence[Any], trained: Sequence[Any], *, logprobs: Sequence[Any], advantages: Any
) -> dict[str, torch.Tensor]:
    """Builds a row of TRL's asynchronous GRPO: the keys, dtypes and order of its `TreeRow.pack()` (TRL 1.16).

    The trained tokens of every sequence are listed, in the order of sequences; a position that several sequences share
    is listed for each of them.

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
        ValueError: a row or the advantages do not fit the sequences, or a trained token's value is not finite; the
            message names the argument and the sequence.
    """
    tree = PrefixTree.of(sequences)
    lengths = np.diff(tree.sequence_ends, prepend=0)
    is_trained = rows_of_tokens("trained", trained, lengths, BOOLS + INTEGERS, row_name="sequence") != 0
    flat_logprobs = rows_of_tokens("logprobs", logprobs, lengths, NUMBERS, row_name="sequence")
    sequence_advantages = one_each("advantages", advantages, NUMBERS)
    if len(sequence_advantages) != len(lengths):
        raise ValueError(f"advantages has {len(sequence_advantages)} entries for {len(lengths)} sequences")
    targets = tree.targets(is_trained)
    # Only what is trained on must be finite, so the values of all other tokens become 0.
    for name, values in (("logprobs", flat_logprobs), ("advantages", np.repeat(sequence_advantages, lengths))):
        trained_values = np.zeros(len(values), dtype=values.dtype)
        trained_values[targets.tokens] = values[targets.tokens]
        check_finite(name, trained_values, lengths, row_name="sequence", token_name="token")
    keys, path_ends = tree.paths()
    # Most tokens of a segment, and most keys of one: the largest difference of two ends.
    longest = [int(np.diff(ends, prepend=0).max()) for ends in (tree.segment_ends, path_ends)]
    return {
        "input_ids": torch.from_numpy(tree.tokens),
        "position_ids": torch.from_numpy(tree.depths),
        "shift_labels": torch.from_numpy(tree.labels(targets.positions)),
        "tree_kv_index": torch.from_numpy(keys),
        "tree_cu_seqlens_q": _offsets(tree.segment_ends),
        "tree_cu_seqlens_k": _offsets(path_ends),
        "tree_max_seqlens": torch.tensor(longest),
        "token_index": torch.from_numpy(targets.positions),
        "old_log_probs": torch.from_numpy(flat_logprobs[targets.tokens].astype(np.float32)),
        "advantages": torch.from_numpy(sequence_advantages[targets.sequences].astype(np.float32)),
        "segment_id": torch.from_numpy(targets.sequences),
    }


def to_trl_async(batches: Sequence[TreeBatch], *, pad_token_id: int) -> dict[str, torch.Tensor]:
    """Joins one micro-batch of all ranks, a row for each rank, as the collator of TRL's asynchronous GRPO does (1.16).

    Example:
        >>> from packhorse.rollouts import Rollouts, pack_rollouts
        >>> rollouts = Rollouts(queries=[[1], [1]], responses=[[7, 8], [9]], advantages=[0.5, -0.5])
        >>> batches = pack_rollouts(
        ...     rollouts, max_seq_len=8, pad_token_id=0, world_size=2, prefixes="tree", flatten=True
        ... )
        >>> micro_batch = to_trl_async(batches, pad_token_id=0)
        >>> micro_batch["input_ids"].tolist(), micro_batch["token_index"].tolist()
        ([[1, 7, 8], [1, 9, 0]], [[0, 1], [0, -1]])

    Args:
        batches: one batch for each of D ranks, of `pack_rollouts` with `prefixes="tree"`, `flatten=True` and
            batch_size 1.
        pad_token_id: the same as for `pack_rollouts`.

    Returns:
        The keys of `tree_row`, each padded to the longest rank's: [D, longest]. Besides them int64 [D, N]
        `attention_mask`, and float32 [D] `global_n_tokens` and `global_n_forward_tokens`: trained and distinct tokens
        of all ranks together. `old_log_probs` and `advantages` are there if rollouts had them.

    Raises:
        ValueError: there is no batch, or one has several rows or padding; the message says what to do.
    """
    if not batches or not all(map(_is_one_flat_row, batches)):
        raise ValueError("batches must be one row for each rank, without padding: give pack_rollouts flatten=True")
    rows = [_row_of(batch) for batch in batches]
    joined = {
        name: torch.nn.utils.rnn.pad_sequence(
            [row[name] for row in rows],
            batch_first=True,
            padding_value=pad_token_id if name == "input_ids" else _PADDING.get(name, 0),
        )
        for name in rows[0]
    }
    for name, key in (("global_n_tokens", "token_index"), ("global_n_forward_tokens", "input_ids")):
        joined[name] = torch.full((len(rows),), float(sum(row[key].numel() for row in rows)))
    return joined


def trl_async_rows(batch: PackedBatch) -> dict[str, torch.Tensor]:
    """Returns a dataset's batch under TRL's keys; makes a tree of each row, for preset `trl_async`.

    The batch is in rows, with shifted labels.
    """
    # The batch does not say which token pads it. Without padding there is none to continue, and any token does.
    is_padding = batch["attention_mask"] == 0
    pad_token_id = int(batch["input_ids"][is_padding][0]) if bool(is_padding.any()) else 0
    row_tokens = batch["input_ids"].shape[1]
    rows = [
        TreeBatch(
            {
                **joined_rows([row], row_tokens, pad_token_id=pad_token_id, flatten=True),
                "ids": torch.arange(row.num_sequences),
            }
        )
        for row in rows_as_trees(batch)
    ]
    return to_trl_async(rows, pad_token_id=pad_token_id)


def _is_one_flat_row(batch: TreeBatch) -> bool:
    """Returns whether a batch is one row without padding; a batch without sequences may be padding."""
    return batch["input_ids"].shape[0] == 1 and (not len(batch["ids"]) or bool(batch["attention_mask"].all()))


def _row_of(batch: TreeBatch) -> dict[str, torch.Tensor]:
    """Returns a batch of one row under TRL's keys."""
    unchanged = ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k", "token_index")
    return {
        "input_ids": batch["input_ids"][0],
        "position_ids": batch["position_ids"][0],
        "shift_labels": batch["labels"][0],
        **{name: batch[name] for name in unchanged},
        "tree_max_seqlens": torch.tensor(batch["tree_max_seqlens"]),
        **{
            name: batch[key]
            for name, key in (("old_log_probs", "logprobs"), ("advantages", "advantages"))
            if key in batch
        },
        "segment_id": batch["sequence_index"],
        "attention_mask": batch["attention_mask"][0],
    }


def _offsets(ends: NDArray[np.int64]) -> torch.Tensor:
    """Returns exclusive ends, int64 [S], as the offsets that kernels take: int32 [S + 1], beginning with 0."""
    return torch.from_numpy(np.concatenate(([0], ends)).astype(np.int32))
