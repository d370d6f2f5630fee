"""verl: a scheduler for its dynamic context parallelism, which assigns the sequences of a mini-batch to ranks.

Owns the interface that verl and Megatron call; leaves the assignment itself to `packhorse.topology.ContextRule`.
Importing this module needs neither verl nor Megatron.
"""

from collections.abc import Sequence

from packhorse.topology import ContextRule


class VerlScheduler:
    """A replacement for Megatron's `DefaultDynamicCPScheduler`, which verl calls to assign sequences to ranks.

    Every rank has sequences in every micro-batch. Ranks that share sequences are neighbours, and their first rank is a
    multiple of their number, as verl requires. The assignment depends on the lengths only.

    ```
    from verl.utils import dynamic_cp_scheduler

    dynamic_cp_scheduler.get_megatron_dynamic_cp_scheduler_cls = lambda: VerlScheduler
    ```

    Example:
        >>> scheduler = VerlScheduler(max_seqlen_per_dp_cp_rank=8, cp_size=1, dp_size=4)
        >>> scheduler.get_groups_and_subsamples([(0, 12), (1, 7), (2, 5), (3, 4), (4, 7), (5, 7)])
        [[[0, 3], [0, 3], [5], [4]], [[1], [1], [2], [2]]]

    Args:
        max_seqlen_per_dp_cp_rank: the most tokens of a rank.
        cp_size: number of context-parallel ranks with which Megatron was started.
        dp_size: number of data-parallel ranks; cp_size · dp_size must be a power of two.
        microbatch_group_size_per_vp_stage: must be None, because the number of micro-batches varies.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        max_seqlen_per_dp_cp_rank: int,
        cp_size: int,
        dp_size: int,
        microbatch_group_size_per_vp_stage: int | None = None,
    ) -> None:
        if microbatch_group_size_per_vp_stage is not None:
            raise ValueError(
                "microbatch_group_size_per_vp_stage must be None: train without virtual pipeline stages, as verl does "
                "under dynamic context parallelism"
            )
        num_ranks = cp_size * dp_size
        if num_ranks < 1 or num_ranks & (num_ranks - 1):  # 0 for a power of two: 8 & 7, but 6 & 5 is 4
            raise ValueError(f"cp_size · dp_size must be a power of two, got {num_ranks}")
        self._rule = ContextRule(max_seqlen_per_dp_cp_rank, num_ranks)

    def get_groups_and_subsamples(self, sample_id_seqlens: Sequence[tuple[int, int]]) -> list[list[list[int]]]:
        """Assigns sequences to ranks.

        Args:
            sample_id_seqlens: (number, length in tokens) of each sequence.

        Returns:
            For each micro-batch, and in it for each rank of data and context parallelism, the numbers of the sequences
            that the rank computes. Ranks that share sequences have equal lists.

        Raises:
            ValueError: a sequence does not fit all ranks together.
        """
        numbers = [number for number, _ in sample_id_seqlens]
        micro_batches = self._rule.tile([length for _, length in sample_id_seqlens])
        return [
            [[numbers[index] for index in part.indices] for part in parts for _ in range(part.num_ranks)]
            for parts in micro_batches
        ]
