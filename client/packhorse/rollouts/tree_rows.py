"""`TreeRow`: a row that holds a tree of sequences; `joined_rows`: the keys of a batch of such rows.

Owns how rows are padded and joined. Leaves the tree itself to `prefix_tree`, and the keys' meaning to `tree_batch`.

Legend: B rows, L tokens in a row, A tokens of all sequences of a row, M trained tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from numpy.typing import NDArray

from packhorse.client.batches import IGNORE_INDEX
from packhorse.client.streams import AS_IT_IS, MASKED
from packhorse.rollouts.prefix_tree import PrefixTree


@dataclass(slots=True, kw_only=True, eq=False)
class TreeRow:
    """One row of a batch, before it is joined with others.

    Fields without a docstring are as in `PrefixTree`. Positions count from the row's begin, and padding is at the end.
    Legend: N tokens of the row, S segments, K keys.

    Example:
        >>> row = TreeRow.of([np.array([1, 2, 3]), np.array([1, 2, 4])], np.ones(6, dtype=bool))
        >>> row.tokens.tolist(), row.token_index.tolist()
        ([1, 2, 3, 2, 4], [0, 1, 0, 3])
    """

    tokens: NDArray[np.int64]
    depths: NDArray[np.int64]
    labels: NDArray[np.int64]
    """The next token, if it is trained, else -100: int64 [N]."""
    attention_mask: NDArray[np.int64]
    """1 on tokens, 0 on padding: int64 [N]."""
    subtree_ends: NDArray[np.int64]
    keys: NDArray[np.int64]
    """Positions that each segment's queries attend to, segment after segment (`PrefixTree.paths`): int64 [K]."""
    segment_ends: NDArray[np.int64]
    path_ends: NDArray[np.int64]
    """Exclusive end of each segment's positions in `keys`: int64 [S]."""
    token_index: NDArray[np.int64]
    """Position that predicts each trained token (`PrefixTree.targets`): int64 [M]."""
    sequence_index: NDArray[np.int64]
    """The sequence of each trained token: int64 [M]."""
    num_sequences: int
    num_forks: int

    @classmethod
    def of(
        cls, sequences: Sequence[Any], trained: NDArray[np.bool_], redactions: NDArray[np.int64] | None = None
    ) -> "TreeRow":
        """Lays out sequences.

        Args:
            sequences: as in `PrefixTree.of`; may be empty.
            trained: whether each of their tokens is trained, sequence after sequence: bool [A].
            redactions: redaction of each sequence, as in `BinBlock`; None if there are none. A redacted sequence is not
                trained; its tokens are replaced unless a sequence without a replacement shares them.
        """
        if not len(sequences):
            return cls.empty()
        tree = PrefixTree.of(sequences)
        if redactions is not None:
            lengths = np.diff(tree.sequence_ends, prepend=0)  # ends [3, 7] -> lengths [3, 4]
            trained = trained & np.repeat(redactions == AS_IT_IS, lengths)
        targets = tree.targets(trained)
        keys, path_ends = tree.paths()
        return cls(
            tokens=tree.tokens if redactions is None else _redacted(tree, redactions),
            depths=tree.depths,
            labels=tree.labels(targets.positions),
            attention_mask=np.ones(tree.num_tokens, dtype=np.int64),
            subtree_ends=tree.subtree_ends,
            keys=keys,
            segment_ends=tree.segment_ends,
            path_ends=path_ends,
            token_index=targets.positions,
            sequence_index=targets.sequences,
            num_sequences=len(sequences),
            num_forks=tree.num_forks,
        )

    @classmethod
    def empty(cls) -> "TreeRow":
        """Returns a row without tokens."""
        values: dict[str, Any] = {field.name: np.zeros(0, dtype=np.int64) for field in fields(cls)}
        return cls(**values | {"num_sequences": 0, "num_forks": 0})

    @property
    def num_tokens(self) -> int:
        """Number of distinct tokens, and of padding if the row was padded."""
        return len(self.tokens)

    def pad(self, size: int, pad_token_id: int) -> None:
        """Fills the row with padding up to `size` tokens; the padding is one more segment."""
        num_tokens = len(self.tokens)
        if num_tokens >= size:
            return
        padding = np.arange(num_tokens, size)
        self.tokens = np.append(self.tokens, np.full(len(padding), pad_token_id))
        self.depths = np.append(self.depths, padding - num_tokens)
        self.labels = np.append(self.labels, np.full(len(padding), IGNORE_INDEX))
        self.attention_mask = np.append(self.attention_mask, np.zeros(len(padding), dtype=np.int64))
        self.subtree_ends = np.append(self.subtree_ends, np.full(len(padding), size))
        self.segment_ends = np.append(self.segment_ends, size)
        self.path_ends = np.append(self.path_ends, len(self.keys) + len(padding))
        self.keys = np.append(self.keys, padding)


def _redacted(tree: PrefixTree, redactions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the tree's tokens; those that only sequences with a replacement have are replaced.

    A redaction is AS_IT_IS, MASKED, or else the token that replaces the sequence's tokens.
    """
    tokens = tree.tokens.copy()
    positions_of_sequences = np.split(tree.positions, tree.sequence_ends[:-1])
    for positions, redaction in zip(positions_of_sequences, redactions.tolist(), strict=True):
        if redaction not in (AS_IT_IS, MASKED):
            tokens[positions] = redaction
    # Afterwards, what a sequence without a replacement has comes back.
    for positions, redaction in zip(positions_of_sequences, redactions.tolist(), strict=True):
        if redaction in (AS_IT_IS, MASKED):
            tokens[positions] = tree.tokens[positions]
    return tokens


def joined_rows(rows: Sequence[TreeRow], row_tokens: int, *, pad_token_id: int, flatten: bool) -> dict[str, Any]:
    """Joins rows, and returns the keys that every batch of trees has; `TreeBatch` says what they are.

    Example:
        >>> row = TreeRow.of([np.array([1, 2])], np.ones(2, dtype=bool))
        >>> joined_rows([row], 3, pad_token_id=0, flatten=False)["labels"].tolist()
        [[2, -100, -100]]

    Args:
        rows: rows of one batch; they are padded in place.
        row_tokens: tokens of a row, L.
        pad_token_id: token of padding.
        flatten: whether rows are joined in one without padding. If no row has a sequence, that one is all padding.
    """
    # A flat batch leaves empty rows out, but has at least one row, which is then all padding.
    kept_rows = [row for row in rows if row.num_sequences or not flatten] or [TreeRow.empty()]
    has_tokens = any(row.num_sequences for row in kept_rows)
    sizes = [row.num_tokens if flatten and has_tokens else row_tokens for row in kept_rows]
    for row, size in zip(kept_rows, sizes, strict=True):
        row.pad(size, pad_token_id)
    # What joining adds to numbers in each row: to positions, to ends in `keys`, and to numbers of sequences.
    starts = np.cumsum([0, *sizes[:-1]])
    keys_before = np.cumsum([0, *(len(row.keys) for row in kept_rows[:-1])])
    sequences_before = np.cumsum([0, *(row.num_sequences for row in kept_rows[:-1])])
    unshifted = np.zeros(len(kept_rows), dtype=np.int64)
    shape = (1, -1) if flatten else (len(kept_rows), row_tokens)

    def joined(name: str, shifts: NDArray[np.int64]) -> torch.Tensor:
        """Returns one field of all rows end to end, with each row's shift added."""
        values = [getattr(row, name) + shift for row, shift in zip(kept_rows, shifts, strict=True)]
        return torch.from_numpy(np.concatenate(values))

    # Most tokens of a segment, and most keys of one: the largest difference of two ends.
    longest = [
        max(int(np.diff(getattr(row, ends), prepend=0).max()) for row in kept_rows)
        for ends in ("segment_ends", "path_ends")
    ]
    return {
        "input_ids": joined("tokens", unshifted).view(shape),
        "position_ids": joined("depths", unshifted).view(shape),
        "labels": joined("labels", unshifted).view(shape),
        "attention_mask": joined("attention_mask", unshifted).view(shape),
        "subtree_ends": joined("subtree_ends", starts if flatten else unshifted).view(shape),
        "tree_kv_index": joined("keys", starts),
        "tree_cu_seqlens_q": F.pad(joined("segment_ends", starts), (1, 0)).int(),
        "tree_cu_seqlens_k": F.pad(joined("path_ends", keys_before), (1, 0)).int(),
        "tree_max_seqlens": tuple(longest),
        "token_index": joined("token_index", starts),
        "sequence_index": joined("sequence_index", sequences_before),
        "num_forks": sum(row.num_forks for row in kept_rows),
    }
