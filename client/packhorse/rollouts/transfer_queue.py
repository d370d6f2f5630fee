"""`PackedSampler`: which samples of a TransferQueue each data-parallel rank takes, so that ranks wait little.

Owns choosing for all ranks at once, and keeping each rank's share until it asks. Leaves which groups are complete, and
the queue itself, to the library TransferQueue (`pip install transferqueue`), and placing samples to the service's
planner.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from transfer_queue.sampler import GRPOGroupNSampler

from packhorse.client import Client
from packhorse.client.errors import InvalidRequestError
from packhorse.client.options import PackOptions
from packhorse.rollouts.steps import bins_of_steps
from packhorse.topology import DEFAULT_COST_LINEAR


class PackedSampler(GRPOGroupNSampler):
    """A sampler for TransferQueue's controller that gives every rank samples of equal cost.

    Unlike TransferQueue's `SeqlenBalancedSampler` it counts attention (a sample of L tokens costs cost_linear · L +
    L²), can cap the tokens of a rank, and refuses a sample without a length instead of counting it as one token. Groups
    stay together, and every rank takes the same number of samples, unless `equal_counts` is False.

    When the first rank asks for a batch, all ranks' shares are chosen; the others get theirs when they ask. A
    checkpoint of the sampler holds the shares.

        controller = TransferQueueController.remote(PackedSampler(dp_size=8, n_samples_per_prompt=8, max_tokens=65536))

    Args:
        dp_size: data-parallel ranks.
        n_samples_per_prompt: samples in a group, stored one after the other.
        max_tokens: most tokens that a rank takes in a batch; None for no cap.
        cost_linear: see `PackOptions`.
        equal_counts: whether every rank takes `batch_size` samples; otherwise only costs decide.
        client: client of the server that places samples; None places in this process, which needs packhorse[server].

    Raises:
        ValueError: a number is below 1.
    """

    def __init__(
        self,
        *,
        dp_size: int,
        n_samples_per_prompt: int = 1,
        max_tokens: int | None = None,
        cost_linear: int = DEFAULT_COST_LINEAR,
        equal_counts: bool = True,
        client: Client | None = None,
    ) -> None:
        super().__init__(n_samples_per_prompt=n_samples_per_prompt)
        if dp_size < 1:
            raise ValueError(f"dp_size must be at least 1, got {dp_size}")
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
        self._dp_size = dp_size
        self._max_tokens = max_tokens
        self._packing = PackOptions(balance="optimizer-step", cost_linear=cost_linear)
        self._equal_counts = equal_counts
        self._client = client

    def sample(
        self,
        ready_indexes: list[int],
        batch_size: int,
        task_name: str = "",
        partition_id: str = "",
        *args: Any,
        **kwargs: Any,
    ) -> tuple[list[int], list[int]]:
        """Returns the samples that a rank takes, and the samples that the queue marks as consumed: the same ones.

        Args:
            ready_indexes: samples that no rank has taken.
            batch_size: samples of a rank, a multiple of `n_samples_per_prompt`.
            task_name: the queue's consumer.
            partition_id: the queue's partition.
            args: further arguments of the queue, not used.
            kwargs: further arguments of the queue. Used are `dp_rank`, `batch_index` and `partition`, whose custom
                metadata has `total_lengths` for every sample.

        Returns:
            Two equal lists of indices of samples, group after group; empty while there are too few complete groups.

        Raises:
            ValueError: a sample has no length, or the batch does not fit the ranks; the message says what to change.
        """
        rank, batch = kwargs.get("dp_rank", 0), kwargs.get("batch_index", 0)
        # The base class's state, which it checkpoints: partition → task → rank → batch → the two lists.
        batches_of_ranks = self._states.setdefault(partition_id, {}).setdefault(task_name, {})
        if batch not in batches_of_ranks.get(rank, {}):
            chosen, _ = super().sample(ready_indexes, batch_size * self._dp_size)
            if not chosen:
                return [], []
            shares = self._shares(chosen, self._lengths(chosen, kwargs.get("partition")), batch_size)
            for owner, share in enumerate(shares):
                batches_of_ranks.setdefault(owner, {})[batch] = (share, list(share))
        taken, consumed = batches_of_ranks[rank][batch]
        return list(taken), list(consumed)

    def _lengths(self, chosen: list[int], partition: Any) -> NDArray[np.int64]:
        """Returns the tokens of each sample, from the partition's metadata: int64 [len(chosen)]."""
        metadata = {} if partition is None else partition.get_custom_meta(chosen)
        lengths = [metadata.get(sample, {}).get("total_lengths") for sample in chosen]
        if None in lengths:
            raise ValueError(
                f"sample {chosen[lengths.index(None)]} has no total_lengths; put it with "
                "custom_meta={'total_lengths': …}"
            )
        return np.array(lengths, dtype=np.int64)

    def _shares(self, chosen: list[int], lengths: NDArray[np.int64], batch_size: int) -> list[list[int]]:
        """Returns the samples of each rank; a rank is a bin, and a group an item that is never divided.

        `chosen` are the samples of one batch of all ranks, group after group; `batch_size` is that of a rank.
        """
        group_starts = np.arange(0, len(chosen), self.n_samples_per_prompt)
        group_tokens = np.add.reduceat(lengths, group_starts)
        costs = (self._packing.cost_linear + lengths) * lengths
        group_costs = np.add.reduceat(costs, group_starts)
        group_sizes = np.full(len(group_tokens), self.n_samples_per_prompt)
        all_tokens = int(group_tokens.sum())
        if self._equal_counts:  # only counts and costs decide; max_tokens is checked afterwards
            max_samples, capacity_tokens = batch_size, all_tokens
        else:
            max_samples, capacity_tokens = len(chosen), self._max_tokens or all_tokens
        try:
            bins = bins_of_steps(
                self._client,
                group_tokens,
                capacity_tokens,
                world_size=self._dp_size,
                batch_size=1,
                items_name="samples",
                packing=self._packing,
                resources={"samples": (group_sizes, max_samples)},
                costs=group_costs,
            )
        except InvalidRequestError as error:
            raise ValueError(f"{len(chosen)} samples cannot be dealt to {self._dp_size} ranks: {error}") from None
        most_tokens = max(int(group_tokens[members].sum()) for members in bins)
        is_over = self._max_tokens is not None and most_tokens > self._max_tokens
        if len(bins) != self._dp_size or is_over:
            raise ValueError(
                f"a batch of {len(chosen)} samples has {lengths.sum()} tokens, and {self._dp_size} ranks of "
                f"max_tokens {self._max_tokens} cannot take them: raise it, or ask for a smaller batch_size"
            )
        samples_of_groups = np.split(np.array(chosen), group_starts[1:])
        return [np.concatenate([samples_of_groups[group] for group in members]).tolist() for members in bins]
