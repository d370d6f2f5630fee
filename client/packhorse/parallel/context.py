"""The part of a rank in a bin that several ranks share: its sequences, and its tensors.

Owns a rank's batch under dynamic context parallelism, in which every sequence has as many ranks as it needs. Leaves
choosing the ranks of each sequence to `packhorse.topology.ContextRule`, dividing a row's tokens over them to
`row_layouts`, counts for the loss to `counts`, and process groups to `process_groups`. Exchanging keys and values is
the attention kernel's work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch

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
        >>> parts = [context_batch(batch, ContextRule(4, 2), rank, layout="contiguous") for rank in range(2)]
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
    parts = rule.lay_out(pack_layout.rooms.tolist())
    own = next(
        (part for part in parts if rank_in_bin in range(part.first_rank, part.first_rank + part.num_ranks)), None
    )
    return _part_of(batch, pack_layout, rule, rank, own, layout)


def context_batches(
    batch: Mapping[str, Any], rule: ContextRule, rank: int, *, layout: ContextParallelLayout | None = "zigzag"
) -> list[ContextBatch]:
    """Returns a rank's parts of an optimizer step, for ranks that wait for each other only at its end (DDP, ZeRO-1).

    The parts are those of `ContextRule.deal`. Compute them in their order, and reduce gradients once, after the last.
    Every rank has at least one part, but ranks may have different numbers of them.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> batch = next(iter(PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=2)))
        >>> parts = context_batches(batch, ContextRule(4, 2), 0, layout="contiguous")
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
    own: Sequence[ContextPart | None] = rule.deal(pack_layout.rooms.tolist())[rank_in_bin]
    return [_part_of(batch, pack_layout, rule, rank, part, layout) for part in own or (None,)]


def _layout_of(batch: Mapping[str, Any], rule: ContextRule) -> PackLayout:
    """Returns a batch's layout; refuses batches that ranks cannot share, and a rule other than the dataset's."""
    pack_layout = batch.get("layout")
    if not isinstance(pack_layout, PackLayout) or "input_ids" not in batch:
        raise ValueError("batch must have PackedBatch's own keys: take no preset, and prefixes='repeated'")
    if "media" in batch:
        raise ValueError("a batch with media cannot be shared by ranks: its images belong to it as a whole")
    if (planned := ContextRule(*batch.get("context_rule", astuple(rule)))) != rule:
        raise ValueError(
            f"rule is {rule!r}, but the dataset was prepared with {planned!r}: take the dataset's own, "
            "Client.get_dataset(name).context_rule"
        )
    return pack_layout


def _part_of(
    batch: Mapping[str, Any],
    pack_layout: PackLayout,
    rule: ContextRule,
    rank: int,
    part: ContextPart | None,
    layout: ContextParallelLayout | None,
) -> ContextBatch:
    """Returns a rank's tensors of a part of the batch; if `part` is None, those of padding only."""
    rank_in_bin = rank % rule.max_context_parallel
    size, first = (1, rank_in_bin) if part is None else (part.num_ranks, part.first_rank)
    chosen = np.array(() if part is None else part.indices, dtype=np.int64)
    segments = pack_layout.rooms[chosen]
    if layout == "zigzag" and size > 1 and (segments % (2 * size)).any():
        raise ValueError(
            f"zigzag over {size} ranks needs rooms that are multiples of {2 * size}: prepare the dataset with align="
            f"{2 * rule.max_context_parallel}"
        )
    unit = {"blocks": size * BLOCK_TOKENS, None: 1}.get(layout, size)
    num_filled = int(segments.sum())
    num_tokens = max(unit, -(-num_filled // unit) * unit)
    if num_tokens > num_filled:
        segments = np.append(segments, num_tokens - num_filled)
    offsets = torch.from_numpy(np.concatenate(([0], np.cumsum(segments))).astype(np.int32))
    index = torch.arange(num_tokens)
    if layout is not None:
        index = context_parallel_indices(offsets, num_tokens, size, rank_in_bin - first, layout=layout)
    segment = torch.searchsorted(offsets[1:], index, right=True)
    within = index - offsets[segment]
    source = torch.from_numpy(np.append(pack_layout.starts[chosen], 0))[segment] + within
    source, within, is_padding = (each.to(batch["ids"].device) for each in (source, within, segment == len(chosen)))

    def cut(name: str, of_padding: torch.Tensor | int, *, ahead: int = 0) -> torch.Tensor:
        """Returns a tensor's value at each token of this rank, or `ahead` tokens after it; on padding `of_padding`."""
        row = batch[name].reshape(-1)
        has_none = is_padding | (source + ahead >= len(row))
        return torch.where(has_none, of_padding, row[torch.where(has_none, 0, source + ahead)])[None]

    lengths = pack_layout.lengths[chosen]
    return ContextBatch(
        input_ids=cut("input_ids", 0),
        labels=cut("labels", IGNORE_INDEX, ahead=0 if has_shifted_labels(batch) else 1),
        position_ids=cut("position_ids", within),
        cu_seqlens=offsets,
        max_seqlen=int(segments.max()),
        cp_size=size,
        cp_rank=rank_in_bin - first,
        first_rank=rank - rank_in_bin + first,
        ids=batch["ids"][torch.from_numpy(chosen)],
        lengths=torch.from_numpy(lengths),
        num_tokens=int(lengths.sum()),
        sum_of_squares=int((lengths**2).sum()),
    )
