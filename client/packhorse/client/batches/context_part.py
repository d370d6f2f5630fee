"""What a rank computes of a bin that a group of ranks shares: dynamic context parallelism.

Owns a rank's tensors and the process groups of every size. Leaves which sequences share ranks to
`packhorse.topology.ContextRule`, and which tokens of them a rank takes to `context_parallel`. The attention kernel
exchanges keys and values; nothing here does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from packhorse.client.batches.context_parallel import ContextParallelLayout, context_parallel_indices
from packhorse.client.batches.layout import IGNORE_INDEX, PackLayout
from packhorse.topology import ContextPart, ContextRule, checked_integer


@dataclass(frozen=True, kw_only=True)
class ContextBatch:
    """A rank's micro-batch, and which ranks share its sequences.

    Legend: k ranks share the sequences, which have T tokens of room together; s segments: the rooms of sequences, and
    padding where the layout needs some. A rank without sequences has k = 1 and one segment of padding. Without a layout
    every rank has all T tokens.
    """

    input_ids: torch.Tensor
    """int64 [1, T / k]."""
    labels: torch.Tensor
    """Shifted: each token's next token, -100 where there is none: int64 [1, T / k]."""
    position_ids: torch.Tensor
    """int64 [1, T / k]."""
    cu_seqlens: torch.Tensor
    """Offsets of the segments among all T tokens, as kernels of context parallelism take them: int32 [s + 1]."""
    max_seqlen: int
    """The longest segment, in tokens."""
    cp_size: int
    """k, a power of two."""
    cp_rank: int
    """This rank among them, in [0, k)."""
    first_rank: int
    """The first of them, counted over all ranks; a multiple of k."""
    ids: torch.Tensor
    """Ids of the sequences, the same on all k ranks: int64 [n]."""
    lengths: torch.Tensor
    """Tokens of each sequence, without the rest of its room: int64 [n], in host memory."""
    num_tokens: int
    """Σ length of the sequences: count it once for k ranks."""
    sum_of_squares: int
    """Σ length² of the sequences."""


def context_batch(
    batch: Mapping[str, Any], rule: ContextRule, rank: int, *, layout: ContextParallelLayout | None = "zigzag"
) -> ContextBatch:
    """Returns a rank's part of a bin; the other ranks of its group call it with the same bin.

    Rank r is in group r // K with K = `rule.max_context_parallel`, and the group is what the loader knows as a
    data-parallel rank.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> batch = next(iter(PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1)))
        >>> parts = [context_batch(batch, ContextRule(4, 2), rank, layout="contiguous") for rank in range(2)]
        >>> [(part.input_ids.tolist(), part.cp_size, part.cp_rank) for part in parts]
        [([[0, 1, 2, 3]], 2, 0), ([[4, 0, 1, 2]], 2, 1)]

    Args:
        batch: one bin, with the keys of `PackedBatch`: batch_size 1, without a preset. Its labels are not shifted yet.
        rule: the dataset's own, `Client.get_dataset(name).context_rule`; batches of a prepared dataset know it too.
        rank: this one, counted over all ranks.
        layout: as in `context_parallel_indices`. `zigzag` needs rooms that are multiples of 2·K (`prepare --align`).
            None leaves sequences whole, for trainers that cut them themselves.

    Raises:
        ValueError: the batch has another form, is of a dataset with another rule, holds more than the rule's
            max_seq_len, or cannot be cut.
    """
    where = _layout_of(batch, rule)
    if where.num_rows != 1:
        raise ValueError(f"batch must hold one bin, got {where.num_rows}: take batch_size 1")
    in_group = checked_integer("rank", rank, 0) % rule.max_context_parallel
    mine = next((part for part in rule.lay_out(where.rooms.tolist()) if _has(part, in_group)), None)
    return _part_of(batch, where, rule, rank, mine, layout)


def context_batches(
    batch: Mapping[str, Any], rule: ContextRule, rank: int, *, layout: ContextParallelLayout | None = "zigzag"
) -> list[ContextBatch]:
    """Returns a rank's parts of an optimizer step, where ranks wait for each other only at its end (DDP, ZeRO-1).

    They follow the buddy plan of `ContextRule.deal`: compute them in their order, and reduce gradients once after the
    last. Ranks may have different numbers of parts, each at least one.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> batch = next(iter(PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=2)))
        >>> parts = context_batches(batch, ContextRule(4, 2), 0, layout="contiguous")
        >>> [(part.num_tokens, part.cp_size, part.input_ids.shape[1]) for part in parts]
        [(5, 2, 3), (5, 2, 3), (3, 1, 3)]

    Args:
        batch: all bins of the group's optimizer step, with the keys of `PackedBatch`.
        rule: as in `context_batch`.
        rank: this one, counted over all ranks.
        layout: as in `context_batch`.

    Raises:
        ValueError: the batch has another form, is of a dataset with another rule, or cannot be cut.
    """
    where = _layout_of(batch, rule)
    in_group = checked_integer("rank", rank, 0) % rule.max_context_parallel
    mine: Sequence[ContextPart | None] = rule.deal(where.rooms.tolist())[in_group]
    return [_part_of(batch, where, rule, rank, part, layout) for part in mine or (None,)]


def _layout_of(batch: Mapping[str, Any], rule: ContextRule) -> PackLayout:
    where = batch.get("layout")
    if not isinstance(where, PackLayout) or "input_ids" not in batch:
        raise ValueError("batch must have PackedBatch's own keys: take no preset")
    if "media" in batch:
        raise ValueError("a batch with media cannot be shared by ranks: its images belong to it as a whole")
    if (planned := ContextRule(*batch.get("context_rule", astuple(rule)))) != rule:
        raise ValueError(
            f"rule is {rule}, but the dataset was prepared with {planned}: take the dataset's own, "
            "Client.get_dataset(name).context_rule"
        )
    return where


def _has(part: ContextPart, in_group: int) -> bool:
    return part.first_rank <= in_group < part.first_rank + part.num_ranks


def _part_of(
    batch: Mapping[str, Any],
    where: PackLayout,
    rule: ContextRule,
    rank: int,
    part: ContextPart | None,
    layout: ContextParallelLayout | None,
) -> ContextBatch:
    """A rank's tensors of a part; without one, padding."""
    in_group = rank % rule.max_context_parallel
    size, first = (1, in_group) if part is None else (part.num_ranks, part.first_rank)
    chosen = np.array(() if part is None else part.indices, dtype=np.int64)
    segments = where.rooms[chosen]
    if layout == "zigzag" and (segments % (2 * size if size > 1 else 1)).any():
        raise ValueError(
            f"zigzag over {size} ranks needs rooms that are multiples of {2 * size}: prepare the dataset with align="
            f"{2 * rule.max_context_parallel}"
        )
    unit = {"blocks": size * 128, None: 1}.get(layout, size)
    filled = int(segments.sum())
    if padding := max(unit, -(-filled // unit) * unit) - filled:
        segments = np.append(segments, padding)
    offsets = torch.from_numpy(np.concatenate(([0], np.cumsum(segments))).astype(np.int32))
    spans = [
        np.arange(start, start + room) for start, room in zip(where.starts[chosen], where.rooms[chosen], strict=True)
    ]
    source = torch.from_numpy(np.concatenate((*spans, np.empty(0, dtype=np.int64))))
    index = torch.arange(filled + padding)
    if layout is not None:
        index = context_parallel_indices(offsets, filled + padding, size, in_group - first, layout=layout)

    def cut(row: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
        return torch.cat((row.reshape(-1)[source.to(row.device)], rest.to(row)))[index.to(row.device)][None]

    next_labels = torch.cat((batch["labels"].reshape(-1)[1:], batch["labels"].new_full((1,), IGNORE_INDEX)))
    lengths = where.lengths[chosen]
    return ContextBatch(
        input_ids=cut(batch["input_ids"], torch.zeros(padding)),
        labels=cut(next_labels, torch.full((padding,), IGNORE_INDEX)),
        position_ids=cut(batch["position_ids"], torch.arange(padding)),
        cu_seqlens=offsets,
        max_seqlen=int(segments.max()),
        cp_size=size,
        cp_rank=in_group - first,
        first_rank=rank - in_group + first,
        ids=batch["ids"][torch.from_numpy(chosen)],
        lengths=torch.from_numpy(lengths),
        num_tokens=int(lengths.sum()),
        sum_of_squares=int((lengths**2).sum()),
    )


def context_process_groups(rule: ContextRule) -> dict[int, "dist.ProcessGroup"]:
    """Makes the process groups of every size once; all ranks call it together.

    Example:
        >>> groups = context_process_groups(ContextRule(8192, 16))  # doctest: +SKIP
        >>> group = groups.get(part.cp_size)  # None where a rank works alone  # doctest: +SKIP

    Args:
        rule: as in `context_batch`.

    Returns:
        Size → the group of so many neighbours that this rank is in, for 2, 4, … `rule.max_context_parallel`.
        `ContextBatch.cp_size` chooses one; its first member is `ContextBatch.first_rank`.

    Raises:
        ValueError: the number of ranks is no multiple of `max_context_parallel`.
    """
    most, world_size = rule.max_context_parallel, dist.get_world_size()
    if world_size % most:
        raise ValueError(f"{world_size} ranks are no multiple of max_context_parallel {most}; start a multiple")
    sizes = [1 << bits for bits in range(1, most.bit_length())]
    return {size: dist.new_subgroups(group_size=size)[0] for size in sizes}  # type: ignore[no-untyped-call]
