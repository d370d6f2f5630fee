"""The part of a rank in a bin that several ranks share: its sequences, and its tensors.

Owns a rank's batch under dynamic context parallelism, in which every sequence has as many ranks as it needs. Leaves
choosing the ranks of each sequence to `packhorse.topology.ContextRule`, dividing a row's tokens over them to
`row_layouts`, counts for the loss to `counts`, and process groups to `process_groups`. Exchanging keys and values is
the attention kernel's work.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client import PackLayout
from packhorse.client.batches import IGNORE_INDEX, has_shifted_labels
from packhorse.parallel.row_layouts import BLOCK_TOKENS, ContextParallelLayout, context_parallel_indices
from packhorse.topology import ContextPart, ContextRule, checked_integer


@dataclass(frozen=True, kw_only=True)
class ContextBatch:
    """A rank's micro-batch under dynamic context parallelism, and which ranks share its sequences.

    Legend: k ranks share n sequences in s segments: the rooms of the sequences, and one of padding if the layout needs
    it. The segments have T tokens together, of which each rank has T / k; without a layout (None) every rank has all T.
    A rank without sequences has k = 1 and one segment of padding.
    """

    input_ids: torch.Tensor
    """Tokens of this rank, 0 on padding: int64 [1, T / k]."""
    labels: torch.Tensor
    """Shifted labels: each token's next token, -100 if it is no target: int64 [1, T / k]."""
    position_ids: torch.Tensor
    """Index of each token in its sequence: int64 [1, T / k]."""
    cu_seqlens: torch.Tensor
    """Offsets of the segments among all T tokens, for kernels of context parallelism: int32 [s + 1]."""
    max_seqlen: int
    """The longest segment, in tokens."""
    cp_size: int
    """k, the ranks that share the sequences; a power of two."""
    cp_rank: int
    """This rank among these k, in [0, k)."""
    first_rank: int
    """The first of these k ranks, counted over all ranks; a multiple of k."""
    ids: torch.Tensor
    """Ids of the sequences, the same on all k ranks: int64 [n]."""
    lengths: torch.Tensor
    """Length of each sequence, without the rest of its room: int64 [n], in host memory."""
    num_tokens: int
    """Sum of the sequences' lengths. All k ranks have the same sum, so count it on one of them."""
    sum_of_squares: int
    """Sum of the squares of the sequences' lengths; the same on all k ranks."""


def context_batch(
    batch: Mapping[str, Any], rule: ContextRule, rank: int, *, layout: ContextParallelLayout | None = "zigzag"
) -> ContextBatch:
    """Returns a rank's part of a bin. The other ranks of its context-parallel group call it with the same bin.

    Rank r is in context-parallel group r // K, with K = `rule.max_context_parallel`. The loader takes the number of the
    context-parallel group as its data-parallel rank.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> batch = next(iter(PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1)))
        >>> rule = ContextRule(tokens_per_rank=4, max_context_parallel=2)
        >>> parts = [context_batch(batch, rule, rank, layout="contiguous") for rank in range(2)]
        >>> [(part.input_ids.tolist(), part.cp_size, part.cp_rank) for part in parts]
        [([[0, 1, 2, 3]], 2, 0), ([[4, 0, 1, 2]], 2, 1)]

    Args:
        batch: one bin, with the keys of `PackedBatch`: batch_size 1, without a preset. Its labels may be shifted.
        rule: the dataset's rule, `Client.get_dataset(name).context_rule`; batches of a prepared dataset have it too.
        rank: this rank, counted over all ranks.
        layout: as in `context_parallel_indices`. `zigzag` needs rooms that are multiples of 2·K (`prepare --align`).
            None does not divide sequences, for trainers that divide them themselves.

    Raises:
        ValueError: the batch has another form, its dataset another rule, it holds more than the rule's max_seq_len, or
            it cannot be divided.
    """
    pack_layout = _layout_of(batch, rule)
    if pack_layout.num_rows != 1:
        raise ValueError(f"batch must hold one bin, got {pack_layout.num_rows}: take batch_size 1")
    rank_in_bin = checked_integer("rank", rank, 0) % rule.max_context_parallel
    for part in rule.lay_out(pack_layout.rooms.tolist()):
        if part.first_rank <= rank_in_bin < part.first_rank + part.num_ranks:
            return _share_of_part(batch, pack_layout, rule, rank, part, layout)
    return _share_of_part(batch, pack_layout, rule, rank, _empty_part(rank_in_bin), layout)


def context_batches(
    batch: Mapping[str, Any], rule: ContextRule, rank: int, *, layout: ContextParallelLayout | None = "zigzag"
) -> list[ContextBatch]:
    """Returns a rank's parts of an optimizer step, for ranks that wait for each other only at its end (DDP, ZeRO-1).

    The parts are those of `ContextRule.deal`. Compute them in their order, and reduce gradients once, after the last.
    Every rank has at least one part, but ranks may have different numbers of them.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> batch = next(iter(PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=2)))
        >>> rule = ContextRule(tokens_per_rank=4, max_context_parallel=2)
        >>> parts = context_batches(batch, rule, rank=0, layout="contiguous")
        >>> [(part.num_tokens, part.cp_size, part.input_ids.shape[1]) for part in parts]
        [(5, 2, 3), (5, 2, 3), (3, 1, 3)]

    Args:
        batch: all bins that the ranks share in an optimizer step, with the keys of `PackedBatch`.
        rule: as in `context_batch`.
        rank: this rank, counted over all ranks.
        layout: as in `context_batch`.

    Raises:
        ValueError: the batch has another form, its dataset another rule, or it cannot be divided.
    """
    pack_layout = _layout_of(batch, rule)
    rank_in_bin = checked_integer("rank", rank, 0) % rule.max_context_parallel
    parts = rule.deal(pack_layout.rooms.tolist())[rank_in_bin] or [_empty_part(rank_in_bin)]
    return [_share_of_part(batch, pack_layout, rule, rank, part, layout) for part in parts]


def _layout_of(batch: Mapping[str, Any], rule: ContextRule) -> PackLayout:
    """Returns a batch's layout; refuses batches that ranks cannot share, and a rule other than the dataset's."""
    pack_layout = batch.get("layout")
    if not isinstance(pack_layout, PackLayout) or "input_ids" not in batch:
        raise ValueError("batch must have PackedBatch's own keys: take no preset, and prefixes='repeated'")
    if "media" in batch:
        raise ValueError("a batch with media cannot be shared by ranks: its images belong to it as a whole")
    planned = ContextRule(*batch["context_rule"]) if "context_rule" in batch else rule
    if planned != rule:
        raise ValueError(
            f"rule is {rule!r}, but the dataset was prepared with {planned!r}: take the dataset's own, "
            "Client.get_dataset(name).context_rule"
        )
    return pack_layout


def _empty_part(rank_in_bin: int) -> ContextPart:
    """Returns the part of a rank without sequences, which computes a segment of padding by itself."""
    return ContextPart(first_rank=rank_in_bin, num_ranks=1, indices=())


def _share_of_part(
    batch: Mapping[str, Any],
    pack_layout: PackLayout,
    rule: ContextRule,
    rank: int,
    part: ContextPart,
    layout: ContextParallelLayout | None,
) -> ContextBatch:
    """Returns what a rank computes of a part of the batch; `pack_layout` says where the batch's sequences lie."""
    sequences = np.array(part.indices, dtype=np.int64)  # indices of the part's sequences in the batch: int64 [n]
    cp_rank = rank % rule.max_context_parallel - part.first_rank
    cu_seqlens = _segment_offsets(pack_layout.rooms[sequences], part.num_ranks, rule, layout)
    tokens = _tokens_of_rank(cu_seqlens, pack_layout.starts[sequences], part.num_ranks, cp_rank, layout)
    tokens = tokens.to(batch["ids"].device)
    lengths = pack_layout.lengths[sequences]
    return ContextBatch(
        input_ids=tokens.values_of(batch["input_ids"], 0),
        labels=tokens.values_of(batch["labels"], IGNORE_INDEX, ahead=0 if has_shifted_labels(batch) else 1),
        position_ids=tokens.values_of(batch["position_ids"], tokens.places),
        cu_seqlens=cu_seqlens,
        max_seqlen=int(cu_seqlens.diff().max()),
        cp_size=part.num_ranks,
        cp_rank=cp_rank,
        first_rank=rank - cp_rank,
        ids=batch["ids"][torch.from_numpy(sequences)],
        lengths=torch.from_numpy(lengths),
        num_tokens=int(lengths.sum()),
        sum_of_squares=int((lengths**2).sum()),
    )


def _segment_offsets(
    rooms: NDArray[np.int64], num_ranks: int, rule: ContextRule, layout: ContextParallelLayout | None
) -> torch.Tensor:
    """Returns the offsets of a part's segments: its rooms, then padding up to a number of tokens that can be divided.

    Args:
        rooms: tokens of the rooms: int64 [n].
        num_ranks: ranks that divide the part.
        rule: the dataset's rule, for the text of an error.
        layout: how they divide it; None if they do not.

    Returns:
        int32 [s + 1], in host memory.

    Raises:
        ValueError: zigzag cannot divide a room.
    """
    if layout == "zigzag" and num_ranks > 1 and (rooms % (2 * num_ranks)).any():
        raise ValueError(
            f"zigzag over {num_ranks} ranks needs rooms that are multiples of {2 * num_ranks}: prepare the dataset "
            f"with align={2 * rule.max_context_parallel}"
        )
    unit = _tokens_multiple_of(num_ranks, layout)
    num_filled = int(rooms.sum())
    num_padding = max(unit, -(-num_filled // unit) * unit) - num_filled  # a part without sequences is one unit
    segments = np.append(rooms, num_padding) if num_padding else rooms
    return torch.from_numpy(np.concatenate(([0], np.cumsum(segments))).astype(np.int32))


def _tokens_multiple_of(num_ranks: int, layout: ContextParallelLayout | None) -> int:
    """Returns the number of which a part's tokens must be a multiple, for its ranks to divide them by the layout."""
    if layout is None:
        return 1
    if layout == "blocks":
        return num_ranks * BLOCK_TOKENS
    return num_ranks  # for zigzag too, since its rooms are multiples of 2 · num_ranks already


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankTokens:
    """Where the tokens that a rank computes of a part come from. Legend: t tokens."""

    indices: torch.Tensor
    """Index of each token among all tokens of the batch: int64 [t]; has no meaning on padding."""
    places: torch.Tensor
    """Index of each token in its segment: int64 [t]."""
    is_padding: torch.Tensor
    """Whether each token is in the segment of padding: bool [t]."""

    def to(self, device: torch.device) -> "_RankTokens":
        """Returns the same tokens, with all tensors on the device."""
        return _RankTokens(
            indices=self.indices.to(device), places=self.places.to(device), is_padding=self.is_padding.to(device)
        )

    def values_of(self, rows: torch.Tensor, of_padding: torch.Tensor | int, *, ahead: int = 0) -> torch.Tensor:
        """Returns the value of each token, or of the token `ahead` after it, as one row: [1, t].

        Args:
            rows: values of all tokens of the batch: [B, L].
            of_padding: the value on padding, and where no token is so far ahead; one for all, or [t].
            ahead: number of tokens between a token and the one whose value it gets.
        """
        values = rows.reshape(-1)
        wanted = self.indices + ahead
        has_none = self.is_padding | (wanted >= len(values))
        any_index = 0  # where there is no value: whatever is read there is replaced
        return torch.where(has_none, of_padding, values[torch.where(has_none, any_index, wanted)])[None]


def _tokens_of_rank(
    cu_seqlens: torch.Tensor,
    starts: NDArray[np.int64],
    num_ranks: int,
    cp_rank: int,
    layout: ContextParallelLayout | None,
) -> _RankTokens:
    """Returns the tokens of a part that a rank computes; all of them if `layout` is None.

    Args:
        cu_seqlens: offsets of the part's segments: int32 [s + 1].
        starts: index among all tokens of the batch of the first token of each sequence: int64 [n].
        num_ranks: ranks that share the part.
        cp_rank: this rank among them.
        layout: how they divide the tokens.
    """
    num_tokens = int(cu_seqlens[-1])
    in_part = torch.arange(num_tokens)  # index of each token among the part's tokens
    if layout is not None:
        in_part = context_parallel_indices(cu_seqlens, num_tokens, num_ranks, cp_rank, layout=layout)
    segment = torch.searchsorted(cu_seqlens[1:], in_part, right=True)  # [t]; offsets [0, 5, 8]: token 5 -> 1
    places = in_part - cu_seqlens[segment]
    segment_starts = torch.from_numpy(np.append(starts, 0))  # 0 stands for the segment of padding
    return _RankTokens(indices=segment_starts[segment] + places, places=places, is_padding=segment == len(starts))
