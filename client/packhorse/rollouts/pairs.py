"""`pack_pairs`: from preferences (a prompt, a chosen and a rejected answer) to packed batches for DPO and similar.

Owns the rule that the two answers of a pair share a row, the keys that only a batch of pairs has, pairs from a dataset
with groups (`as_pair_batch`), and the pairs' log-probabilities. Leaves the choice of bins to the service's planner, the
keys of every batch to `packhorse.client.batches`, and the loss to the trainer.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Unpack, overload

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client import Balance, Client, PackedBatch, as_layout
from packhorse.client.batches import has_shifted_labels
from packhorse.client.options import DEFAULT_PACKING, PackOptions
from packhorse.losses import SequenceGroups, sequence_log_probs
from packhorse.rollouts.flat_rows import INTEGERS, flatten, refuse_flaws
from packhorse.rollouts.steps import SharedOptions, assembler_of, bins_of_steps, block_of
from packhorse.rollouts.tree_batch import TreeBatch
from packhorse.tokens import IndexableSource
from packhorse.wire.prefixes import by_prefix


class PairBatch(PackedBatch):
    """A packed batch of pairs: each pair's chosen and then its rejected sequence in one row. Legend: n sequences.

    It is a PackedBatch, so masks, `cu_seqlens` and loss weights are made as for any other. `labels` are -100 on
    prompts. `ids` are 2·i for the chosen sequence of pair i and 2·i + 1 for the rejected one.

    Example:
        >>> [batch] = pack_pairs([[1, 2]], [[7, 8]], [[9]], max_seq_len=8, pad_token_id=0)
        >>> batch["input_ids"].tolist(), batch["labels"].tolist()
        ([[1, 2, 7, 8, 1, 2, 9, 0]], [[-100, -100, 7, 8, -100, -100, 9, -100]])
        >>> batch["is_chosen"].tolist(), batch["pair_ids"].tolist()
        ([True, False], [0, 0])
    """

    is_chosen: torch.Tensor
    """Whether a sequence is its pair's chosen one: bool [n], alternately True and False."""
    pair_ids: torch.Tensor
    """Index of each sequence's pair in `prompts`, or after `as_pair_batch` its group: int64 [n]."""
    groups: SequenceGroups
    """The batch's n / 2 pairs as groups, which `LossCounts` and `build_loss_weights(batch, "sample")` count. They are
    numbered over all batches of the call, so a pair has the same number on all ranks. Missing after `as_pair_batch`."""


class PairLogProbs(NamedTuple):
    """Log-probabilities of a batch's pairs. Legend: p pairs.

    Example:
        >>> PairLogProbs(torch.tensor([-1.0]), torch.tensor([-3.0])).chosen.tolist()
        [-1.0]
    """

    chosen: torch.Tensor
    """Log-probability of each chosen answer, given its prompt: float32 [p]."""
    rejected: torch.Tensor
    """Log-probability of each rejected answer, given its prompt: float32 [p]."""


@overload
def pack_pairs(
    prompts: Sequence[Any],
    chosen: Sequence[Any],
    rejected: Sequence[Any],
    *,
    max_seq_len: int,
    pad_token_id: int,
    shift_labels: bool = False,
    prefixes: Literal["repeated"] = "repeated",
    **options: Unpack[SharedOptions],
) -> list[PairBatch]: ...


@overload
def pack_pairs(
    prompts: Sequence[Any],
    chosen: Sequence[Any],
    rejected: Sequence[Any],
    *,
    max_seq_len: int,
    pad_token_id: int,
    shift_labels: bool = True,
    prefixes: Literal["tree"],
    **options: Unpack[SharedOptions],
) -> list[TreeBatch]: ...


def pack_pairs(
    prompts: Sequence[Any],
    chosen: Sequence[Any],
    rejected: Sequence[Any],
    *,
    max_seq_len: int,
    pad_token_id: int,
    client: Client | None = None,
    world_size: int = 1,
    batch_size: int = 1,
    packing: PackOptions = DEFAULT_PACKING,
    shift_labels: bool | None = None,
    flatten: bool = False,
    prefixes: Literal["repeated", "tree"] = "repeated",
    **rows: Any,
) -> list[PairBatch] | list[TreeBatch]:
    """Packs preference pairs into batches, the same number for every rank. The two sequences of a pair share a row.

    A pair takes the room of both sequences, each with the prompt in front. In a tree their common tokens take room
    once, except the last one, after which they differ: it stands in front of both.

    Legend: P pairs. A row of tokens is a list, array or tensor of its own length, without padding.

    Example:
        >>> batches = pack_pairs(
        ...     [[1], [2], [3]], [[5], [5, 5], [6]], [[7], [7], [8]], max_seq_len=9, pad_token_id=0
        ... )
        >>> [batch["pair_ids"].tolist() for batch in batches]
        [[1, 1, 0, 0], [2, 2]]

    Args:
        prompts: P rows of token ids, none empty.
        chosen: P rows of token ids, the preferred answers, none empty.
        rejected: P rows of token ids, none empty.
        max_seq_len: a bin's capacity in tokens; both sequences of a pair must fit.
        pad_token_id: token that fills a bin's free end.
        client: whose server packs; None packs in this process, which needs packhorse[server]. The bins are the same.
        world_size: the number of batches is made a multiple of it; rank r takes `batches[r::world_size]`.
        batch_size: bins in a batch.
        packing: the packer and its limits, in pairs; without a balance. With `allow_empty`, if there are fewer pairs
            than bins, the other bins are all padding.
        shift_labels: False: `labels[t]` is token t, as Hugging Face models expect. True: the token after t, as
            always in trees. None: False, or True in trees.
        flatten: whether a batch's sequences are joined in one row without padding.
        prefixes: "repeated": each sequence is in its row as a whole. "tree": a prefix that sequences of a row share is
            there once, and a pair takes the room of its distinct tokens.
        **rows: other options of rows, as in `RowFormat`, such as `total_multiple_of`. An option that pairs cannot
            have is refused, and the message says what to do.

    Returns:
        Batches on the CPU; every row has pairs, unless `packing.allow_empty` is set. With trees they are `TreeBatch`es,
        with `is_chosen`, `pair_ids` and `groups` too.

    Raises:
        ValueError: a row is empty or a pair is too long (the message has its index and lengths), or an option is out of
            range.
        InvalidRequestError: the service refuses, as when there are fewer pairs than packs without `allow_empty`.
        PackhorseError: there is no client, and packhorse[server] is not installed.
    """
    if packing.balance != Balance.NONE:
        raise ValueError(f"pairs are packed without a balance, got {packing.balance}; leave it out of PackOptions")
    is_tree = prefixes == "tree"
    assembler = assembler_of(
        max_seq_len, prefixes, rows, pad_token_id=pad_token_id, shift_labels=shift_labels, flatten=flatten
    )
    sequences, num_prompt_tokens = _sequences(prompts, chosen, rejected)
    lengths = np.array([len(tokens) for tokens in sequences])
    num_shared = _num_shared(sequences) if is_tree else np.zeros(len(prompts), dtype=np.int64)
    bins = bins_of_steps(
        client,
        _rooms(lengths, num_shared, num_prompt_tokens, max_seq_len),
        max_seq_len,
        world_size=world_size,
        batch_size=batch_size,
        items_name="pairs",
        packing=packing,
    )
    # Pair i is the sequences 2·i and 2·i + 1: [3, 0] -> [6, 7, 0, 1].
    block = block_of([(2 * pairs[:, None] + np.arange(2)).reshape(-1) for pairs in bins], lengths)
    source = IndexableSource(sequences)
    # An answer begins after the prompt, which both sequences of a pair have.
    is_answer = [np.arange(length) >= start for length, start in zip(lengths, num_prompt_tokens.repeat(2), strict=True)]
    loss_mask = IndexableSource(is_answer, takes_bool=True)
    batches: list[Any] = []
    for first in range(0, len(bins), batch_size):
        batch_bins = block.slice(first, first + batch_size)
        pair_ids = batch_bins.ids // 2
        batch = {
            **assembler.assemble(batch_bins, source, loss_mask=loss_mask),
            "is_chosen": torch.from_numpy(batch_bins.ids % 2 == 0),
            "pair_ids": torch.from_numpy(pair_ids),
            "groups": SequenceGroups(numbers=pair_ids, num_groups=len(prompts)),
        }
        batches.append(TreeBatch(batch) if is_tree else PairBatch(batch))
    return batches


def as_pair_batch(batch: Mapping[str, Any], *, shift_labels: bool | None = None) -> PairBatch:
    """Turns a batch whose groups are pairs (chosen first) into a batch of pairs.

    Prepare such a dataset with `--group-size 2`, chosen and rejected answer one after the other, each with its prompt
    in front; a loss mask says which tokens are answers.

    Example:
        >>> from packhorse.client import MemoryDatasets, PackedDataset
        >>> answers = [[1, 2, 7, 8], [1, 2, 9]]  # chosen, rejected
        >>> datasets = MemoryDatasets({"pairs": answers}, max_seq_len=8, group_size=2)
        >>> batch = as_pair_batch(next(iter(PackedDataset(datasets, "pairs", answers, batch_size=1))))
        >>> batch["is_chosen"].tolist(), batch["pair_ids"].tolist()
        ([True, False], [0, 0])

    Args:
        batch: a batch of `PackedDataset` or the like, without a preset; its tensors are not copied.
        shift_labels: whether `labels[t]` is the token after t, for a batch without the key `shift_labels`.

    Raises:
        ValueError: the batch has no groups, they are not pairs, or nothing says whether labels are shifted.
    """
    layout = as_layout(batch)
    groups = layout.group_ids
    if groups is None:
        raise ValueError("this batch has no groups: prepare the pairs with grouping=Grouping(size=2), chosen first")
    # Where one group ends and the next begins; a sequence with a negative number is a group by itself.
    ends = np.flatnonzero((np.diff(groups) != 0) | (groups[1:] < 0)) + 1
    sizes = np.diff(ends, prepend=0, append=len(groups))  # ends [2, 4] of 6 sequences -> 2, 2 and 2 sequences
    if len(groups) and (sizes != 2).any():
        index = int(np.argmax(sizes != 2))
        raise ValueError(
            f"group {groups[int(sizes[:index].sum())]} has {sizes[index]} sequences in this batch, and a pair has two: "
            "chosen and rejected; prepare pairs with grouping=Grouping(size=2)"
        )
    is_chosen = torch.arange(len(groups)) % 2 == 0
    pair_ids = torch.from_numpy(groups.copy())
    shifted = has_shifted_labels(batch, shift_labels)
    return PairBatch(batch, is_chosen=is_chosen, pair_ids=pair_ids, shift_labels=shifted)


def pair_log_probs(batch: Mapping[str, Any], logits: torch.Tensor) -> PairLogProbs:
    """Sums the log-probabilities of each pair's two answers, for DPO and similar losses.

    Example:
        >>> [batch] = pack_pairs([[1, 0]], [[1, 1]], [[0]], max_seq_len=8, pad_token_id=0)
        >>> log_probs = pair_log_probs(batch, torch.zeros(1, 8, 2))  # both tokens are as likely
        >>> log_probs.chosen.exp().tolist(), log_probs.rejected.exp().tolist()
        ([0.25], [0.5])

    Args:
        batch: a batch of `pack_pairs` or `as_pair_batch`.
        logits: the model's logits, of a floating type: [B, L, V], on any device; the host does not wait for them.

    Returns:
        The sums of chosen and of rejected answers: float32 [n / 2] each, in the order of `pair_ids[::2]`.
    """
    chosen, rejected = sequence_log_probs(batch, logits).view(-1, 2).unbind(1)
    return PairLogProbs(chosen, rejected)


def _sequences(
    prompts: Sequence[Any], chosen: Sequence[Any], rejected: Sequence[Any]
) -> tuple[list[NDArray[Any]], NDArray[np.int64]]:
    """Checks the pairs, and joins prompts and answers.

    Returns:
        The 2 · P sequences, each pair's chosen one and then its rejected one; and the tokens of each prompt: int64 [P].
    """
    if len(prompts) == 0:
        raise ValueError("prompts is empty: there is no pair to pack")
    rows, lengths = {}, {}
    for name, given in (("prompts", prompts), ("chosen", chosen), ("rejected", rejected)):
        if len(given) != len(prompts):
            raise ValueError(f"{name} has {len(given)} entries for {len(prompts)} prompts")
        tokens, lengths[name] = flatten(name, given, INTEGERS)
        rows[name] = np.split(tokens.astype(np.int64, copy=False), np.cumsum(lengths[name])[:-1])
    refuse_flaws(
        (
            (lengths["prompts"] == 0, "an empty prompt leaves the answers' first tokens nothing to be predicted from"),
            (lengths["chosen"] == 0, "an empty answer has nothing to train on; drop the pair first"),
            (lengths["rejected"] == 0, "an empty answer has nothing to train on; drop the pair first"),
        ),
        lambda i: (
            f"pair {i} has {lengths['prompts'][i]} tokens in its prompt, {lengths['chosen'][i]} chosen and "
            f"{lengths['rejected'][i]} rejected ones"
        ),
    )
    sequences = []
    for prompt, *answers in zip(rows["prompts"], rows["chosen"], rows["rejected"], strict=True):
        sequences += [np.concatenate((prompt, answer)) for answer in answers]
    return sequences, lengths["prompts"]


def _num_shared(sequences: list[NDArray[Any]]) -> NDArray[np.int64]:
    """Returns how many tokens the two sequences of each pair share in a tree: int64 [P]."""
    num_shared = []
    for pair in zip(sequences[::2], sequences[1::2], strict=True):
        # In sorted order, the second row's entry counts what it shares with the first, whichever of the two that is.
        _, (_, shared_by_second) = by_prefix(pair)
        num_shared.append(shared_by_second)
    return np.array(num_shared, dtype=np.int64)


def _rooms(
    lengths: NDArray[np.int64], num_shared: NDArray[np.int64], num_prompt_tokens: NDArray[np.int64], max_seq_len: int
) -> NDArray[np.int64]:
    """Returns the tokens that each pair takes, int64 [P]; refuses one that is too long."""
    rooms: NDArray[np.int64] = lengths.reshape(-1, 2).sum(axis=1) - num_shared
    refuse_flaws(
        ((rooms > max_seq_len, f"that is over max_seq_len {max_seq_len}; raise it, or truncate or drop it first"),),
        lambda i: (
            f"pair {i} takes {rooms[i]} tokens (prompt {num_prompt_tokens[i]}, with it chosen {lengths[2 * i]} and "
            f"rejected {lengths[2 * i + 1]}" + (f", of which {num_shared[i]} once)" if num_shared[i] else ")")
        ),
    )
    return rooms


torch.serialization.add_safe_globals([PairBatch])
