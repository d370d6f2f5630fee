"""The part of a rank in a bin that several ranks share: its tokens, its tensors, and counts for the loss.

Owns the three layouts by which the tokens of a row are divided over ranks, a rank's batch under dynamic context
parallelism (in which every sequence has as many ranks as it needs), and its counts. Leaves choosing the ranks of each
sequence to `packhorse.topology.ContextRule`, and process groups to `process_groups`. Exchanging keys and values is the
attention kernel's work.
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
"""How the tokens of a row are divided over ranks; see `context_parallel_indices`."""


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
    """Returns the indices of one rank's tokens under context parallelism, or of all ranks' tokens, rank by rank.

    `zigzag` cuts every segment into 2·size equal chunks. Rank r takes chunks r and 2·size − 1 − r, so that causal
    attention costs each rank the same. Transformer Engine's `thd_get_partitioned_indices` gives the same indices; this
    function needs neither it nor a GPU.

    `contiguous` cuts the row into `size` equal parts, and gives rank r part r; linear attention needs this order.

    `blocks` cuts the row into blocks of `block_tokens` tokens, without regard to segments. Every rank gets the same
    number of blocks, with about the same causal attention to compute. Segments need no alignment. This is for attention
    that reads a mask and all keys, such as FlexAttention; ring attention needs `zigzag`.

    The function does not wait for a device.

    Example:
        >>> offsets = torch.tensor([0, 8, 12])
        >>> context_parallel_indices(offsets, 12, size=2, rank=0).tolist()
        [0, 1, 6, 7, 8, 11]
        >>> context_parallel_indices(torch.tensor([0, 3, 8]), 8, 2, layout="blocks", block_tokens=2).tolist()
        [0, 1, 6, 7, 2, 3, 4, 5]

    Args:
        cu_seqlens: offsets of segments (a segment is the room of a sequence), from 0 to `num_tokens`: integers [s + 1].
            For `zigzag` each must be a multiple of 2·size (`prepare --align`). Offsets are checked only if they are in
            host memory, because reading them from a device would wait for it. For `blocks` they must be in host memory.
            The padding at a row's end must be a segment too, except for `contiguous`.
        num_tokens: T, a multiple of 2·size for `zigzag`, of size for `contiguous`, of size·block_tokens for `blocks`.
        size: number of context-parallel ranks.
        rank: this rank, in [0, size). None for all ranks' indices end to end, in `size` equal parts.
        layout: `zigzag`, `contiguous` or `blocks`.
        block_tokens: tokens of a block, for `blocks`; FlexAttention's blocks have 128.
        restore: whether to return the inverse permutation: `row[indices][inverse]` is the row. Only without a rank.

    Returns:
        int64 [T / size], or [T] without a rank; on the offsets' device. A rank's indices ascend within each segment.

    Raises:
        ValueError: an argument is out of range, `num_tokens` or an offset is not the multiple that the layout needs,
            offsets do not ascend from 0 to `num_tokens`, or they are on a device with layout `blocks`.
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
    """Refuses a row that `layout` cannot divide equally over ranks."""
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
    """Refuses offsets that `layout` cannot divide; offsets on a device are not checked."""
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
    """Returns the indices of a rank's tokens: of each segment the chunks `rank` and 2 · size - 1 - `rank`."""
    offsets = cu_seqlens.to(torch.int64)
    index = torch.arange(num_tokens // size, device=offsets.device)  # among this rank's tokens
    shares = offsets // size  # offsets of the segments among this rank's tokens
    segment = torch.searchsorted(shares[1:].contiguous(), index, right=True)
    start, share = offsets[segment], shares[segment]
    chunk = (shares[segment + 1] - share) // 2
    within = index - share
    # A rank's second chunk is 2 · size - 1 - rank chunks into its segment, and 1 chunk into the rank's share of it.
    return start + within + torch.where(within < chunk, rank, 2 * size - 2 - rank) * chunk


def _dealt_blocks(cu_seqlens: torch.Tensor, num_tokens: int, size: int, block_tokens: int) -> NDArray[np.int64]:
    """Returns the indices of all ranks' tokens in layout `blocks`, rank by rank.

    In each round every rank gets one of the `size` heaviest blocks that are left: the rank with the least work so far
    gets the heaviest, and so on. With 8 ranks and 32,768 tokens of documents of lognormal lengths, no rank has more
    than 1.001 times the mean work. PyTorch's `_PTRRLoadBalancer`, which deals in alternating order, gives up to 1.025.
    """
    segments = PackLayout.of_cu_seqlens(cu_seqlens)
    index = np.arange(num_tokens).reshape(-1, block_tokens)
    # A token attends to the tokens of its segment up to and including itself.
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
    where = _layout_of(batch, rule)
    rank_in_bin = checked_integer("rank", rank, 0) % rule.max_context_parallel
    mine: Sequence[ContextPart | None] = rule.deal(where.rooms.tolist())[rank_in_bin]
    return [_part_of(batch, where, rule, rank, part, layout) for part in mine or (None,)]


def _layout_of(batch: Mapping[str, Any], rule: ContextRule) -> PackLayout:
    """Returns a batch's layout; refuses batches that ranks cannot share, and a rule other than the dataset's."""
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
    """Returns whether a rank, counted within its bin, computes a part."""
    return part.first_rank <= rank_in_bin < part.first_rank + part.num_ranks


def _part_of(
    batch: Mapping[str, Any],
    where: PackLayout,
    rule: ContextRule,
    rank: int,
    part: ContextPart | None,
    layout: ContextParallelLayout | None,
) -> ContextBatch:
    """Returns a rank's tensors of a part of the batch; if `part` is None, those of padding only."""
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
        """Returns a tensor's value at each token of this rank, or `ahead` tokens after it; on padding `of_padding`."""
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

    Sums stay on the parts' device, and the host does not wait for it.

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
    """Sum of the sequences' lengths: int64 []."""
    sum_of_squares: torch.Tensor
    """Sum of the squares of the sequences' lengths: int64 []."""

    @classmethod
    def of_parts(cls, parts: Sequence[ContextBatch]) -> "ContextCounts":
        """Counts a rank's parts, so that sums over all ranks count everything once.

        A sequence is counted on the first of its ranks, and a target on the rank that has it. Without a layout (None)
        all ranks of a part have its targets; then they are counted on the first rank too.

        Args:
            parts: the parts of one optimizer step, at least one, from `context_batch` or `context_batches`.
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
            The sums; the same counts if torch.distributed does not run.
        """
        sums = torch.stack((self.num_targets, self.num_tokens, self.sum_of_squares))
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(sums, group=process_group)
        targets, tokens, squares = sums
        return replace(self, num_targets=targets, num_tokens=tokens, sum_of_squares=squares)
