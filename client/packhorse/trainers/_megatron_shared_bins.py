"""Megatron's dynamic context parallelism: this rank's micro-batches of bins that several ranks share.

`open_shared_bins` opens them, by the user's rule or the dataset's; `SharedBins` makes a micro-batch of each, and adds
up an optimizer step's sums. Leaves dividing a bin to `packhorse.parallel`, and the iterator to `megatron`.
"""

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.distributed as dist

from packhorse.client import LoaderOptions, PackedBatch, PackedDataLoader
from packhorse.client.batches import IGNORE_INDEX
from packhorse.client.connecting import as_server
from packhorse.client.loading.folder import resolve_folder
from packhorse.client.loading.ranks import find_rank
from packhorse.client.options import as_run
from packhorse.client.presets.megatron_alignment import check_segments, segment_multiple
from packhorse.parallel import context_batch
from packhorse.topology import ContextRule
from packhorse.trainers._data import PackedData


@dataclass(frozen=True)
class SharedBins:
    """Dynamic context parallelism: makes this rank's micro-batches of bins that several ranks share.

    Below, "all ranks" are those of data and context parallelism together.
    """

    rule: ContextRule
    """How ranks share a bin."""
    rank: int
    """This rank, counted over all ranks."""
    tensor_parallel_size: int
    """Tensor-parallel ranks; 1 without sequence parallelism."""
    process_group: Any = None
    """The process group of all ranks, to add up sums; None if all ranks share one bin, so that every rank has the sums
    already, or if Megatron's parallel state is not used."""

    def over_ranks(self, sums: tuple[int, int], device: torch.device) -> list[float]:
        """Adds up sums over all ranks; each rank gives the sums of the bins that it shares.

        Each bin is counted by all `rule.max_context_parallel` ranks that share it, so the total is divided by that.
        """
        total = torch.tensor(sums, dtype=torch.float64, device=device)  # whole numbers up to 2^53 are exact
        if self.process_group is not None:
            dist.all_reduce(total, group=self.process_group)
            total /= self.rule.max_context_parallel
        return cast(list[float], total.tolist())

    def micro_batch(self, batch: PackedBatch) -> dict[str, torch.Tensor]:
        """Returns this rank's sequences, not divided over ranks, with the keys of Megatron's packed micro-batches.

        Legend: n sequences with T tokens of room.

        - `tokens`, `labels`, `position_ids`: int64 [T]; `loss_mask`: float32 [T]; `padding_mask`: bool [T].
        - `cu_seqlens`: offsets of lengths; `cu_seqlens_padded`: offsets of rooms; int32 [n + 1] each.
        - `max_seqlen`: the longest room; `local_cp_size`: the ranks that share the sequences; int32 [] each.

        A rank without sequences gets a sequence of padding without loss, which `padding_mask` does not mark: Megatron
        divides the auxiliary loss of experts by the number of unmarked tokens, and 0 of them would make it NaN.
        """
        part = context_batch(batch, self.rule, self.rank, layout=None)
        device, offsets, lengths = part.input_ids.device, part.cu_seqlens.long(), part.lengths
        values = torch.stack([part.input_ids[0], part.labels[0], part.position_ids[0]])
        if part.num_tokens:
            align = segment_multiple(part.cp_size, self.tensor_parallel_size)
            check_segments(offsets.diff().numpy(), align)
        else:  # `values` are one token of padding, which becomes one for each tensor-parallel rank
            lengths = torch.tensor([self.tensor_parallel_size])
            offsets = torch.tensor([0, self.tensor_parallel_size])
            values = values.repeat(1, self.tensor_parallel_size)
        tokens, labels, position_ids = values
        ends = torch.repeat_interleave(offsets[:-1] + lengths, offsets.diff())
        return {
            "tokens": tokens,
            "labels": labels,
            "loss_mask": (labels != IGNORE_INDEX).float(),
            "position_ids": position_ids,
            "padding_mask": (torch.arange(len(ends)) >= ends).to(device),
            "cu_seqlens": torch.cat((lengths.new_zeros(1), lengths.cumsum(0))).to(device, torch.int32),
            "cu_seqlens_padded": offsets.to(device, torch.int32),
            "max_seqlen": offsets.diff().max().to(device, torch.int32),
            "local_cp_size": torch.tensor(part.cp_size, dtype=torch.int32, device=device),
        }


def open_shared_bins(
    data: PackedData, rule_or_true: ContextRule | bool, state: Any, tensor_parallel_size: int, seq_length: int | None
) -> tuple[PackedDataLoader, SharedBins]:
    """Opens the loader of the bins that this rank shares with others, and returns it with what makes micro-batches.

    `rule_or_true` is the rule, or True for the dataset's. `state` is Megatron's parallel state; None if that is not
    initialised.
    """
    rule = _rule_of_dataset(data) if isinstance(rule_or_true, bool) else rule_or_true
    options, process_group = data.loader or LoaderOptions(), None
    if state is None or options.rank is not None:
        rank, num_ranks = find_rank(options.rank)
    else:
        rank = state.get_data_parallel_rank(with_context_parallel=True)
        num_ranks = state.get_data_parallel_world_size(with_context_parallel=True)
        if num_ranks > rule.max_context_parallel:
            process_group = state.get_data_parallel_group(with_context_parallel=True)
    if seq_length not in (None, rule.max_seq_len):
        raise ValueError(f"bins of the rule have {rule.max_seq_len} tokens, and seq_length is {seq_length}")
    options = replace(options, rank=rule.of_loader(rank, num_ranks))
    loader = replace(data, loader=options).open(batch_size=1)
    return loader, SharedBins(rule, rank, tensor_parallel_size, process_group)


def _rule_of_dataset(data: PackedData) -> ContextRule:
    """Asks the server for the rule by which ranks share the dataset's bins; a ValueError if it has none."""
    target, dataset, _ = resolve_folder(data.target, data.dataset, data.tokens)
    server, name = as_server(target), as_run(dataset).dataset

    def ask() -> ContextRule | None:
        with server.open() as client:
            return client.get_dataset(name).context_rule

    rule = server.ask(ask)
    if rule is None:
        raise ValueError(
            f"dynamic_context_parallel needs a dataset prepared with tokens_per_rank, and {name} was not: prepare it "
            "so, or give a ContextRule"
        )
    return rule
