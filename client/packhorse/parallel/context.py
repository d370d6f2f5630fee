"""What a rank computes of a bin that several ranks share: the layouts of context parallelism, and its dynamic form.

Owns the order in which the tokens of a row are dealt to ranks, a rank's tensors, and what an optimizer step holds.
Leaves which sequences share ranks to `packhorse.topology.ContextRule`, and process groups to `process_groups`. The
attention kernel exchanges keys and values; nothing here does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from packhorse.client import PackLayout
from packhorse.client.batches import IGNORE_INDEX, has_shifted_labels
from packhorse.topology import ContextPart, ContextRule, checked_integer

ContextParallelLayout = Literal["zigzag", "contiguous", "blocks"]


def context_parallel_indices(
    cu_seqlens: torch.Tensor,
    num_tokens: int,
    size: int,
    rank: int | None = None,
    *,
    layout: ContextParallelLayout = "zigzag",
    block_tokens: int = 128,
    restore: bool = False,
) -> torch.Tensor:
    """Returns the indices of one rank's tokens under context parallelism, or those of all ranks.

    `zigzag` cuts every segment into 2·size equal chunks. Rank r takes chunks r and 2·size − 1 − r, so that causal
    attention costs each rank the same. Transformer Engine's `thd_get_partitioned_indices` gives the same indices; this
    function needs neither it nor a GPU.

    `contiguous` gives rank r the r-th of `size` equal parts of the row, as linear attention reads it.

    `blocks` cuts the row into blocks of `block_tokens`, wherever segments end, and deals them so that each rank has as
    many blocks and about as much causal attention to compute. Segments need no alignment. It is for attention that
    reads a mask and all keys, as FlexAttention does; ring attention needs `zigzag`.

    Nothing waits for a device.

    Example:
        >>> offsets = torch.tensor([0, 8, 12])
        >>> context_parallel_indices(offsets, 12, size=2, rank=0).tolist()
        [0, 1, 6, 7, 8, 11]
        >>> context_parallel_indices(torch.tensor([0, 3, 8]), 8, 2, layout="blocks", block_tokens=2).tolist()
        [0, 1, 6, 7, 2, 3, 4, 5]

    Args:
        cu_seqlens: offsets of segments, from 0 to `num_tokens`: integers [s + 1]. For `zigzag` each must be a multiple
            of 2·size (`prepare --align`). They are checked in host memory, and not on a device, because that would wait
            for it. For `blocks` they must be in host memory. The padding at a row's end is a segment too; only
            `contiguous` does without.
        num_tokens: T, a multiple of 2·size for `zigzag`, of size for `contiguous`, of size·block_tokens for `blocks`.
        size: context-parallel ranks.
        rank: this one, in [0, size). None: all ranks' indices end to end, so that part r of `size` equal parts is rank
            r's.
        layout: `zigzag`, `contiguous` or `blocks`.
        block_tokens: tokens of a block; FlexAttention's blocks have 128. Only `blocks` reads it.
        restore: whether to return the inverse instead: `row[indices][inverse]` is the row. Only without a rank.

    Returns:
        int64 [T / size], or [T] without a rank; on the offsets' device. A rank's indices ascend within each segment.

    Raises:
        ValueError: an argument is out of range, `num_tokens` or an offset is not such a multiple, offsets do not ascend
            from 0 to `num_tokens`, or `blocks` finds them on a device.
    """
    if layout not in get_args(ContextParallelLayout):
        raise ValueError(f"layout must be one of {', '.join(get_args(ContextParallelLayout))}; got {layout!r}")
    if size < 1 or block_tokens < 1:
        raise ValueError(f"size and block_tokens must be at least 1, got {size} and {block_tokens}")
    if rank is not None and not 0 <= rank < size:
        raise ValueError(f"rank must be in [0, {size}), got {rank}")
    if rank is not None and restore:
        raise ValueError("restore is the inverse of all ranks' indices; leave rank out")
    _check_multiple(num_tokens, size, layout, block_tokens)
    _check_offsets(cu_seqlens, num_tokens, size, layout)
    if size == 1 or layout == "contiguous":
        index = torch.arange(num_tokens, device=cu_seqlens.device)
    elif layout == "blocks":
        index = torch.from_numpy(_dealt_blocks(cu_seqlens, num_tokens, size, block_tokens))
    elif rank is not None:
        return _zigzag(cu_seqlens, num_tokens, size, rank)
    else:
        index = torch.cat([_zigzag(cu_seqlens, num_tokens, size, each) for each in range(size)])
    if rank is not None:
        return index[rank * (num_tokens // size) : (rank + 1) * (num_tokens // size)]
    return index.argsort() if restore else index


def _check_multiple(num_tokens: int, size: int, layout: ContextParallelLayout, block_tokens: int) -> None:
    unit = {"zigzag": 2 * size, "contiguous": size, "blocks": size * block_tokens}[layout]
    if size == 1 or not num_tokens % unit:
        return
    way_out = {
        "zigzag": f"prepare the dataset with align={unit} and a max_seq_len that is a multiple",
        "contiguous": "prepare the dataset with a max_seq_len that is a multiple",
        "blocks": "prepare the dataset with a max_seq_len that is a multiple, or take smaller block_tokens",
    }[layout]
    raise ValueError(
        f"num_tokens {num_tokens} is not a multiple of {unit}, as {size} context-parallel ranks need in layout "
        f"{layout!r}; {way_out}"
    )


def _check_offsets(cu_seqlens: torch.Tensor, num_tokens: int, size: int, layout: ContextParallelLayout) -> None:
    """Refuses offsets that `layout` cannot divide; those on a device are taken as they are."""
    if not isinstance(cu_seqlens, torch.Tensor) or cu_seqlens.dim() != 1 or not len(cu_seqlens):
        shape = list(cu_seqlens.shape) if isinstance(cu_seqlens, torch.Tensor) else type(cu_seqlens).__name__
        raise ValueError(f"cu_seqlens must be a tensor of integers [segments + 1], got {shape}")
    if size == 1 or cu_seqlens.device.type != "cpu":
        return
    offsets = cu_seqlens.numpy()
    end = int(offsets[-1])
    if offsets[0] != 0 or (np.diff(offsets) < 0).any() or end > num_tokens:
        raise ValueError(
            f"cu_seqlens must ascend from 0 to num_tokens {num_tokens}, got offsets from {offsets[0]} to "
            f"{offsets.max()}"
        )
    if layout != "contiguous" and end != num_tokens:
        raise ValueError(
            f"cu_seqlens ends at {end}, and the row has num_tokens {num_tokens}: append it, so that the padding at the "
            "row's end is a segment of its own"
        )
    unit = 2 * size
    if layout == "zigzag" and (wrong := np.flatnonzero(offsets % unit)).size:
        i = int(wrong[0])
        raise ValueError(
            f"cu_seqlens[{i}] is {offsets[i]}, no multiple of {unit}, as {size} context-parallel ranks need in layout "
            f"'zigzag': prepare the dataset with align={unit}, or take layout 'blocks'"
        )


def _zigzag(cu_seqlens: torch.Tensor, num_tokens: int, size: int, rank: int) -> torch.Tensor:
    offsets = cu_seqlens.to(torch.int64)
    index = torch.arange(num_tokens // size, device=offsets.device)
    shares = offsets // size  # offsets of each segment's tokens among this rank's
    segment = torch.searchsorted(shares[1:].contiguous(), index, right=True)
    start, share = offsets[segment], shares[segment]
    chunk = (shares[segment + 1] - share) // 2
    within = index - share
    # Between a rank's two chunks are those of the other ranks.
    return start + within + torch.where(within < chunk, rank, 2 * size - 2 - rank) * chunk


def _dealt_blocks(cu_seqlens: torch.Tensor, num_tokens: int, size: int, block_tokens: int) -> NDArray[np.int64]:
    """Returns all ranks' indices: round by round, the rank with the least work so far gets the heaviest block left.

    At 8 ranks and 32,768 tokens of lognormal documents no rank has more than 1.001 of the mean work. Dealing to and
    fro, as PyTorch's `_PTRRLoadBalancer` does, gives up to 1.025.
    """
    segments = PackLayout.of_cu_seqlens(cu_seqlens)
    index = np.arange(num_tokens).reshape(-1, block_tokens)
    # A token attends to those of its segment up to itself.
    keys = index.ravel() + 1 - segments.starts.repeat(segments.lengths)
    work = keys.reshape(index.shape).sum(axis=1)
    rounds = np.argsort(-work, kind="stable").reshape(-1, size)
    of_rank = np.zeros(size, dtype=np.int64)
    blocks = np.empty((size, len(rounds)), dtype=np.int64)
    for i, dealt in enumerate(rounds):
        lightest_first = np.argsort(of_rank, kind="stable")
        blocks[lightest_first, i] = dealt
        of_rank[lightest_first] += work[dealt]
    blocks.sort(axis=1)
    return index[blocks].ravel()


@dataclass(frozen=True, kw_only=True)
class ContextBatch:
    """A rank's micro-batch, and the ranks that share its sequences.

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
    """Offsets of the segments among all T tokens, for kernels of context parallelism: int32 [s + 1]."""
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
    """Σ length of the sequences. It is the same on all k ranks, so count it once."""
    sum_of_squares: int
    """Σ length² of the sequences."""


def context_batch(
    batch: Mapping[str, Any], rule: ContextRule, rank: int, *, layout: ContextParallelLayout | None = "zigzag"
) -> ContextBatch:
    """Returns a rank's part of a bin. The other ranks of its context-parallel group call it with the same bin.

    Rank r is in context-parallel group r // K with K = `rule.max_context_parallel`, which is what the loader knows as a
    data-parallel rank.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> batch = next(iter(PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1)))
        >>> parts = [context_batch(batch, ContextRule(4, 2), rank, layout="contiguous") for rank in range(2)]
        >>> [(part.input_ids.tolist(), part.cp_size, part.cp_rank) for part in parts]
        [([[0, 1, 2, 3]], 2, 0), ([[4, 0, 1, 2]], 2, 1)]

    Args:
        batch: one bin, with the keys of `PackedBatch`: batch_size 1, without a preset. Its labels may be shifted.
        rule: the dataset's rule, `Client.get_dataset(name).context_rule`; batches of a prepared dataset have it too.
        rank: this one, counted over all ranks.
        layout: as in `context_parallel_indices`. `zigzag` needs rooms that are multiples of 2·K (`prepare --align`).
            None does not divide sequences, for trainers that do it themselves.

    Raises:
        ValueError: the batch has another form, its dataset another rule, it holds more than the rule's max_seq_len, or
            it cannot be divided.
    """
    where = _layout_of(batch, rule)
    if where.num_rows != 1:
        raise ValueError(f"batch must hold one bin, got {where.num_rows}: take batch_size 1")
    rank_in_bin = checked_integer("rank", rank, 0) % rule.max_context_parallel
    mine = next((part for part in rule.lay_out(where.rooms.tolist()) if _has(part, rank_in_bin)), None)
    return _part_of(batch, where, rule, rank, mine, layout)


def context_batches(
    batch: Mapping[str, Any], rule: ContextRule, rank: int, *, layout: ContextParallelLayout | None = "zigzag"
) -> list[ContextBatch]:
    """Returns a rank's parts of an optimizer step, for ranks that wait for each other only at its end (DDP, ZeRO-1).

    They follow the buddy plan of `ContextRule.deal`: compute them in their order, and reduce gradients once after the
    last. Ranks may have different numbers of parts, each at least one.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> batch = next(iter(PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=2)))
        >>> parts = context_batches(batch, ContextRule(4, 2), 0, layout="contiguous")
        >>> [(part.num_tokens, part.cp_size, part.input_ids.shape[1]) for part in parts]
        [(5, 2, 3), (5, 2, 3), (3, 1, 3)]

    Args:
        batch: all bins that the ranks share in an optimizer step, with the keys of `PackedBatch`.
        rule: as in `context_batch`.
        rank: this one, counted over all ranks.
        layout: as in `context_batch`.

    Raises:
        ValueError: the batch has another form, its dataset another rule, or it cannot be divided.
    """
    where = _layout_of(batch, rule)
    rank_in_bin = checked_integer("rank", rank, 0) % rule.max_context_parallel
    mine: Sequence[ContextPart | None] = rule.deal(where.rooms.tolist())[rank_in_bin]
    return [_part_of(batch, where, rule, rank, part, layout) for part in mine or (None,)]


def _layout_of(batch: Mapping[str, Any], rule: ContextRule) -> PackLayout:
    where = batch.get("layout")
    if not isinstance(where, PackLayout) or "input_ids" not in batch:
        raise ValueError("batch must have PackedBatch's own keys: take no preset, and prefixes='repeated'")
    if "media" in batch:
        raise ValueError("a batch with media cannot be shared by ranks: its images belong to it as a whole")
    if (planned := ContextRule(*batch.get("context_rule", astuple(rule)))) != rule:
        raise ValueError(
            f"rule is {rule!r}, but the dataset was prepared with {planned!r}: take the dataset's own, "
            "Client.get_dataset(name).context_rule"
        )
    return where


def _has(part: ContextPart, rank_in_bin: int) -> bool:
    return part.first_rank <= rank_in_bin < part.first_rank + part.num_ranks


def _part_of(
    batch: Mapping[str, Any],
    where: PackLayout,
    rule: ContextRule,
    rank: int,
    part: ContextPart | None,
    layout: ContextParallelLayout | None,
) -> ContextBatch:
    """A rank's tensors of a part; without one, padding."""
    rank_in_bin = rank % rule.max_context_parallel
    size, first = (1, rank_in_bin) if part is None else (part.num_ranks, part.first_rank)
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
    index = torch.arange(filled + padding)
    if layout is not None:
        index = context_parallel_indices(offsets, filled + padding, size, rank_in_bin - first, layout=layout)
    segment = torch.searchsorted(offsets[1:], index, right=True)
    within = index - offsets[segment]
    source = torch.from_numpy(np.append(where.starts[chosen], 0))[segment] + within
    source, within, is_padding = (each.to(batch["ids"].device) for each in (source, within, segment == len(chosen)))

    def cut(name: str, of_padding: torch.Tensor | int, *, ahead: int = 0) -> torch.Tensor:
        """Each token's own value, or the one of the token after it."""
        row = batch[name].reshape(-1)
        is_none = is_padding | (source + ahead >= len(row))
        return torch.where(is_none, of_padding, row[torch.where(is_none, 0, source + ahead)])[None]

    lengths = where.lengths[chosen]
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


@dataclass(frozen=True, kw_only=True, eq=False)
class ContextCounts:
    """Counts over the micro-steps of an optimizer step: denominators of losses, and input for FLOP counters.

    Sums stay on the parts' device, and nothing waits for it.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> batches = PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1)
        >>> rule = ContextRule(4, 2)
        >>> of_ranks = [[context_batch(batch, rule, rank, layout=None) for batch in batches] for rank in range(2)]
        >>> counts = ContextCounts.of_parts(of_ranks[0])
        >>> counts.num_micro_steps, int(counts.num_tokens), int(counts.sum_of_squares), int(counts.num_targets)
        (2, 16, 68, 12)
    """

    num_micro_steps: int
    """Micro-steps of this rank. With `context_batch` all ranks have the same number."""
    num_targets: torch.Tensor
    """Labels that are predicted: int64 []."""
    num_tokens: torch.Tensor
    """Σ length of the sequences: int64 []."""
    sum_of_squares: torch.Tensor
    """Σ length²: int64 []."""

    @classmethod
    def of_parts(cls, parts: Sequence[ContextBatch]) -> "ContextCounts":
        """Counts a rank's parts, each sequence only on the first of its ranks, and each target where it is computed.

        Without a layout (None) all ranks of a part have its targets, which then count on the first as well.

        Args:
            parts: of one optimizer step, at least one, as `context_batch` or `context_batches` gives them.
        """
        device = parts[0].labels.device
        firsts = [part for part in parts if part.cp_rank == 0]
        targets = [
            (part.labels != IGNORE_INDEX).sum()
            for part in parts
            if part.cp_rank == 0 or part.labels.shape[1] < int(part.cu_seqlens[-1])
        ]
        return cls(
            num_micro_steps=len(parts),
            num_targets=sum(targets, torch.zeros((), dtype=torch.int64, device=device)),
            num_tokens=torch.tensor(sum(part.num_tokens for part in firsts), device=device),
            sum_of_squares=torch.tensor(sum(part.sum_of_squares for part in firsts), device=device),
        )

    def all_reduce(self, process_group: "dist.ProcessGroup | None" = None) -> "ContextCounts":
        """Adds up the counts of all ranks, in one reduction that every rank must call.

        Args:
            process_group: the ranks that share an optimizer step; None for all.

        Returns:
            The sums; the same counts where torch.distributed does not run.
        """
        sums = torch.stack((self.num_targets, self.num_tokens, self.sum_of_squares))
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(sums, group=process_group)
        targets, tokens, squares = sums
        return replace(self, num_targets=targets, num_tokens=tokens, sum_of_squares=squares)
