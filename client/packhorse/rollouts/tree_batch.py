"""`TreeBatch`: a batch of rollouts whose common prefixes are computed once.

Owns the batch's keys, its masks, and what its prefixes save. Leaves the tree to `prefix_tree`, which rollouts share a
row to `tree_packs`, and weights of losses to `packhorse.losses`.

Legend: B rows, L tokens in a row, T = B · L, n sequences, M trained tokens, S segments, K gathered keys.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from numpy.typing import NDArray
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from packhorse.client import PackedBatch
from packhorse.client.batches import IGNORE_INDEX
from packhorse.losses import SequenceGroups
from packhorse.rollouts.flat_rows import range_indices
from packhorse.rollouts.given import FlatRollouts
from packhorse.rollouts.pack_versions import versions_of_packs
from packhorse.rollouts.prefix_tree import PrefixTree


class TreeBatch(PackedBatch):
    """A packed batch of rollouts with each common prefix once, so its rows have distinct tokens.

    It moves, pins, saves and prints as a PackedBatch, and has the keys below instead. Labels are for the next token.
    A position that several sequences share predicts a token of each of them: so values of trained tokens are lists of M
    entries, sequence after sequence in a row.

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
    """How many tokens stand before each in its sequences; 0, 1, 2, … in padding: int64 [B, L]."""
    labels: torch.Tensor
    """The token that follows each where one is trained, else -100: int64 [B, L]."""
    attention_mask: torch.Tensor
    """1 on tokens, 0 on padding: int64 [B, L]."""
    subtree_ends: torch.Tensor
    """A token is seen by those from itself up to here, in its row; padding by padding: int64 [B, L]."""
    tree_kv_index: torch.Tensor
    """For variable-length kernels the keys of each segment, end to end, as indices into T: int64 [K]."""
    tree_cu_seqlens_q: torch.Tensor
    """Offsets of segments in T: int32 [S + 1]. A row's padding is the last of its segments."""
    tree_cu_seqlens_k: torch.Tensor
    """Offsets of segments in `tree_kv_index`: int32 [S + 1]. Causal masks are aligned at the end."""
    tree_max_seqlens: tuple[int, int]
    """The longest segment, and the most keys of one. Python ints, so that no kernel waits for them."""
    token_index: torch.Tensor
    """Where in T each trained token is predicted: int64 [M]."""
    sequence_index: torch.Tensor
    """The sequence of each trained token, as an index into `ids`: int64 [M]."""
    advantages: torch.Tensor
    """Of each trained token: float32 [M]."""
    logprobs: torch.Tensor
    """Of each trained token, under the policy that wrote it: float32 [M]."""
    reference_logprobs: torch.Tensor
    """Of each trained token, under the reference policy: float32 [M]."""
    rewards: torch.Tensor
    """Of each sequence, the sum of its tokens': float32 [n]."""
    dones: torch.Tensor
    """Whether each sequence came to its end: bool [n]."""
    ids: torch.Tensor
    """The rollouts, as indices into `queries`, row after row: int64 [n]."""
    lengths: torch.Tensor
    """Tokens of each sequence, query and response: int64 [n]."""
    num_forks: int
    """How often sequences part that began alike."""
    groups: SequenceGroups
    """As in `RolloutBatch`."""
    policy_versions: torch.Tensor
    """As in `RolloutBatch`: int64 [n]."""
    pack_policy_versions: torch.Tensor
    """As in `RolloutBatch`: int64 [packs]."""

    def __missing__(self, key: object) -> Any:
        """Raises a KeyError; if something asks for sequences that stand one after the other, it says what to do."""
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
    """How often sequences part that began alike. A conversation whose turns continue each other has a fork for
    each turn but the last, one token wide."""
    num_tokens: int
    """Tokens of the sequences."""
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
        batches: of `pack_rollouts` with `prefixes="tree"`.
    """
    given = list(batches)
    return PrefixSharing(
        num_sequences=sum(len(batch["ids"]) for batch in given),
        num_forks=sum(batch["num_forks"] for batch in given),
        num_tokens=sum(int(batch["lengths"].sum()) for batch in given),
        num_distinct_tokens=sum(int(batch["attention_mask"].sum()) for batch in given),
    )


def trained_log_probs(batch: TreeBatch, logits: torch.Tensor) -> torch.Tensor:
    """Returns the log-probability of every trained token, once for each sequence that it is trained in.

    Example:
        >>> from packhorse.rollouts import Rollouts, pack_rollouts
        >>> rollouts = Rollouts(queries=[[1], [1]], responses=[[0], [1]])
        >>> [batch] = pack_rollouts(rollouts, max_seq_len=4, pad_token_id=0, prefixes="tree")
        >>> trained_log_probs(batch, torch.zeros(1, 4, 2)).exp().tolist()
        [0.5, 0.5]

    Args:
        batch: of `pack_rollouts` with `prefixes="tree"`.
        logits: a floating type [B, L, V], on any device; the host does not wait.

    Returns:
        float32 [M] (float64 of float64), in the order of `token_index`.

    Raises:
        ValueError: the shapes do not fit.
    """
    labels = batch["labels"]
    if logits.shape[:-1] != labels.shape:
        raise ValueError(f"logits have shape {list(logits.shape)}, and labels {list(labels.shape)}")
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    of_tokens = -F.cross_entropy(
        wide.flatten(0, 1), labels.flatten().to(logits.device), ignore_index=IGNORE_INDEX, reduction="none"
    )
    return of_tokens[batch["token_index"].to(logits.device)]


def build_tree_mask(batch: TreeBatch, *, window: int | None = None) -> torch.Tensor:
    """Returns which keys each query sees: bool [B, 1, L, L], for SDPA. A token sees the sequences up to itself.

    A model that is given a mask applies no sliding window of its own. Where layers differ, models of transformers take
    both: `{"full_attention": build_tree_mask(batch), "sliding_attention": build_tree_mask(batch, window=128)}`.

    Example:
        >>> from packhorse.rollouts import Rollouts, pack_rollouts
        >>> rollouts = Rollouts(queries=[[1], [1]], responses=[[7], [8]])
        >>> [batch] = pack_rollouts(rollouts, max_seq_len=4, pad_token_id=0, prefixes="tree")
        >>> build_tree_mask(batch).int().tolist()
        [[[[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]]]

    Args:
        batch: of `pack_rollouts` with `prefixes="tree"`, on any device.
        window: how many tokens of its sequence a token sees, itself included; None for all.

    Raises:
        ValueError: the window is below 1.
    """
    sees = _rule(batch, window)
    at = torch.arange(batch["subtree_ends"].shape[1], device=batch["subtree_ends"].device)
    rows = torch.arange(len(batch["subtree_ends"]), device=at.device)
    return sees(rows[:, None, None], at, at[:, None], at[None])[:, None]


def build_tree_block_mask(batch: TreeBatch, *, window: int | None = None) -> BlockMask:
    """Builds FlexAttention's mask of a batch, on its device, from every pair of tokens.

    Example:
        >>> from packhorse.rollouts import Rollouts, pack_rollouts
        >>> rollouts = Rollouts(queries=[[1], [1]], responses=[[7], [8]])
        >>> [batch] = pack_rollouts(rollouts, max_seq_len=4, pad_token_id=0, prefixes="tree")
        >>> build_tree_block_mask(batch).shape
        (1, 1, 4, 4)

    Args:
        batch: of `pack_rollouts` with `prefixes="tree"`, on the device where attention runs.
        window: as in `build_tree_mask`.

    Raises:
        ValueError: the window is below 1.
    """
    num_rows, length = batch["subtree_ends"].shape
    device = str(batch["subtree_ends"].device)
    return create_block_mask(_rule(batch, window), num_rows, None, length, length, device=device)


def _rule(batch: TreeBatch, window: int | None) -> Callable[..., torch.Tensor]:
    """Returns the rule of masks as a function of (row, head, query, key)."""
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1, got {window}; None is for no window")
    ends, depths = batch["subtree_ends"], batch["position_ids"]

    def sees(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        seen = (key <= query) & (query < ends[row, key])
        return seen if window is None else seen & (depths[row, query] - depths[row, key] < window)

    return sees


def tree_batch(
    bins: Sequence[NDArray[np.int64]], rollouts: FlatRollouts, max_seq_len: int, *, pad_token_id: int, flatten: bool
) -> TreeBatch:
    """Makes one batch of bins of rollouts, each a row; flattened, all in one row without padding."""
    parts = [_Row.of(members, rollouts) for members in bins if len(members) or not flatten]
    parts = parts or [_Row.of(np.zeros(0, dtype=np.int64), rollouts)]
    is_empty = not any(len(part.tokens) for part in parts)
    sizes = [len(part.tokens) if flatten and not is_empty else max_seq_len for part in parts]
    for part, size in zip(parts, sizes, strict=True):
        part.pad(size, pad_token_id)
    starts = np.cumsum([0, *sizes[:-1]])
    shape = (1, -1) if flatten else (len(parts), max_seq_len)
    members = np.concatenate([np.asarray(part, dtype=np.int64) for part in bins])
    firsts = np.cumsum([0, *(part.num_sequences for part in parts[:-1])])

    def joined(name: str, shifts: Any = None) -> torch.Tensor:
        shifts = np.zeros(len(parts), dtype=np.int64) if shifts is None else shifts
        rows = [getattr(part, name) + shift for part, shift in zip(parts, shifts, strict=True)]
        return torch.from_numpy(np.concatenate(rows))

    seen = np.cumsum([0, *(len(part.keys) for part in parts[:-1])])
    sources = np.concatenate([part.sources for part in parts])
    batch: dict[str, Any] = {
        "input_ids": joined("tokens").view(shape),
        "position_ids": joined("depths").view(shape),
        "labels": joined("labels").view(shape),
        "attention_mask": joined("is_token").view(shape),
        "subtree_ends": joined("subtree_ends", starts if flatten else None).view(shape),
        "tree_kv_index": joined("keys", starts),
        "tree_cu_seqlens_q": F.pad(joined("segment_ends", starts), (1, 0)).int(),
        "tree_cu_seqlens_k": F.pad(joined("path_ends", seen), (1, 0)).int(),
        "tree_max_seqlens": tuple(
            max(int(np.diff(getattr(part, ends), prepend=0).max()) for part in parts)
            for ends in ("segment_ends", "path_ends")
        ),
        "token_index": joined("token_index", starts),
        "sequence_index": joined("sequence_index", firsts),
        "ids": torch.from_numpy(members),
        "lengths": torch.from_numpy(rollouts.lengths[members]),
        "dones": torch.from_numpy(rollouts.dones[members]),
        "num_forks": sum(part.num_forks for part in parts),
        "groups": SequenceGroups(numbers=rollouts.group_of[members], num_groups=rollouts.num_groups),
    }
    for name, values in rollouts.values.items():
        if name == "rewards":
            sums = np.add.reduceat(values.astype(np.float64), rollouts.response_starts)
            batch[name] = torch.from_numpy(sums[members].astype(np.float32))
        else:
            batch[name] = torch.from_numpy(values[sources])
    if rollouts.policy_versions is not None:
        batch |= versions_of_packs(rollouts.policy_versions, bins)
    return TreeBatch(batch)


@dataclass(slots=True, kw_only=True, eq=False)
class _Row:
    """One row of a batch, before it is joined with others. Legend as in the file, of this row."""

    tokens: NDArray[np.int64]
    depths: NDArray[np.int64]
    labels: NDArray[np.int64]
    is_token: NDArray[np.int64]
    subtree_ends: NDArray[np.int64]
    keys: NDArray[np.int64]
    segment_ends: NDArray[np.int64]
    path_ends: NDArray[np.int64]
    token_index: NDArray[np.int64]
    sequence_index: NDArray[np.int64]
    sources: NDArray[np.int64]
    """Of each trained token, its index among all responses' tokens."""
    num_sequences: int
    num_forks: int

    @classmethod
    def of(cls, members: NDArray[np.int64], rollouts: FlatRollouts) -> "_Row":
        """Lays out one bin's rollouts."""
        nothing = np.zeros(0, dtype=np.int64)
        if not len(members):
            names = [name for name in cls.__slots__ if not name.startswith("num_")]
            return cls(**dict.fromkeys(names, nothing), num_sequences=0, num_forks=0)
        tree = PrefixTree.of([rollouts.sequences[index] for index in members.tolist()])
        response_lengths = rollouts.response_lengths[members]
        here = range_indices(rollouts.response_starts[members], response_lengths)
        there = range_indices(tree.sequence_ends - response_lengths, response_lengths)
        trained = np.zeros(len(tree.positions), dtype=np.bool_)
        trained[there] = ~rollouts.is_tool[here]
        _, token_index, sequence_index = tree.targets(trained)
        keys, path_ends = tree.paths()
        return cls(
            tokens=tree.tokens,
            depths=tree.depths,
            labels=tree.labels(token_index),
            is_token=np.ones(tree.num_tokens, dtype=np.int64),
            subtree_ends=tree.subtree_ends,
            keys=keys,
            segment_ends=tree.segment_ends,
            path_ends=path_ends,
            token_index=token_index,
            sequence_index=sequence_index,
            sources=here[~rollouts.is_tool[here]],
            num_sequences=len(members),
            num_forks=tree.num_forks,
        )

    def pad(self, size: int, pad_token_id: int) -> None:
        """Fills the row up to a size with padding, which is one more segment."""
        num = len(self.tokens)
        if num == size:
            return
        rest = np.arange(num, size)
        self.tokens = np.append(self.tokens, np.full(len(rest), pad_token_id))
        self.depths = np.append(self.depths, rest - num)
        self.labels = np.append(self.labels, np.full(len(rest), IGNORE_INDEX))
        self.is_token = np.append(self.is_token, np.zeros(len(rest), dtype=np.int64))
        self.subtree_ends = np.append(self.subtree_ends, np.full(len(rest), size))
        self.segment_ends = np.append(self.segment_ends, size)
        self.path_ends = np.append(self.path_ends, len(self.keys) + len(rest))
        self.keys = np.append(self.keys, rest)


torch.serialization.add_safe_globals([TreeBatch])
