"""A sampler in TransferQueue's own controller structures: groups whole, counts equal, costs even, each sample once."""

import numpy as np
import pytest

pytest.importorskip("transfer_queue", exc_type=ImportError)

from transfer_queue import sampler as samplers
from transfer_queue.controller import DataPartitionStatus

from packhorse.rollouts.transfer_queue import PackedSampler


def partition_of(lengths):
    partition = DataPartitionStatus(partition_id="train")
    partition.set_custom_meta({index: {"total_lengths": int(length)} for index, length in enumerate(lengths)})
    return partition


def batches(sampler, partition, lengths, dp_size, batch_size):
    """Each batch's parts, asked by ranks in turn, as the controller asks."""
    ready, index = list(range(len(lengths))), 0
    while True:
        parts = []
        for rank in range(dp_size):
            options = {"task_name": "train", "partition_id": "train", "dp_rank": rank, "batch_index": index}
            taken, consumed = sampler(list(ready), batch_size, partition=partition, **options)
            if not taken:
                return
            assert taken == consumed
            assert sampler.has_cached_result("train", "train", {"dp_rank": rank, "batch_index": index})
            again, _ = sampler(list(ready), batch_size, partition=partition, **options)
            assert again == taken
            ready = [number for number in ready if number not in consumed]
            parts.append(taken)
        yield parts
        index += 1


def lengths_of(num, seed=0):
    return np.clip(np.random.default_rng(seed).lognormal(7, 1, num), 8, 8192).astype(int)


@pytest.mark.parametrize("group_size", [1, 4])
def test_ranks_take_as_many_samples_of_equal_cost(group_size):
    lengths = lengths_of(512)
    partition = partition_of(lengths)
    waits = {}
    for sampler in (
        PackedSampler(dp_size=4, n_samples_per_prompt=group_size, cost_linear=1000),
        samplers.SeqlenBalancedSampler(n_samples_per_prompt=group_size, dp_size=4),
    ):
        seen, slowest, total = [], 0, 0
        for parts in batches(sampler, partition, lengths, 4, 16):
            assert [len(part) for part in parts] == [16] * 4
            for part in parts:
                groups = np.array(part).reshape(-1, group_size)
                assert (np.diff(groups, axis=1) == 1).all()
            costs = [int((lengths[part] * (1000 + lengths[part])).sum()) for part in parts]
            slowest, total = slowest + max(costs), total + sum(costs)
            seen += [number for part in parts for number in part]
        assert sorted(seen) == list(range(512))
        waits[type(sampler)] = slowest * 4 / total - 1
    assert waits[PackedSampler] < waits[samplers.SeqlenBalancedSampler]


def test_a_cap_holds_or_is_named():
    lengths = lengths_of(64)
    partition = partition_of(lengths)
    options = {"task_name": "t", "partition_id": "p", "dp_rank": 0, "batch_index": 0, "partition": partition}
    mean = int(lengths.sum()) // 4
    for equal_counts in (True, False):
        roomy = PackedSampler(dp_size=4, max_tokens=mean * 6 // 5, equal_counts=equal_counts)
        parts = [roomy(list(range(64)), 16, **(options | {"dp_rank": rank}))[0] for rank in range(4)]
        assert sorted(number for part in parts for number in part) == list(range(64))
        assert max(lengths[part].sum() for part in parts) <= mean * 6 // 5
        tight = PackedSampler(dp_size=4, max_tokens=max(int(lengths.max()), mean * 9 // 10), equal_counts=equal_counts)
        with pytest.raises(ValueError, match="raise it, or ask for a smaller batch_size"):
            tight(list(range(64)), 16, **options)


def test_too_few_complete_groups_give_nothing_and_a_missing_length_is_named():
    sampler = PackedSampler(dp_size=2, n_samples_per_prompt=2)
    options = {"task_name": "t", "partition_id": "p", "dp_rank": 0, "batch_index": 0}
    assert sampler([0, 1, 2], 2, partition=partition_of([5] * 4), **options) == ([], [])
    assert not sampler.has_cached_result("p", "t", options)
    with pytest.raises(ValueError, match="sample 3 has no total_lengths"):
        sampler([0, 1, 2, 3], 2, partition=partition_of([5] * 3), **options)
    with pytest.raises(ValueError, match="dp_size must be at least 1"):
        PackedSampler(dp_size=0)


def test_a_checkpoint_tells_the_other_ranks_the_rest():
    lengths = lengths_of(32)
    partition = partition_of(lengths)
    options = {"task_name": "t", "partition_id": "p", "batch_index": 3, "partition": partition}
    first = PackedSampler(dp_size=2)
    taken, _ = first(list(range(32)), 16, dp_rank=0, **options)
    second = PackedSampler(dp_size=2)
    second.load_checkpoint(first.save_checkpoint())
    rest, _ = second([], 16, dp_rank=1, **options)
    assert sorted(taken + rest) == list(range(32))
    second.clear_cache("p")
    assert second([], 16, dp_rank=1, **options) == ([], [])
