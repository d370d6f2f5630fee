"""`TreeBatch`: a batch of rollouts whose common prefixes are computed once.

Owns the batch's keys, making it from bins of rollouts or from another batch, and counting what it saves. Leaves the
layout of a row to `tree_rows`, which rollouts share one to `tree_packs`, masks to `tree_masks`, and log-probabilities
and weights of losses to `packhorse.losses`.

Legend: B rows, L tokens in a row, T = B · L, n sequences, M trained tokens, S segments, K gathered keys. A segment is a
chain of tokens without a fork; sequences with a common beginning separate at a fork.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client import Batch, PackedBatch, as_layout
from packhorse.client.batches import IGNORE_INDEX, RowFormat
from packhorse.losses import SequenceGroups
from packhorse.rollouts.flat_rows import range_indices
from packhorse.rollouts.given import FlatRollouts
from packhorse.rollouts.pack_versions import versions_of_packs
from packhorse.rollouts.tree_rows import TreeRow, joined_rows


class TreeBatch(Batch):
    """A packed batch of rollouts whose rows hold each common prefix once.

    Keys of values that were not given are missing. A batch of pairs also has `is_chosen` and `pair_ids`, and one of a
    dataset the keys of its mixture and its cursor.

    Labels are for the next token. A position that several sequences share predicts a token of each of them, so values
    of trained tokens have no shape [B, L]: they are flat, M entries, sequence after sequence.

    Example:
        >>> from packhorse.rollouts import Rollouts, pack_rollouts
        >>> rollouts = Rollouts(queries=[[1, 2], [1, 2]], responses=[[7, 8], [7, 9]], advantages=[0.5, -0.5])
        >>> [batch] = pack_rollouts(rollouts, max_seq_len=7, pad_token_id=0, prefixes="tree")
        >>> batch["input_ids"].tolist(), batch["labels"].tolist()
        ([[1, 2, 7, 8, 7, 9, 0]], [[-100, 7, 8, -100, 9, -100, -100]])
        >>> batch["token_index"].tolist(), batch["advantages"].tolist()
        ([1, 2, 1, 4], [0.5, 0.5, -0.5, -0.5])
    """

    input_ids: torch.Tensor
    """Distinct tokens, depth first, then padding: int64 [B, L]."""
    position_ids: torch.Tensor
    """Number of tokens before each token in its sequences; 0, 1, 2, … in padding: int64 [B, L]."""
    labels: torch.Tensor
    """The token that follows each token, if that is trained, else -100: int64 [B, L]."""
    attention_mask: torch.Tensor
    """1 on tokens, 0 on padding: int64 [B, L]."""
    subtree_ends: torch.Tensor
    """Exclusive end, in its row, of the tokens that see a token (itself and its descendants): int64 [B, L]. Only
    padding sees padding.
    """
    tree_kv_index: torch.Tensor
    """Keys of each segment, end to end, as indices into T, for variable-length kernels: int64 [K]."""
    tree_cu_seqlens_q: torch.Tensor
    """Offsets of segments in T: int32 [S + 1]. A row's padding is the last of its segments."""
    tree_cu_seqlens_k: torch.Tensor
    """Offsets of segments in `tree_kv_index`: int32 [S + 1]. Causal masks are aligned at the end."""
    tree_max_seqlens: tuple[int, int]
    """Length of the longest segment, and most keys of one. Python ints, so that no kernel waits for them."""
    token_index: torch.Tensor
    """Index into T of the position that predicts each trained token: int64 [M]."""
    sequence_index: torch.Tensor
    """The sequence of each trained token, as an index into `ids`: int64 [M]."""
    advantages: torch.Tensor
    """Advantage of each trained token: float32 [M]."""
    logprobs: torch.Tensor
    """Log-probability of each trained token, under the policy that wrote it: float32 [M]."""
    reference_logprobs: torch.Tensor
    """Log-probability of each trained token, under the reference policy: float32 [M]."""
    rewards: torch.Tensor
    """Reward of each sequence, the sum of its tokens' rewards: float32 [n]."""
    dones: torch.Tensor
    """Whether each sequence came to its end: bool [n]."""
    ids: torch.Tensor
    """The rollouts, as indices into `queries`, row after row: int64 [n]."""
    lengths: torch.Tensor
    """Tokens of each sequence, query and response: int64 [n]."""
    num_forks: int
    """Number of forks."""
    group_ids: torch.Tensor
    """As in `PackedBatch`, for a dataset with groups: int64 [n]."""
    groups: SequenceGroups
    """As in `RolloutBatch`, for rollouts."""
    policy_versions: torch.Tensor
    """As in `RolloutBatch`: int64 [n]."""
    pack_policy_versions: torch.Tensor
    """As in `RolloutBatch`: int64 [packs]."""

    def __missing__(self, key: object) -> Any:
        """Raises a KeyError; for keys of batches whose sequences lie end to end, the message says what to do."""
        if key in ("layout", "cu_seqlens", "sequence_ids"):
            raise KeyError(
                f"a batch of trees has no {key!r}, because its sequences share tokens: presets, context parallelism "
                "and masks of rows cannot take it. Give build_tree_mask, build_tree_block_mask or the tree_* keys "
                "to attention, or pack with prefixes='repeated'"
            )
        return super().__missing__(key)


@dataclass(frozen=True, slots=True)
class PrefixSharing:
    """What computing common prefixes once saves.

    Example:
        >>> print(PrefixSharing(num_sequences=8, num_forks=1, num_tokens=1000, num_distinct_tokens=380))
        8 sequences with 1 fork: 380 of 1,000 tokens are computed (38.0 %)
    """

    num_sequences: int
    """Sequences, such as the samples of an agent's turns."""
    num_forks: int
    """Forks: where sequences with a common beginning separate. A conversation whose turns continue each other has a
    fork, one token wide, for each turn but the last."""
    num_tokens: int
    """Tokens of all sequences, as if none were shared."""
    num_distinct_tokens: int
    """Tokens that are computed."""

    def __str__(self) -> str:
        forks = f"{self.num_forks:,} fork{'' if self.num_forks == 1 else 's'}"
        share = 100 * self.num_distinct_tokens / max(self.num_tokens, 1)
        return (
            f"{self.num_sequences:,} sequences with {forks}: {self.num_distinct_tokens:,} of {self.num_tokens:,} "
            f"tokens are computed ({share:.1f} %)"
        )


def prefix_sharing(batches: Iterable[TreeBatch]) -> PrefixSharing:
    """Counts what the prefixes of some batches save.

    Example:
        >>> from packhorse.rollouts import Rollouts, pack_rollouts
        >>> turns = Rollouts(queries=[[1, 2], [1, 2, 3, 4, 5]], responses=[[3, 4], [6]])  # one continues the other
        >>> print(prefix_sharing(pack_rollouts(turns, max_seq_len=8, pad_token_id=0, prefixes="tree")))
        2 sequences with 1 fork: 7 of 10 tokens are computed (70.0 %)

    Args:
        batches: batches of `pack_rollouts` with `prefixes="tree"`.
    """
    batches = list(batches)
    return PrefixSharing(
        num_sequences=sum(len(batch["ids"]) for batch in batches),
        num_forks=sum(batch["num_forks"] for batch in batches),
        num_tokens=sum(int(batch["lengths"].sum()) for batch in batches),
        num_distinct_tokens=sum(int(batch["attention_mask"].sum()) for batch in batches),
    )


def tree_batch(
    bins: Sequence[NDArray[np.int64]], rollouts: FlatRollouts, max_seq_len: int, form: RowFormat
) -> TreeBatch:
    """Makes one batch of some bins of all rollouts; each bin holds indices of rollouts, int64, and becomes a row."""
    rows = []
    trained_tokens = [np.zeros(0, dtype=np.int64)]  # of each row: indices among the response tokens of all rollouts
    for members in bins:
        response_lengths = rollouts.response_lengths[members]
        in_rollouts = range_indices(rollouts.response_starts[members], response_lengths)
        is_trained = ~rollouts.is_tool[in_rollouts]
        ends = np.cumsum(rollouts.lengths[members])
        trained = np.zeros(int(rollouts.lengths[members].sum()), dtype=np.bool_)  # of queries and responses
        trained[range_indices(ends - response_lengths, response_lengths)] = is_trained
        rows.append(TreeRow.of([rollouts.sequences[index] for index in members.tolist()], trained))
        trained_tokens.append(in_rollouts[is_trained])
    members = np.concatenate([np.zeros(0, dtype=np.int64), *bins])  # int64 also if all bins are empty
    batch: dict[str, Any] = {
        **joined_rows(rows, max_seq_len, pad_token_id=form.pad_token_id, flatten=bool(form.flatten)),
        "ids": torch.from_numpy(members),
        "lengths": torch.from_numpy(rollouts.lengths[members]),
        "dones": torch.from_numpy(rollouts.dones[members]),
        "groups": SequenceGroups(numbers=rollouts.group_of[members], num_groups=rollouts.num_groups),
    }
    for name, values in rollouts.values.items():
        if name == "rewards":
            sums = np.add.reduceat(values.astype(np.float64), rollouts.response_starts)
            batch[name] = torch.from_numpy(sums[members].astype(np.float32))
        else:
            batch[name] = torch.from_numpy(values[np.concatenate(trained_tokens)])
    if rollouts.policy_versions is not None:
        batch |= versions_of_packs(rollouts.policy_versions, bins)
    return TreeBatch(batch)


def folded(
    batch: PackedBatch,
    row_tokens: int,
    *,
    pad_token_id: int = 0,
    flatten: bool = False,
    redactions: NDArray[np.int64] | None = None,
) -> TreeBatch:
    """Makes a batch of trees from a batch of rows: in each row, a common prefix of sequences then occurs once.

    Example:
        >>> from packhorse.client import BatchFormat, MemoryDatasets, PackedDataset
        >>> answers = [[1, 2, 7, 8], [1, 2, 9]]
        >>> datasets = MemoryDatasets({"pairs": answers}, max_seq_len=8, group_size=2)
        >>> form = BatchFormat(shift_labels=True)
        >>> [batch] = PackedDataset(datasets, "pairs", answers, batch_size=1, batch=form)
        >>> folded(batch, 8)["input_ids"].tolist()
        [[1, 2, 7, 8, 2, 9, 0, 0]]

    Args:
        batch: a batch in rows, with shifted labels; its labels already say which tokens are trained.
        row_tokens: tokens of a row of the result.
        pad_token_id: token that fills a row's free end.
        flatten: whether all rows are joined in one without padding.
        redactions: redaction of each sequence, as in `BinBlock`; None if there are none. A token stays if a sequence
            without a replacement shares it.

    Returns:
        A batch without values of a policy (`advantages`, `logprobs`, …), but with `group_ids` and the keys of a mixture
        if the given batch has them.

    Raises:
        ValueError: the distinct tokens of a row are more than `row_tokens`.
    """
    rows = rows_as_trees(batch, redactions)
    for number, row in enumerate(rows):
        if row.num_tokens > row_tokens:
            raise ValueError(
                f"row {number} has {row.num_tokens} distinct tokens, more than max_seq_len {row_tokens}: the tokens "
                "are not those whose prefixes the dataset was prepared with"
            )
    kept = ("ids", "group_ids", "component_ids", "bin_component_ids", "component_names", "cursor")
    return TreeBatch(
        {
            **joined_rows(rows, row_tokens, pad_token_id=pad_token_id, flatten=flatten),
            "lengths": torch.from_numpy(as_layout(batch).lengths.copy()),
            **{name: batch[name] for name in kept if name in batch},
        }
    )


def rows_as_trees(batch: PackedBatch, redactions: NDArray[np.int64] | None = None) -> list[TreeRow]:
    """Returns each row of a batch as a tree; the batch has shifted labels."""
    layout = as_layout(batch)
    tokens, labels = batch["input_ids"].numpy().reshape(-1), batch["labels"].numpy().reshape(-1)
    rows = []
    for first, end in pairwise([0, *layout.row_ends.tolist()]):
        starts, lengths = layout.starts[first:end], layout.lengths[first:end]
        at = range_indices(starts, lengths)
        trained = np.zeros(len(at), dtype=np.bool_)
        # A token's label is the next token. After a sequence's last token, which has -100, comes the first token of the
        # next sequence, so no first token is trained.
        trained[1:] = labels[at[:-1]] != IGNORE_INDEX
        sequences = np.split(tokens[at], np.cumsum(lengths)[:-1]) if end > first else []
        rows.append(TreeRow.of(sequences, trained, None if redactions is None else redactions[first:end]))
    return rows


torch.serialization.add_safe_globals([TreeBatch])
