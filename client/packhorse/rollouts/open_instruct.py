"""`to_open_instruct`: packed rollouts under open-instruct's names and in its numbering, for its GRPO trainers.

Owns the conversion; leaves packing to `pack` and masks to `packhorse.client.masks`. Checked against
`open_instruct/rl_utils.py` and `data_loader.py` as of August 2026 (`PackedSequences`, `pack_sequences`).
"""

from collections.abc import Sequence
from typing import NotRequired, TypedDict

import numpy as np
import torch

from packhorse.client.masks import build_labelled_mask
from packhorse.rollouts.pack import RolloutBatch


class OpenInstructPacks(TypedDict):
    """The fields of open-instruct's `PackedSequences`, except `original_responses`: lists with a tensor for each pack.

    Legend: t tokens of a pack, k rollouts in it. Entry i of a tensor belongs to token i; open-instruct's trainer shifts
    by taking `[:, 1:]`. Nothing is padded; its collator pads, with `pad_token_id` or 0. Rollouts are numbered from 1,
    in the order in which they were given, because 0 means none.
    """

    query_responses: list[torch.Tensor]
    """Tokens: int64 [t]."""
    attention_masks: list[torch.Tensor]
    """1, 2, 3, … for the rollouts of the pack: int64 [t]. open-instruct's trainers make intra-document masks from these
    or from position ids; `build_boolean_mask` makes a mask of three dimensions."""
    position_ids: list[torch.Tensor]
    """0, 1, 2, … within each rollout: int64 [t]."""
    response_masks: list[torch.Tensor]
    """Number of the rollout on trained tokens, 0 on queries and on what tools wrote (its `mask_tool_use`): int64 [t].
    open-instruct's data loader looks advantages up by these numbers, and then turns them into bool."""
    dones: list[torch.Tensor]
    """Number of the rollout on its last token, finished or not; 0 elsewhere: int64 [t]."""
    num_actions: list[torch.Tensor]
    """Tokens of every response, including those that tools wrote: int64 [k]."""
    packed_seq_lens: list[torch.Tensor]
    """Tokens of every rollout: int64 [k]."""
    advantages: NotRequired[list[torch.Tensor]]
    """Advantage of each token, 0 on tokens that are not trained: float32 [t]."""
    vllm_logprobs: NotRequired[list[torch.Tensor]]
    """Log-probability of each token, NaN on queries, 0 on what tools wrote: float32 [t]."""
    rewards: NotRequired[list[torch.Tensor]]
    """Reward of each token: float32 [t]."""


def to_open_instruct(batches: Sequence[RolloutBatch]) -> OpenInstructPacks:
    """Converts batches, one pack for each row.

    `PackedSequences(**to_open_instruct(batches), original_responses=responses)` is the input of the next step in
    open-instruct's data loader, which gives rank r the packs [r · P, (r + 1) · P). Rank r of `pack_rollouts` has
    `batches[r::world_size]`, so give those of rank 0 first, then those of rank 1, ….

    Example:
        >>> from packhorse.rollouts import Rollouts, pack_rollouts
        >>> batches = pack_rollouts(Rollouts(queries=[[1, 2]], responses=[[7]]), max_seq_len=5, pad_token_id=0)
        >>> to_open_instruct(batches)["query_responses"]
        [tensor([1, 2, 7])]

    Args:
        batches: batches of `pack_rollouts`, all with the same keys, without `shift_labels` and without empty packs.

    Raises:
        ValueError: batches have shifted labels or an empty pack, or some have advantages, log-probabilities or rewards
            and others not.
    """
    packs = [pack for batch in batches for pack in _packs(batch)]
    if any(pack.keys() != packs[0].keys() for pack in packs):
        raise ValueError("advantages, logprobs and rewards must be in all batches or in none")
    names = packs[0] if packs else OpenInstructPacks.__required_keys__
    return OpenInstructPacks(**{name: [pack[name] for pack in packs] for name in names})  # type: ignore[typeddict-item]


def _packs(batch: RolloutBatch) -> list[dict[str, torch.Tensor]]:
    """Returns the packs of a batch, one for each row: the fields of `OpenInstructPacks`, a tensor each."""
    if batch["shift_labels"]:
        raise ValueError("open-instruct shifts inside: pack with shift_labels=False")
    layout = batch["layout"]
    sequences_of_rows = np.diff(layout.row_ends, prepend=0)  # ends [2, 3, 3] -> 2, 1 and 0 sequences
    if (sequences_of_rows == 0).any():
        raise ValueError(
            "a pack has no rollout, which open-instruct cannot collate: pack without allow_empty, with a smaller "
            "world_size or more rollouts"
        )
    numbers = batch["ids"] + 1  # of each rollout, from 1
    number_of_token = torch.zeros_like(batch["input_ids"])
    number_of_token[batch["attention_mask"] != 0] = numbers.repeat_interleave(torch.from_numpy(layout.lengths))
    last_tokens = torch.from_numpy(layout.starts + layout.lengths - 1)
    dones = torch.zeros_like(batch["input_ids"])
    dones.view(-1)[last_tokens] = numbers
    is_trained = batch["response_mask"] & ~batch["tool_mask"]
    # Response tokens from the batch's begin to each rollout's end; their differences are those of each rollout.
    response_tokens_up_to = batch["response_mask"].flatten().cumsum(0)[last_tokens]
    token_values = {
        "query_responses": batch["input_ids"],
        "attention_masks": build_labelled_mask(batch, "cpu"),
        "position_ids": batch["position_ids"],
        "response_masks": torch.where(is_trained, number_of_token, 0),
        "dones": dones,
    }
    if "advantages" in batch:
        token_values["advantages"] = batch["advantages"]
    if "logprobs" in batch:
        token_values["vllm_logprobs"] = torch.where(batch["response_mask"], batch["logprobs"], torch.nan)
    if "rewards" in batch:
        token_values["rewards"] = batch["rewards"]
    rollout_values = {
        "num_actions": response_tokens_up_to.diff(prepend=response_tokens_up_to.new_zeros(1)),
        "packed_seq_lens": torch.from_numpy(layout.lengths),
    }
    packs = []
    first = 0
    for row, end in enumerate(layout.row_ends.tolist()):
        num_tokens = int(layout.lengths[first:end].sum())
        # Copies, since a view that is sent to another process would take the whole batch along.
        pack = {name: values[row, :num_tokens].clone() for name, values in token_values.items()}
        pack |= {name: values[first:end].clone() for name, values in rollout_values.items()}
        packs.append(pack)
        first = end
    return packs
