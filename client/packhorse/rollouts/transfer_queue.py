"""`PackedSampler`: which samples of a TransferQueue each data-parallel rank takes, so that ranks wait little.

Owns the choice for all ranks at once, and that every rank is told its part. Leaves which groups are complete, and the
queue itself, to `transfer_queue` (`pip install transferqueue`), and the placing to the service's planner.
"""

from typing import Any

import numpy as np
from transfer_queue.sampler import GRPOGroupNSampler

from packhorse.client import Client
from packhorse.client.errors import InvalidRequestError
from packhorse.client.options import PackOptions
from packhorse.rollouts.steps import bins_of_steps
from packhorse.topology import DEFAULT_COST_LINEAR


class PackedSampler(GRPOGroupNSampler):
    """A sampler for TransferQueue's controller that gives every rank samples of equal cost.

    Beside its own `SeqlenBalancedSampler` it counts attention (a sample of L tokens costs cost_linear · L + L²), keeps
    a cap of tokens, and refuses a sample without a length instead of taking it for one token. Groups stay together, and
    every rank takes as many samples, unless `equal_counts` is False.

    The first rank that asks for a batch chooses for all, and the others are told the rest; a checkpoint holds it.

        controller = TransferQueueController.remote(PackedSampler(dp_size=8, n_samples_per_prompt=8, max_tokens=65536))

    Args:
        dp_size: data-parallel ranks.
        n_samples_per_prompt: samples in a group, stored one after the other.
        max_tokens: the most tokens that a rank takes in a batch; None for no cap.
        cost_linear: see `PackOptions`.
        equal_counts: whether every rank takes `batch_size` samples; otherwise only costs decide.
        client: whose server places them; None places in this process, which needs packhorse[server].

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
        for name, number in (("dp_size", dp_size), ("max_tokens", 1 if max_tokens is None else max_tokens)):
            if number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")
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
        """Returns a rank's samples, twice: those that it takes, and those that are consumed.

        Args:
            ready_indexes: samples that no rank has taken.
            batch_size: samples of a rank, a multiple of `n_samples_per_prompt`.
            task_name: the queue's consumer.
            partition_id: the queue's partition.
            args: of the queue, not used.
            kwargs: of the queue: `dp_rank`, `batch_index` and `partition`, whose custom metadata has `total_lengths`
                for every sample.

        Returns:
            Indices of samples, groups one after the other; nothing while there are too few complete groups.

        Raises:
            ValueError: a sample has no length, or the batch does not fit the ranks; says what to change.
        """
        rank, index = kwargs.get("dp_rank", 0), kwargs.get("batch_index", 0)
        of_ranks = self._states.setdefault(partition_id, {}).setdefault(task_name, {})
        if index not in of_ranks.get(rank, {}):
            chosen, _ = super().sample(ready_indexes, batch_size * self._dp_size)
            if not chosen:
                return [], []
            parts = self._parts(chosen, self._lengths(chosen, kwargs.get("partition")), batch_size)
            for number, part in enumerate(parts):
                of_ranks.setdefault(number, {})[index] = (part, list(part))
        taken, consumed = of_ranks[rank][index]
        return list(taken), list(consumed)

    def _lengths(self, chosen: list[int], partition: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        of_samples = {} if partition is None else partition.get_custom_meta(chosen)
        lengths = [of_samples.get(sample, {}).get("total_lengths") for sample in chosen]
        if None in lengths:
            raise ValueError(
                f"sample {chosen[lengths.index(None)]} has no total_lengths; put it with "
                "custom_meta={'total_lengths': …}"
            )
        return np.array(lengths, dtype=np.int64)

    def _parts(
        self, chosen: list[int], lengths: np.ndarray[Any, np.dtype[np.int64]], batch_size: int
    ) -> list[list[int]]:
        """Deals samples to ranks."""
        groups = np.arange(len(chosen)) // self.n_samples_per_prompt
        of_groups = np.add.reduceat(lengths, np.arange(0, len(chosen), self.n_samples_per_prompt))
        costs = (self._packing.cost_linear + lengths) * lengths
        of_costs = np.add.reduceat(costs, np.arange(0, len(chosen), self.n_samples_per_prompt))
        sizes = np.full(len(of_groups), self.n_samples_per_prompt)
        most = batch_size if self._equal_counts else len(chosen)
        try:
            bins = bins_of_steps(
                self._client,
                of_groups,
                int(of_groups.sum()) if self._equal_counts or self._max_tokens is None else self._max_tokens,
                world_size=self._dp_size,
                batch_size=1,
                what="samples",
                packing=self._packing,
                resources={"samples": (sizes, most)},
                costs=of_costs,
            )
        except InvalidRequestError as error:
            raise ValueError(f"{len(chosen)} samples cannot be dealt to {self._dp_size} ranks: {error}") from None
        tokens = max(int(of_groups[members].sum()) for members in bins)
        if len(bins) != self._dp_size or tokens > (self._max_tokens or tokens):
            raise ValueError(
                f"a batch of {len(chosen)} samples has {lengths.sum()} tokens, and {self._dp_size} ranks of "
                f"max_tokens {self._max_tokens} cannot take them: raise it, or ask for a smaller batch_size"
            )
        samples = np.array(chosen)
        return [samples[np.concatenate([np.flatnonzero(groups == group) for group in one])].tolist() for one in bins]
