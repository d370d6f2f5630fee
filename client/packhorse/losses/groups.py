"""`SequenceGroups`: which sequences of a batch are one sample of the loss, with the same numbers on every rank.

Owns numbering groups over micro-batches and ranks. Leaves counting their targets to `counts`, and weights to
`loss_weights`.

Legend: n sequences, G groups.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike, NDArray

from packhorse.client.batches.saved import reduced
from packhorse.client.masks.transfer import transfer
from packhorse.losses._batch_facts import group_ids_of, num_sequences_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SequenceGroups:
    """The group of each sequence of a batch; a group is one sample of the loss.

    Example:
        >>> first, second = SequenceGroups.of_ids([70, 70, 30], [30])  # documents of two micro-batches
        >>> first.numbers.tolist(), second.numbers.tolist(), first.num_groups
        ([1, 1, 0], [0], 2)
    """

    numbers: NDArray[np.int64]
    """Number of every sequence's group, in the layout's order: int64 [n], each in [0, num_groups)."""
    num_groups: int
    """G, the number of groups over all ranks and micro-batches. Every rank has the same G and the same numbers."""

    def __post_init__(self) -> None:
        if self.numbers.dtype != np.int64 or self.numbers.ndim != 1:
            raise ValueError(f"numbers must be int64 [n], got {self.numbers.dtype} {list(self.numbers.shape)}")
        if ((self.numbers < 0) | (self.numbers >= self.num_groups)).any():
            raise ValueError(f"numbers must be in [0, num_groups), which is [0, {self.num_groups})")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return reduced(self)

    @classmethod
    def of_ids(cls, *ids: ArrayLike, process_group: dist.ProcessGroup | None = None) -> list[Self]:
        """Numbers groups by their ids, with the same numbers on every rank.

        If torch.distributed runs, the ranks exchange their ids. These are in host memory, so give a gloo process group:
        NCCL would copy them to the device and wait for it.

        Args:
            ids: for each micro-batch, the id of every sequence's group, such as its document: integers [n].
            process_group: the ranks that share a step; None for all.

        Returns:
            The groups of each micro-batch.
        """
        keys = [np.asarray(ids_of_batch, dtype=np.int64).reshape(-1, 1) for ids_of_batch in ids]
        return cls._of_keys(keys, process_group, width=1)

    @classmethod
    def of_batches(cls, *batches: Mapping[str, Any], process_group: dist.ProcessGroup | None = None) -> list[Self]:
        """Numbers the groups of batches whose dataset was prepared with groups, with the same numbers on every rank.

        A sequence without a group, as a mixture may have, is a group by itself.

        Example:
            >>> from packhorse.client import PackLayout
            >>> layout = PackLayout.of_rows([2, 1, 3], [3], 6, group_ids=np.array([70, 70, 30]))
            >>> [groups] = SequenceGroups.of_batches({"layout": layout, "ids": torch.tensor([4, 5, 9])})
            >>> groups.numbers.tolist(), groups.num_groups
            ([1, 1, 0], 2)

        Args:
            batches: this rank's batches of one step.
            process_group: as for `of_ids`.

        Raises:
            ValueError: a batch has no groups.
        """
        return cls._of_keys([_keys_of_groups(batch) for batch in batches], process_group, width=3)

    @classmethod
    def _of_keys(
        cls, keys_of_batches: list[NDArray[np.int64]], process_group: dist.ProcessGroup | None, *, width: int
    ) -> list[Self]:
        """Numbers groups by their keys, in ascending order over all ranks.

        Args:
            keys_of_batches: for each micro-batch, the key of every sequence's group: int64 [n, width].
            process_group: the ranks that share a step; None for all.
            width: numbers in a key; it is needed if this rank has no batch.
        """
        no_keys = np.zeros((0, width), dtype=np.int64)
        distinct = np.unique(np.concatenate([no_keys, *keys_of_batches]), axis=0)  # [G, width], ascending
        if dist.is_available() and dist.is_initialized():
            of_ranks: list[Any] = [None] * dist.get_world_size(process_group)
            dist.all_gather_object(of_ranks, distinct, group=process_group)
            distinct = np.unique(np.concatenate(of_ranks), axis=0)
        groups = []
        for keys in keys_of_batches:
            # Together with `distinct` a batch's keys have no others, so that their numbers are those in `distinct`.
            _, numbers = np.unique(np.concatenate((distinct, keys)), axis=0, return_inverse=True)
            numbers_of_batch = numbers.reshape(-1)[len(distinct) :].astype(np.int64)
            groups.append(cls(numbers=numbers_of_batch, num_groups=len(distinct)))
        return groups


def _keys_of_groups(batch: Mapping[str, Any]) -> NDArray[np.int64]:
    """Returns a key for every sequence's group: int64 [n, 3].

    The three numbers are the sequence's component, whether it has a group, and the id of the group; without a group,
    the id of the sequence.
    """
    group_ids = group_ids_of(batch)
    if group_ids is None:
        raise ValueError(
            "this batch has no groups: prepare its dataset with group_column or group_size, or number them by "
            "SequenceGroups.of_ids"
        )
    has_group = group_ids >= 0
    keys = np.zeros((len(group_ids), 3), dtype=np.int64)
    if "component_ids" in batch:
        keys[:, 0] = batch["component_ids"].cpu().numpy()
    keys[:, 1] = has_group
    keys[:, 2] = np.where(has_group, group_ids, batch["ids"].cpu().numpy())
    return keys


def groups_of(batch: Mapping[str, Any], groups: SequenceGroups | None) -> SequenceGroups | None:
    """Returns the groups that the user gave, or else the batch's own; None if neither has any.

    Raises:
        ValueError: they are of another number of sequences than the batch.
    """
    groups = batch.get("groups") if groups is None else groups
    num_sequences = num_sequences_of(batch)
    if groups is not None and len(groups.numbers) != num_sequences:
        raise ValueError(f"groups number {len(groups.numbers)} sequences, and the batch has {num_sequences}")
    return groups


def numbers_on(groups: SequenceGroups, device: torch.device) -> torch.Tensor:
    """Returns the numbers on a device, without waiting for it: int32 [n]."""
    (numbers,) = transfer([groups.numbers], device)
    return numbers


torch.serialization.add_safe_globals(
    [SequenceGroups, (SequenceGroups, "packhorse.losses.loss_weights.SequenceGroups")]  # its name in files of 0.1
)
