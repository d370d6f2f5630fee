"""Rows of trees, and the keys that a batch of them has.

Owns how rows are padded and joined. Leaves the tree itself to `prefix_tree`.

Legend: B rows, L tokens in a row, M trained tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from numpy.typing import NDArray

from packhorse.client.batches import IGNORE_INDEX
from packhorse.client.streams import AS_IT_IS, MASKED
from packhorse.rollouts.prefix_tree import PrefixTree


def _nothing() -> NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True, kw_only=True, eq=False)
class TreeRow:
    """One row of a batch, before it is joined with others: keys of `TreeBatch`, in this row's own positions.

    Example:
        >>> row = TreeRow.of([np.array([1, 2, 3]), np.array([1, 2, 4])], np.ones(6, dtype=bool))
        >>> row.tokens.tolist(), row.token_index.tolist()
        ([1, 2, 3, 2, 4], [0, 1, 0, 3])
    """

    tokens: NDArray[np.int64] = field(default_factory=_nothing)
    depths: NDArray[np.int64] = field(default_factory=_nothing)
    labels: NDArray[np.int64] = field(default_factory=_nothing)
    is_token: NDArray[np.int64] = field(default_factory=_nothing)
    subtree_ends: NDArray[np.int64] = field(default_factory=_nothing)
    keys: NDArray[np.int64] = field(default_factory=_nothing)
    segment_ends: NDArray[np.int64] = field(default_factory=_nothing)
    path_ends: NDArray[np.int64] = field(default_factory=_nothing)
    token_index: NDArray[np.int64] = field(default_factory=_nothing)
    sequence_index: NDArray[np.int64] = field(default_factory=_nothing)
    num_sequences: int = 0
    num_forks: int = 0

    @classmethod
    def of(
        cls, sequences: Sequence[Any], trained: NDArray[np.bool_], redactions: NDArray[np.int64] | None = None
    ) -> "TreeRow":
        """Lays out sequences.

        Args:
            sequences: as in `PrefixTree.of`, or none.
            trained: which of their tokens are, sequence after sequence: bool [A].
            redactions: of each sequence, as in `BinBlock`; a token that others share stays.
        """
        if not len(sequences):
            return cls()
        tree = PrefixTree.of(sequences)
        if redactions is not None:
            trained = trained & np.repeat(redactions == AS_IT_IS, np.diff(tree.sequence_ends, prepend=0))
        _, token_index, sequence_index = tree.targets(trained)
        keys, path_ends = tree.paths()
        return cls(
            tokens=tree.tokens if redactions is None else _redacted(tree, redactions),
            depths=tree.depths,
            labels=tree.labels(token_index),
            is_token=np.ones(tree.num_tokens, dtype=np.int64),
            subtree_ends=tree.subtree_ends,
            keys=keys,
            segment_ends=tree.segment_ends,
            path_ends=path_ends,
            token_index=token_index,
            sequence_index=sequence_index,
            num_sequences=len(sequences),
            num_forks=tree.num_forks,
        )

    @property
    def num_tokens(self) -> int:
        """Distinct tokens, and padding."""
        return len(self.tokens)

    def pad(self, size: int, pad_token_id: int) -> None:
        """Fills the row up to a size with padding, which is one more segment."""
        num = len(self.tokens)
        if num >= size:
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


def _redacted(tree: PrefixTree, redactions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the tree's tokens, with those replaced that only redacted sequences have."""
    tokens = tree.tokens.copy()
    paths = np.split(tree.positions, tree.sequence_ends[:-1])
    is_kept = np.zeros(len(tokens), dtype=np.bool_)
    for path, redaction in zip(paths, redactions.tolist(), strict=True):
        if redaction in (AS_IT_IS, MASKED):
            is_kept[path] = True
    for path, redaction in zip(paths, redactions.tolist(), strict=True):
        if redaction not in (AS_IT_IS, MASKED):
            tokens[path[~is_kept[path]]] = redaction
    return tokens


def joined_rows(rows: Sequence[TreeRow], row_tokens: int, *, pad_token_id: int, flatten: bool) -> dict[str, Any]:
    """Joins rows to the keys that every batch of trees has.

    Example:
        >>> row = TreeRow.of([np.array([1, 2])], np.ones(2, dtype=bool))
        >>> joined_rows([row], 3, pad_token_id=0, flatten=False)["labels"].tolist()
        [[2, -100, -100]]

    Args:
        rows: of one batch; they are padded in place.
        row_tokens: L.
        pad_token_id: token of padding.
        flatten: whether rows are joined in one without padding; without any sequence that is one of padding.
    """
    parts = [row for row in rows if row.num_sequences or not flatten] or [TreeRow()]
    is_empty = not any(part.num_sequences for part in parts)
    sizes = [part.num_tokens if flatten and not is_empty else row_tokens for part in parts]
    for part, size in zip(parts, sizes, strict=True):
        part.pad(size, pad_token_id)
    starts = np.cumsum([0, *sizes[:-1]])
    keys_before = np.cumsum([0, *(len(part.keys) for part in parts[:-1])])
    sequences_before = np.cumsum([0, *(part.num_sequences for part in parts[:-1])])
    none = np.zeros(len(parts), dtype=np.int64)
    shape = (1, -1) if flatten else (len(parts), row_tokens)

    def joined(name: str, shifts: NDArray[np.int64]) -> torch.Tensor:
        values = [getattr(part, name) + shift for part, shift in zip(parts, shifts, strict=True)]
        return torch.from_numpy(np.concatenate(values))

    longest = [
        max(int(np.diff(getattr(part, ends), prepend=0).max()) for part in parts)
        for ends in ("segment_ends", "path_ends")
    ]
    return {
        "input_ids": joined("tokens", none).view(shape),
        "position_ids": joined("depths", none).view(shape),
        "labels": joined("labels", none).view(shape),
        "attention_mask": joined("is_token", none).view(shape),
        "subtree_ends": joined("subtree_ends", starts if flatten else none).view(shape),
        "tree_kv_index": joined("keys", starts),
        "tree_cu_seqlens_q": F.pad(joined("segment_ends", starts), (1, 0)).int(),
        "tree_cu_seqlens_k": F.pad(joined("path_ends", keys_before), (1, 0)).int(),
        "tree_max_seqlens": tuple(longest),
        "token_index": joined("token_index", starts),
        "sequence_index": joined("sequence_index", sequences_before),
        "num_forks": sum(part.num_forks for part in parts),
    }
