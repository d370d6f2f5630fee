"""`PrefixTree`: sequences laid out in one row that holds each common prefix once.

Owns the tree's layout and which tokens see each other in it. Leaves checks of rows to `flat_rows`, sorting sequences by
their prefixes to `packhorse.wire.prefixes`, and a trainer's keys to `tree_batch` and `trl_async`.

Legend: R sequences of A tokens together, N distinct tokens, S segments, K gathered keys. Positions are here
indices in the row; a path is the chain of segments from a root to a segment.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.batches import IGNORE_INDEX
from packhorse.rollouts.flat_rows import INTEGERS, flatten, range_indices, refuse_flaws
from packhorse.wire.prefixes import by_prefix


class Targets(NamedTuple):
    """The trained tokens of a tree's sequences, sequence after sequence. Legend: M trained tokens."""

    tokens: NDArray[np.int64]
    """Index of each trained token among the A tokens of all sequences: int64 [M]."""
    positions: NDArray[np.int64]
    """Position in the row whose logits predict each trained token: int64 [M]. A position that several sequences share
    occurs once for each of them."""
    sequences: NDArray[np.int64]
    """Sequence of each trained token: int64 [M]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefixTree:
    """Sequences laid out as the tree of their prefixes, depth first.

    A node is a token together with the token after it, so every node has one label, and sequences fork one token before
    they differ. Children come in the order of the first sequence that has them. A segment is a chain of nodes without a
    fork.

    Example:
        >>> tree = PrefixTree.of([[1, 2, 3, 4], [1, 2, 3, 5]])
        >>> tree.tokens.tolist(), tree.depths.tolist()
        ([1, 2, 3, 4, 3, 5], [0, 1, 2, 3, 2, 3])
        >>> tree.next_tokens.tolist(), tree.positions.tolist()
        ([2, 3, 4, -100, 5, -100], [0, 1, 2, 3, 0, 1, 4, 5])
    """

    tokens: NDArray[np.int64]
    """Distinct tokens: int64 [N]."""
    depths: NDArray[np.int64]
    """Number of tokens before each token in its sequences, its position id: int64 [N]."""
    next_tokens: NDArray[np.int64]
    """The one token that follows each token; -100 at a sequence's end: int64 [N]."""
    subtree_ends: NDArray[np.int64]
    """Exclusive end, in the row, of each token's descendants: int64 [N]."""
    segment_ends: NDArray[np.int64]
    """Exclusive end of each segment in the row: int64 [S]."""
    parents: NDArray[np.int64]
    """The parent of each segment, -1 for a root: int64 [S]."""
    positions: NDArray[np.int64]
    """Position in the row of each sequence's tokens, sequence after sequence: int64 [A]."""
    sequence_ends: NDArray[np.int64]
    """Exclusive end of each sequence in `positions`: int64 [R]."""

    @classmethod
    def of(cls, sequences: Sequence[Any]) -> Self:
        """Lays sequences out: array operations over their tokens, a loop over forks, and the path of every segment.

        In a chain of F forks the paths together have about F² segments.

        Args:
            sequences: R rows of token ids from 0, each with at least one: lists, arrays or tensors.

        Raises:
            ValueError: there is no sequence, or one is empty, not 1-D or not of token ids; the message names it.
        """
        if len(sequences) == 0:
            raise ValueError("sequences is empty: there is no tree to build")
        flat, lengths = flatten("sequences", sequences, INTEGERS)
        starts = np.cumsum(lengths) - lengths
        refuse_flaws(((lengths == 0, "is empty; leave it out"),), lambda i: f"sequences[{i}]")
        flat = flat.astype(np.int64, copy=False)
        if flat.min() < 0:
            at = int(flat.argmin())
            index = int(np.searchsorted(starts, at, side="right")) - 1
            raise ValueError(f"sequences[{index}] holds {flat[at]}; a token id is at least 0")
        return cls._of_flat(flat, starts, lengths)

    @classmethod
    def _of_flat(cls, flat: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Self:
        """Lays checked sequences out: their tokens, int64 [A], and each one's start in them and length, int64 [R]."""
        leaves = _Leaves.of(flat, starts, lengths)
        segments = leaves.segments()
        first_depths, parents, segment_of_leaf = segments.first_depths, segments.parents, segments.of_leaves
        sizes = segments.end_depths - first_depths
        segment_ends = np.cumsum(sizes)
        segment_starts = segment_ends - sizes
        in_flat = range_indices(starts[segments.sequences] + first_depths, sizes)  # of each token of the row: int64 [N]
        # At a sequence's end this takes a token of another sequence, or at the end of `flat` its last one: -100 then.
        next_tokens = flat[np.minimum(in_flat + 1, len(flat) - 1)]
        next_tokens[segment_ends[segment_of_leaf] - 1] = IGNORE_INDEX
        # Children come after their parents, so in descending order each child is complete before its parent takes it.
        subtree_ends = segment_ends.copy()
        for segment in range(len(parents) - 1, -1, -1):
            if (parent := parents[segment]) >= 0:
                subtree_ends[parent] = max(subtree_ends[parent], subtree_ends[segment])
        paths = _Paths.of(parents)
        last_segments = segment_of_leaf[leaves.leaf_of]  # of each sequence: int64 [R]
        path_starts = paths.ends - paths.lengths
        # The segments of each sequence from its root to its end, sequence after sequence.
        of_sequences = paths.segments[range_indices(path_starts[last_segments], paths.lengths[last_segments])]
        return cls(
            tokens=flat[in_flat],
            depths=range_indices(first_depths, sizes),
            next_tokens=next_tokens,
            subtree_ends=np.repeat(subtree_ends, sizes),
            segment_ends=segment_ends,
            parents=parents,
            positions=range_indices(segment_starts[of_sequences], sizes[of_sequences]),
            sequence_ends=np.cumsum(lengths),
        )

    @property
    def num_tokens(self) -> int:
        """Number of distinct tokens, N: the row's length."""
        return len(self.tokens)

    @property
    def num_forks(self) -> int:
        """Number of forks: segments with several children."""
        parents = self.parents[self.parents >= 0]
        return int((np.bincount(parents, minlength=1) > 1).sum())

    def targets(self, trained: NDArray[np.bool_]) -> Targets:
        """Returns the trained tokens, with the positions in the row that predict them.

        Args:
            trained: whether each token of the sequences is trained, sequence after sequence: bool [A]. A first token is
                never trained, because nothing predicts it.
        """
        lengths = np.diff(self.sequence_ends, prepend=0)
        is_target = trained.copy()
        is_target[self.sequence_ends - lengths] = False  # first tokens
        tokens = np.flatnonzero(is_target)
        sequence_of_token = np.repeat(np.arange(len(lengths)), lengths)
        # A token is predicted where the token before it in its sequence stands.
        return Targets(tokens, positions=self.positions[tokens - 1], sequences=sequence_of_token[tokens])

    def labels(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the labels of the row: the next token at the given positions, -100 elsewhere: int64 [N]."""
        labels = np.full(self.num_tokens, IGNORE_INDEX, dtype=np.int64)
        labels[positions] = self.next_tokens[positions]
        return labels

    def paths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the keys that each segment's queries attend to, for variable-length kernels.

        Returns:
            For each segment the positions in the row from the root to the segment's end, segment after segment, int64
            [K]; and where each segment's keys end in this array, int64 [S]. The kernel has to align its causal mask at
            the end of queries and keys, as FlashAttention does.
        """
        sizes = np.diff(self.segment_ends, prepend=0)
        paths = _Paths.of(self.parents)
        sizes_in_paths = sizes[paths.segments]
        keys = range_indices((self.segment_ends - sizes)[paths.segments], sizes_in_paths)
        return keys, np.cumsum(sizes_in_paths)[paths.ends - 1]

    def mask(self) -> torch.Tensor:
        """Returns which keys each query sees, for SDPA: bool [N, N]. A token sees itself and its prefix."""
        at = torch.arange(self.num_tokens)
        return (at[None] <= at[:, None]) & (at[:, None] < torch.from_numpy(self.subtree_ends)[None])

    def mask_mod(self, device: torch.device | str = "cpu") -> Callable[..., torch.Tensor]:
        """Returns `mask` as a function of (batch, head, query, key), for FlexAttention on a device.

        Example:
            >>> sees = PrefixTree.of([[1, 2, 4], [1, 2, 5]]).mask_mod()
            >>> [bool(sees(0, 0, torch.tensor(3), torch.tensor(key))) for key in range(4)]
            [True, False, False, True]
        """
        ends = torch.from_numpy(self.subtree_ends).to(device)
        return lambda batch, head, query, key: (key <= query) & (query < ends[key])


class _Segments(NamedTuple):
    """The segments of a tree, depth first."""

    first_depths: NDArray[np.int64]
    """Depth of each segment's first node: int64 [S]."""
    end_depths: NDArray[np.int64]
    """Depth after each segment's last node: int64 [S]."""
    parents: NDArray[np.int64]
    """Each segment's parent, -1 for a root: int64 [S]."""
    sequences: NDArray[np.int64]
    """A sequence that has each segment: int64 [S]."""
    of_leaves: NDArray[np.int64]
    """The segment at which each leaf ends: int64 [n]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Leaves:
    """Distinct sequences in lexicographic order, so that those with a common prefix are neighbours. Legend: n leaves.

    A leaf is a distinct sequence; equal sequences share it. Its last node is its own, also if the leaf is the beginning
    of another one, because its last token predicts none there.
    """

    sequences: NDArray[np.int64]
    """The first sequence of each leaf: int64 [n]."""
    lengths: NDArray[np.int64]
    """Nodes of each leaf, from the root: int64 [n]."""
    shared_nodes: NDArray[np.int64]
    """Nodes, from the root, that each leaf has in common with the leaf before it, 0 for the first: int64 [n]."""
    leaf_of: NDArray[np.int64]
    """Each sequence's leaf: int64 [R]."""

    @classmethod
    def of(cls, flat: NDArray[np.int64], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Self:
        """Finds the leaves; the arguments are those of `PrefixTree._of_flat`."""
        order, shared_nodes = by_prefix(np.split(flat, starts[1:]))
        # Equal sequences are neighbours that share all nodes; the first one makes their leaf.
        is_first = shared_nodes < lengths[order]
        leaf_of = np.empty(len(order), dtype=np.int64)
        leaf_of[order] = np.cumsum(is_first) - 1
        firsts = order[is_first]
        return cls(sequences=firsts, lengths=lengths[firsts], shared_nodes=shared_nodes[is_first], leaf_of=leaf_of)

    def segments(self) -> _Segments:
        """Returns the tree's segments, depth first."""
        segments: list[tuple[int, int, int, int]] = []  # the first four fields of `_Segments`
        of_leaves = np.empty(len(self.lengths), dtype=np.int64)
        # (begin, end, depth, parent): leaves [begin, end) share their first `depth` nodes, up to segment `parent`.
        stack = [(0, len(self.lengths), 0, -1)]
        while stack:
            begin, end, depth, parent = stack.pop()
            if end - begin == 1:  # a leaf, which goes on to its end
                of_leaves[begin] = len(segments)
                segments.append((depth, int(self.lengths[begin]), parent, int(self.sequences[begin])))
                continue
            fork = int(self.shared_nodes[begin + 1 : end].min())  # the depth to which all these leaves are alike
            if fork > depth:  # always, except at the root if sequences begin differently: then there are several roots
                segments.append((depth, fork, parent, int(self.sequences[begin])))
                parent = len(segments) - 1
            later_begins = np.flatnonzero(self.shared_nodes[begin + 1 : end] == fork) + begin + 1
            children = list(pairwise([begin, *later_begins.tolist(), end]))
            # The child with the first sequence is pushed last, so it is popped first.
            children.sort(key=lambda child: -int(self.sequences[child[0] : child[1]].min()))
            stack += [(child_begin, child_end, fork, parent) for child_begin, child_end in children]
        first_depths, end_depths, parents, sequences = np.array(segments, dtype=np.int64).T
        return _Segments(first_depths, end_depths, parents, sequences, of_leaves)


class _Paths(NamedTuple):
    """The path of every segment, path after path: segments from the root to the segment itself."""

    segments: NDArray[np.int64]
    """Segments of all paths: int64 [sum of `lengths`]."""
    lengths: NDArray[np.int64]
    """Segments in each path: int64 [S]."""

    @classmethod
    def of(cls, parents: NDArray[np.int64]) -> Self:
        """Follows the parents, which come before their children: [-1, 0, 0] has paths (0), (0, 1) and (0, 2)."""
        paths: list[list[int]] = []
        for segment, parent in enumerate(parents.tolist()):
            paths.append([*(paths[parent] if parent >= 0 else ()), segment])
        segments = np.array([segment for path in paths for segment in path], dtype=np.int64)
        return cls(segments, lengths=np.array([len(path) for path in paths], dtype=np.int64))

    @property
    def ends(self) -> NDArray[np.int64]:
        """Exclusive end of each path in `segments`: int64 [S]."""
        return np.cumsum(self.lengths)
