"""`pack_rollouts`: from queries and responses to packed batches for policy-gradient training (such as GRPO).

Owns the keys that a batch of rollouts has besides those of every batch, making a batch from bins, and the lists of
indices for trainers that pack themselves (`as_micro_batches`). Leaves checks to `given`, the keys of every batch to
`packhorse.client.batches`, batches of trees to `tree_batch`, the choice of bins to the service's planner, and the loss
to the trainer.
"""

from collections.abc import Sequence
from typing import Any, Literal, Unpack, overload

import numpy as np
import torch

from packhorse.client import BatchAssembler, BinBlock, Client, PackedBatch
from packhorse.client.batches import IGNORE_INDEX
from packhorse.client.options import DEFAULT_PACKING, PackOptions
from packhorse.client.transport.requests import NO_RESOURCES, Resources
from packhorse.losses import SequenceGroups
from packhorse.rollouts.flat_rows import range_indices
from packhorse.rollouts.given import FlatRollouts, Rollouts
from packhorse.rollouts.pack_versions import versions_of_packs
from packhorse.rollouts.steps import SharedOptions, assembler_of, bins_of_steps, block_of
from packhorse.rollouts.tree_batch import TreeBatch, tree_batch
from packhorse.rollouts.tree_packs import bins_of_trees
from packhorse.tokens import IndexableSource


class RolloutBatch(PackedBatch):
    """A packed batch of rollouts: each sequence is a query and its response. Legend: B rows, L tokens, n sequences.

    It is a PackedBatch, so masks, `cu_seqlens` and loss weights are made as for any other. `labels` are -100 except on
    trained tokens: tokens of responses that no tool wrote.

    All keys of shape [B, L] below are aligned with `labels`. Without `shift_labels`, entry t belongs to token t, whose
    logits are at t - 1: take `[:, 1:]` of the key and `[:, :-1]` of the logits. With `shift_labels`, entry t belongs to
    token t + 1, whose logits are at t. Entries that belong to no response token are False or 0, never NaN, because
    multiplying NaN by a mask's 0 gives NaN.

    `ids` are the rollouts' indices into `queries` and `responses`.

    Example:
        >>> rollouts = Rollouts(queries=[[1, 2]], responses=[[7, 8]], advantages=[0.5])
        >>> [batch] = pack_rollouts(rollouts, max_seq_len=5, pad_token_id=0)
        >>> batch["response_mask"].int().tolist(), batch["advantages"].tolist()
        ([[0, 0, 1, 1, 0]], [[0.0, 0.0, 0.5, 0.5, 0.0]])
    """

    response_mask: torch.Tensor
    """Tokens of responses, including those that tools wrote: bool [B, L]."""
    tool_mask: torch.Tensor
    """Tokens that tools wrote inside responses: attended to, never trained: bool [B, L]."""
    dones: torch.Tensor
    """Last token of every finished rollout: bool [B, L]."""
    advantages: torch.Tensor
    """Advantage of each token: float32 [B, L]; 0 on tools' tokens."""
    logprobs: torch.Tensor
    """Log-probabilities under the policy that wrote the tokens: float32 [B, L]; 0 on tools' tokens."""
    reference_logprobs: torch.Tensor
    """Log-probabilities under the reference policy: float32 [B, L]; 0 on tools' tokens."""
    rewards: torch.Tensor
    """Reward of each token: float32 [B, L]; if one is given for a whole rollout, it is at the last token."""
    groups: SequenceGroups
    """Which sequences answer the same query. Groups are numbered over all batches of the call, so a group has the same
    number on all ranks.
    """
    shift_labels: bool
    """Whether labels, and all values aligned with them, are for the next token."""
    policy_versions: torch.Tensor
    """Version of the policy that wrote each rollout: int64 [n]."""
    pack_policy_versions: torch.Tensor
    """The one version of each pack's rollouts, -1 for an empty pack: int64 [packs]. The packs are the batch's rows; if
    it is flattened, the parts of its one row.
    """


@overload
def pack_rollouts(
    rollouts: Rollouts,
    *,
    max_seq_len: int,
    pad_token_id: int,
    resources: Resources = NO_RESOURCES,
    shift_labels: bool = False,
    prefixes: Literal["repeated"] = "repeated",
    **options: Unpack[SharedOptions],
) -> list[RolloutBatch]: ...


@overload
def pack_rollouts(
    rollouts: Rollouts,
    *,
    max_seq_len: int,
    pad_token_id: int,
    resources: Resources = NO_RESOURCES,
    shift_labels: bool = True,
    prefixes: Literal["tree"],
    max_trained_tokens: int | None = None,
    **options: Unpack[SharedOptions],
) -> list[TreeBatch]: ...


def pack_rollouts(
    rollouts: Rollouts,
    *,
    max_seq_len: int,
    pad_token_id: int,
    client: Client | None = None,
    world_size: int = 1,
    batch_size: int = 1,
    packing: PackOptions = DEFAULT_PACKING,
    resources: Resources = NO_RESOURCES,
    shift_labels: bool | None = None,
    flatten: bool = False,
    prefixes: Literal["repeated", "tree"] = "repeated",
    max_trained_tokens: int | None = None,
    **rows: Any,
) -> list[RolloutBatch] | list[TreeBatch]:
    """Packs rollouts into batches, the same number for every rank.

    Example:
        >>> rollouts = Rollouts(queries=[[1, 2], [1, 2], [3]], responses=[[7], [8, 9], [6]])
        >>> first, second = pack_rollouts(rollouts, max_seq_len=5, pad_token_id=0, world_size=2)
        >>> first["input_ids"].tolist(), second["input_ids"].tolist()
        ([[1, 2, 8, 9, 0]], [[1, 2, 7, 3, 6]])

    Args:
        rollouts: queries and responses, with the values of their tokens.
        max_seq_len: a bin's capacity in tokens.
        pad_token_id: token that fills a bin's free end.
        client: whose server packs; None packs in this process, which needs packhorse[server]. The bins are the same.
        world_size: the number of batches is made a multiple of it; rank r takes `batches[r::world_size]`.
        batch_size: bins in a batch.
        packing: the packer, its limits, and how ranks are balanced. With `allow_empty`, if there are fewer rollouts
            than bins, the other bins are all padding. Their labels are -100, so `build_loss_weights` gives them weight
            0: their rank takes part in the step and adds nothing.
        resources: what rollouts need besides tokens, such as image tiles: name → (amount for each rollout, int
            [rollouts]; cap of a bin).
        shift_labels: False: a label, and every value aligned with it, is for the token at its index. True: for the next
            token, as it always is in trees. None: False, or True in trees.
        flatten: whether a batch's rollouts are joined in one row without padding.
        prefixes: "repeated": each rollout is in its row as a whole. "tree": a prefix that several rollouts share is in
            the row once, and max_seq_len limits distinct tokens. A group shares a bin, unless it is larger than one or
            ranks would wait for each other.
        max_trained_tokens: most trained tokens in a bin of trees; a token counts once for each rollout that trains on
            it. None for no limit.
        **rows: other options of rows, as in `RowFormat`, such as `total_multiple_of`. An option that rollouts cannot
            have is refused, and the message says what to do.

    Returns:
        Batches on the CPU; every row has rollouts, unless `packing.allow_empty` is set. With trees they are
        `TreeBatch`es.

    Raises:
        ValueError: a rollout is empty or too long, or another field has a row of another length (the message names the
            rollout), or an option is out of range.
        InvalidRequestError: the service refuses, as when there are fewer rollouts than packs without `allow_empty`.
        PackhorseError: there is no client, and packhorse[server] is not installed.
    """
    assembler = assembler_of(
        max_seq_len, prefixes, rows, pad_token_id=pad_token_id, shift_labels=shift_labels, flatten=flatten
    )
    flat = FlatRollouts.of(rollouts, max_seq_len)
    if prefixes == "tree":
        trees = bins_of_trees(
            client,
            flat,
            max_seq_len,
            world_size=world_size,
            batch_size=batch_size,
            packing=packing,
            resources=resources,
            max_trained_tokens=max_trained_tokens,
        )
        return [
            tree_batch(trees[first : first + batch_size], flat, max_seq_len, assembler)
            for first in range(0, len(trees), batch_size)
        ]
    if max_trained_tokens is not None:
        raise ValueError("max_trained_tokens limits trees; give prefixes='tree', or leave it out")
    bins = bins_of_steps(
        client,
        flat.lengths,
        max_seq_len,
        world_size=world_size,
        batch_size=batch_size,
        items_name="rollouts",
        packing=packing,
        separate_by=flat.version_numbers,
        resources=resources,
    )
    block = block_of(bins, flat.lengths)
    source = IndexableSource(flat.sequences)
    return [
        _batch(block.slice(first, first + batch_size), source, assembler, flat)
        for first in range(0, len(bins), batch_size)
    ]


@overload
def as_micro_batches(
    batches: Sequence[RolloutBatch | TreeBatch], *, world_size: int = 1, packs_per_step: None = None
) -> list[list[list[int]]]: ...


@overload
def as_micro_batches(
    batches: Sequence[RolloutBatch | TreeBatch], *, world_size: int = 1, packs_per_step: int
) -> list[list[list[list[int]]]]: ...


def as_micro_batches(
    batches: Sequence[RolloutBatch | TreeBatch], *, world_size: int = 1, packs_per_step: int | None = None
) -> list[list[list[int]]] | list[list[list[list[int]]]]:
    """Lists the rollouts of each rank's micro-batches, for trainers that pack by index themselves (verl, SkyRL, slime).

    Every rank has the same number of micro-batches, and each holds the rollouts of one batch. With
    `PackOptions(allow_empty=True)` one may be empty: its rank has to run a batch of padding in that step.

    Example:
        >>> rollouts = Rollouts(queries=[[1, 2], [1, 2], [3]], responses=[[7], [8, 9], [6]])
        >>> batches = pack_rollouts(rollouts, max_seq_len=5, pad_token_id=0, world_size=2)
        >>> as_micro_batches(batches, world_size=2)
        [[[1]], [[0, 2]]]
        >>> as_micro_batches(batches, packs_per_step=1)
        [[[[1]], [[0, 2]]]]

    Args:
        batches: what `pack_rollouts` returned.
        world_size: the same as for `pack_rollouts`.
        packs_per_step: micro-batches of an optimizer step, for trainers that also want a list for each step (xtuner).
            The last step may have fewer, the same number on every rank. None for no such lists.

    Returns:
        Indices into the rollouts: [rank][micro-batch], a list each; with `packs_per_step` [rank][step][micro-batch].

    Raises:
        ValueError: world_size does not divide the number of batches, or packs_per_step is below 1.
    """
    if packs_per_step is not None and packs_per_step < 1:
        raise ValueError(f"packs_per_step must be at least 1, got {packs_per_step}; None leaves steps out")
    if world_size < 1 or len(batches) % world_size:
        raise ValueError(
            f"world_size must divide the {len(batches)} batches, got {world_size}; give the one that pack_rollouts had"
        )
    ids_of_ranks = [[batch["ids"].tolist() for batch in batches[rank::world_size]] for rank in range(world_size)]
    if packs_per_step is None:
        return ids_of_ranks
    return [
        [micro_batches[first : first + packs_per_step] for first in range(0, len(micro_batches), packs_per_step)]
        for micro_batches in ids_of_ranks
    ]


def _batch(block: BinBlock, source: IndexableSource, assembler: BatchAssembler, rollouts: FlatRollouts) -> RolloutBatch:
    """Makes one batch. Legend: K response tokens in it."""
    packed = assembler.assemble(block, source)
    layout, labels = packed["layout"], packed["labels"]
    shape = labels.shape
    members = block.ids  # the batch's rollouts
    response_lengths = rollouts.response_lengths[members]
    # Index of each response's first label among the batch's labels, row after row.
    first_labels = layout.starts + rollouts.query_lengths[members]
    if packed["shift_labels"]:
        first_labels = first_labels - 1  # at the token before, which exists because a query is never empty
    # Index of each response token among these labels, and among the tokens of all rollouts: int64 [K].
    in_batch = range_indices(first_labels, response_lengths)
    in_rollouts = range_indices(rollouts.response_starts[members], response_lengths)

    is_tool = rollouts.is_tool[in_rollouts]
    response_mask, tool_mask, dones = np.zeros((3, labels.numel()), dtype=np.bool_)
    response_mask[in_batch] = True
    tool_mask[in_batch[is_tool]] = True
    dones[first_labels + response_lengths - 1] = rollouts.dones[members]
    is_trained = response_mask & ~tool_mask
    labels.numpy().reshape(-1)[~is_trained] = IGNORE_INDEX  # a view: this changes the batch's own labels

    token_values = {}
    for name, values in rollouts.values.items():
        token_values[name] = np.zeros(labels.numel(), dtype=np.float32)
        token_values[name][in_batch] = values[in_rollouts]
    batch = {
        **packed,
        "response_mask": torch.from_numpy(response_mask.reshape(shape)),
        "tool_mask": torch.from_numpy(tool_mask.reshape(shape)),
        "dones": torch.from_numpy(dones.reshape(shape)),
        **{name: torch.from_numpy(values.reshape(shape)) for name, values in token_values.items()},
        "groups": SequenceGroups(numbers=rollouts.group_of[members], num_groups=rollouts.num_groups),
    }
    if rollouts.policy_versions is not None:
        batch |= versions_of_packs(rollouts.policy_versions, np.split(members, block.bin_ends[:-1]))
    return RolloutBatch(batch)


torch.serialization.add_safe_globals([RolloutBatch])
