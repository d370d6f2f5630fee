"""`get_megatron_batch`: gives every rank of a Megatron model its part of a micro-batch, for your own forward step.

Owns sending a micro-batch from the rank that reads to its tensor-parallel peers, and cutting out each rank's part under
context parallelism. Leaves reading to `megatron`. Importing this module needs no Megatron.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from packhorse.client.batches import IGNORE_INDEX
from packhorse.client.loading.peers import broadcast, device_of, first_rank_of
from packhorse.parallel import context_parallel_indices


class MegatronBatch(NamedTuple):
    """The inputs of a forward step, in the order of Megatron's own `get_batch`.

    Legend: T tokens of this context-parallel rank, which are all tokens of the micro-batch divided by the number of
    context-parallel ranks.

    Example:
        >>> tokens, labels, loss_mask, attention_mask, position_ids, padding_mask, packed_seq_params = (
        ...     get_megatron_batch(batches)
        ... )  # doctest: +SKIP
    """

    tokens: torch.Tensor | None
    """int64 [1, T]; None if the rank has neither embedding nor multi-token prediction."""
    labels: torch.Tensor | None
    """Shifted labels: int64 [1, T]; -100 if a token has no target. None if the rank has neither the last pipeline stage
    nor multi-token prediction."""
    loss_mask: torch.Tensor | None
    """float32 [1, T]; 0 exactly where labels are -100. None if labels are None."""
    attention_mask: None
    """Always None, because offsets separate the sequences."""
    position_ids: torch.Tensor | None
    """int64 [1, T]; None if tokens are None."""
    padding_mask: torch.Tensor
    """bool [1, T], True on padding; GPTModel takes it, so that experts do not see padding."""
    packed_seq_params: Any
    """Megatron's PackedSeqParams, with the offsets of the whole micro-batch, as Transformer Engine needs them.

    No segment is empty, because Megatron's multi-token prediction fails at empty segments under context parallelism. So
    the number of segments differs between micro-batches, also with `megatron_lm_preset(max_sequences=…)`.
    """


def get_megatron_batch(data_iterator: Any, *, mtp_on_this_rank: bool = False) -> MegatronBatch:
    """Returns this rank's part of the next micro-batch. All ranks of a model must call it.

    The first tensor-parallel rank takes the micro-batch from `data_iterator` and sends it to its peers. Rows are laid
    end to end. Under context parallelism each rank keeps its chunks of every segment (`context_parallel_indices`). The
    function needs megatron-core, but neither Transformer Engine nor a GPU.

    Example:
        >>> batch = get_megatron_batch(data_iterator)  # doctest: +SKIP
        >>> losses = model(
        ...     batch.tokens,
        ...     batch.position_ids,
        ...     None,
        ...     labels=batch.labels,
        ...     packed_seq_params=batch.packed_seq_params,
        ... )  # doctest: +SKIP

    Args:
        data_iterator: the result of `create_megatron_iterator`, also if it is None, or Megatron's wrapper around it.
        mtp_on_this_rank: whether multi-token prediction runs on this rank; it needs tokens and labels.

    Raises:
        ImportError: megatron-core is not installed.
        ValueError: this rank must read, but has no iterator.
    """
    try:
        from megatron.core import parallel_state
        from megatron.core.packed_seq_params import PackedSeqParams
    except ModuleNotFoundError as error:
        raise ImportError("get_megatron_batch needs Megatron: install megatron-core") from error
    has_tokens = mtp_on_this_rank or parallel_state.is_pipeline_first_stage(ignore_virtual=True)
    has_labels = mtp_on_this_rank or parallel_state.is_pipeline_last_stage(ignore_virtual=True)
    inputs = ("tokens", "position_ids") if has_tokens else ()
    targets = ("labels",) if has_labels else ()
    keys = (*inputs, *targets, "padding_mask")
    group = parallel_state.get_tensor_model_parallel_group()
    if parallel_state.get_tensor_model_parallel_rank() == 0:
        if data_iterator is None:
            raise ValueError(
                "data_iterator is None on a rank that reads, the first of its tensor-parallel group; make it with "
                "create_megatron_iterator once Megatron's parallel state is initialised"
            )
        batch = next(data_iterator)
        make = _MicroBatch.of_shared_bin if "local_cp_size" in batch else _MicroBatch.of_rows
        micro_batch = make(batch, keys)
        micro_batch.send(group)
    else:
        micro_batch = _MicroBatch.receive(group, len(keys))
    dynamic: dict[str, Any] = {}  # what PackedSeqParams has only under dynamic context parallelism
    if micro_batch.cp_size:
        cp_size = micro_batch.cp_size
        cp_group = _context_group(parallel_state, cp_size) if cp_size > 1 else None
        cp_rank = dist.get_rank(cp_group) if cp_size > 1 else 0
        dynamic = {"local_cp_size": cp_size, "cp_group": cp_group}
    else:
        cp_size = parallel_state.get_context_parallel_world_size()
        cp_rank = parallel_state.get_context_parallel_rank() if cp_size > 1 else 0
    values = micro_batch.values
    if cp_size > 1:
        values = values[:, context_parallel_indices(micro_batch.cu_seqlens, values.shape[1], cp_size, cp_rank)]
    of_keys = dict(zip(keys, torch.split(values, 1), strict=True))
    labels = of_keys.get("labels")
    return MegatronBatch(
        tokens=of_keys.get("tokens"),
        labels=labels,
        loss_mask=None if labels is None else (labels != IGNORE_INDEX).float(),
        attention_mask=None,
        position_ids=of_keys.get("position_ids"),
        padding_mask=of_keys["padding_mask"].bool(),
        packed_seq_params=PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=micro_batch.cu_seqlens,
            cu_seqlens_kv=micro_batch.cu_seqlens,
            cu_seqlens_q_padded=micro_batch.cu_seqlens,
            cu_seqlens_kv_padded=micro_batch.cu_seqlens,
            max_seqlen_q=micro_batch.max_seqlen,
            max_seqlen_kv=micro_batch.max_seqlen,
            **dynamic,
        ),
    )


def _context_group(parallel_state: Any, size: int) -> dist.ProcessGroup:
    """Returns this rank's process group of `size` neighbours. Megatron has named the function in two ways."""
    name = "get_dynamic_data_context_parallel_groups"
    if not hasattr(parallel_state, name):
        name = "get_hybrid_data_context_parallel_groups"
    return getattr(parallel_state, name)(group_size=size)


class _MicroBatch(NamedTuple):
    """A micro-batch with its rows end to end, as the rank that reads sends it to its peers.

    Legend: T tokens of all rows, s segments.
    """

    values: torch.Tensor
    """A row for each key that the pipeline stage needs: int64 [keys, T]."""
    cu_seqlens: torch.Tensor
    """Offsets of the segments: int32 [s + 1]."""
    max_seqlen: int
    """The longest segment."""
    cp_size: int = 0
    """The micro-batch's context-parallel size under dynamic context parallelism; else 0."""

    @classmethod
    def of_shared_bin(cls, batch: Mapping[str, torch.Tensor], keys: tuple[str, ...]) -> "_MicroBatch":
        """Makes one from a micro-batch under dynamic context parallelism, whose values are end to end already: [T]."""
        return cls(
            values=torch.stack([batch[key].to(torch.int64) for key in keys]),
            cu_seqlens=batch["cu_seqlens_padded"],
            max_seqlen=int(batch["max_seqlen"]),
            cp_size=int(batch["local_cp_size"]),
        )

    @classmethod
    def of_rows(cls, batch: Mapping[str, torch.Tensor], keys: tuple[str, ...]) -> "_MicroBatch":
        """Makes one from a micro-batch of rows, each with its own offsets."""
        num_rows, row_tokens = batch["tokens"].shape
        row_begins = torch.arange(num_rows, dtype=torch.int32, device=batch["cu_seqlens"].device) * row_tokens
        # A row's end is the next row's beginning, and rows with fewer segments repeat their end. Without repeats no
        # segment is empty: multi-token prediction under context parallelism takes the last token of each one.
        offsets = torch.unique_consecutive((batch["cu_seqlens"] + row_begins[:, None]).flatten())
        values = [batch[key].reshape(-1).to(torch.int64) for key in keys]
        return cls(
            values=torch.stack(values),
            cu_seqlens=offsets,
            max_seqlen=int(batch["max_seqlen"].max()),
        )

    def send(self, group: dist.ProcessGroup) -> None:
        """Sends this micro-batch to the peers of the group's first rank: its sizes, then everything in one tensor."""
        if dist.get_world_size(group) == 1:
            return
        device, first = device_of(group), first_rank_of(group)
        sizes = [self.values.shape[1], len(self.cu_seqlens), self.max_seqlen, self.cp_size]
        broadcast(torch.tensor(sizes, dtype=torch.int64, device=device), group, first)
        broadcast(torch.cat([self.values.flatten(), self.cu_seqlens.to(torch.int64)]).to(device), group, first)

    @classmethod
    def receive(cls, group: dist.ProcessGroup, num_keys: int) -> "_MicroBatch":
        """Receives a micro-batch that the group's first rank sends, with the same `num_keys`."""
        device, first = device_of(group), first_rank_of(group)
        num_tokens, num_offsets, max_seqlen, cp_size = broadcast(
            torch.empty(4, dtype=torch.int64, device=device), group, first
        ).tolist()
        received = torch.empty(num_keys * num_tokens + num_offsets, dtype=torch.int64, device=device)
        values, offsets = torch.split(broadcast(received, group, first), [num_keys * num_tokens, num_offsets])
        return cls(values.view(num_keys, num_tokens), offsets.to(torch.int32), max_seqlen, cp_size)
