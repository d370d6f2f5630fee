"""Index lists of micro-batches: within the token limit, and as many for every rank, where other packers failed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packhorse.rollouts import PackOptions, Rollouts, as_micro_batches, pack_rollouts


def micro_batches(lengths, max_seq_len, *, world_size, batch_size=1, allow_empty=True):
    """The lists for rollouts of these lengths, each with a query of one token."""
    rollouts = Rollouts(queries=[[1]] * len(lengths), responses=[[2] * (length - 1) for length in lengths])
    batches = pack_rollouts(
        rollouts,
        max_seq_len=max_seq_len,
        pad_token_id=0,
        world_size=world_size,
        batch_size=batch_size,
        packing=PackOptions(allow_empty=allow_empty),
    )
    return as_micro_batches(batches, world_size=world_size)


@given(
    lengths=st.lists(st.integers(2, 16), min_size=1, max_size=30),
    world_size=st.integers(1, 4),
    batch_size=st.integers(1, 2),
)
def test_every_rollout_comes_once_within_the_limit_and_ranks_take_as_many_steps(lengths, world_size, batch_size):
    of_ranks = micro_batches(lengths, 16, world_size=world_size, batch_size=batch_size)
    assert len(of_ranks) == world_size
    assert len({len(of_rank) for of_rank in of_ranks}) == 1
    assert sorted(i for of_rank in of_ranks for micro_batch in of_rank for i in micro_batch) == [*range(len(lengths))]
    for of_rank in of_ranks:
        for micro_batch in of_rank:
            assert sum(lengths[i] for i in micro_batch) <= 16 * batch_size


@pytest.mark.parametrize("prefixes", ["repeated", "tree"])
def test_optimizer_steps_are_one_more_level(prefixes):
    """Rank, optimizer step, pack, sample, as xtuner's plan has them."""
    rollouts = Rollouts(queries=[[1]] * 23, responses=[[2 + number] * (3 + number % 5) for number in range(23)])
    batches = pack_rollouts(rollouts, max_seq_len=9, pad_token_id=0, world_size=2, prefixes=prefixes)
    of_ranks = as_micro_batches(batches, world_size=2)
    plan = as_micro_batches(batches, world_size=2, packs_per_step=3)
    assert [[pack for step in steps for pack in step] for steps in plan] == of_ranks
    sizes = [len(of_ranks[0][first : first + 3]) for first in range(0, len(of_ranks[0]), 3)]
    assert [[len(step) for step in steps] for steps in plan] == [sizes] * 2
    with pytest.raises(ValueError, match="packs_per_step must be at least 1"):
        as_micro_batches(batches, world_size=2, packs_per_step=0)


def rows_of(of_rank):
    """What a trainer that gives each rank its rollouts alone needs, as the guide says it: those, and lists of rows."""
    rollouts = [number for micro_batch in of_rank for number in micro_batch]
    row_of = {number: row for row, number in enumerate(rollouts)}
    return rollouts, [[row_of[number] for number in micro_batch] for micro_batch in of_rank]


LENGTHS = [10, 3, 9, 2, 2, 7, 10, 4, 6, 5, 3, 8]


def test_verl_puts_outputs_back_in_order():
    """`restore_dynamic_batch` of verl 0.9.1, by which it undoes its own lists."""
    balancing = pytest.importorskip("verl.utils.seqlen_balancing", exc_type=ImportError)
    for of_rank in micro_batches(LENGTHS, 10, world_size=2):
        rollouts, rows = rows_of(of_rank)
        lengths = torch.tensor(LENGTHS)[rollouts]
        outputs = torch.cat([lengths[each] for each in rows])
        assert balancing.restore_dynamic_batch(outputs, rows).tolist() == lengths.tolist()


def test_skyrl_s_iterator_takes_the_lists_of_a_rank(module_alone):
    """`TokenBasedBatchIterator` of SkyRL 0.3.0, with these lists in place of its packer's."""
    prefix = "skyrl.backends.skyrl_train"
    module_alone(f"{prefix}.training_batch")
    utils = module_alone(
        f"{prefix}.workers.worker_utils",
        f"{prefix}.distributed.strategy",
        f"{prefix}.utils.torch_utils",
        "skyrl.train.dataset.bin_packing",
        "skyrl.train.dataset.replay_buffer",
    )
    for of_rank in micro_batches(LENGTHS, 10, world_size=2):
        rollouts, rows = rows_of(of_rank)
        utils.make_seq_packer.return_value.pack.return_value = rows
        mask = (torch.arange(10) < torch.tensor(LENGTHS)[rollouts][:, None]).long()
        data = utils.TrainingInputBatch({"sequences": torch.tensor(rollouts)[:, None] * mask, "attention_mask": mask})
        data.metadata = {"response_length": 1}
        iterator = utils.TokenBasedBatchIterator(data, 10)
        batches = list(iterator)
        assert len(batches) == len(iterator) == len(rows)
        assert all(batch["attention_mask"].sum() <= 10 for batch in batches)
        assert torch.equal(iterator.reorder_and_combine_batches(batches)["sequences"], data["sequences"])


def test_slime_s_iterator_takes_the_lists_of_a_rank(module_alone):
    """`DataIterator` of slime (August 2026; no release on PyPI), whose lists are of a rank's own samples."""
    data = module_alone(
        "slime.backends.megatron_utils.data", "slime.utils.accelerator", "slime.backends.megatron_utils.cp_utils"
    )
    came = []
    for of_rank in micro_batches(LENGTHS, 10, world_size=2):
        rollouts, rows = rows_of(of_rank)
        iterator = data.DataIterator({"tokens": [LENGTHS[number] for number in rollouts], "rollout": rollouts}, rows)
        for _ in rows:
            micro_batch = iterator.get_next(["tokens", "rollout"])
            assert sum(micro_batch["tokens"]) <= 10
            came += micro_batch["rollout"]
    assert sorted(came) == [*range(len(LENGTHS))]


def test_the_limit_holds_where_the_sum_asks_for_fewer_micro_batches():
    """verl#7553: three rollouts of 6 are 18 tokens, which is two micro-batches of 10 by their sum; one got 12."""
    [of_rank] = micro_batches([6, 6, 6], 10, world_size=1)
    assert sorted(of_rank) == [[0], [1], [2]]


def test_ranks_take_as_many_steps_where_one_has_all_the_long_rollouts():
    """EasyR1#11012: ranks that count their own micro-batches count 4 and 1, and the first waits for ever."""
    of_ranks = micro_batches([10] * 4 + [2] * 4, 10, world_size=2)
    assert [len(of_rank) for of_rank in of_ranks] == [3, 3]


def test_fewer_rollouts_than_ranks_are_refused_or_leave_empty_micro_batches():
    assert sorted(micro_batches([5], 10, world_size=3)) == [[[]], [[]], [[0]]]
    with pytest.raises(ValueError, match="allow_empty=True"):
        micro_batches([5], 10, world_size=3, allow_empty=False)


def test_another_world_size_is_refused():
    rollouts = Rollouts(queries=[[1]] * 3, responses=[[2] * 4] * 3)
    batches = pack_rollouts(rollouts, max_seq_len=5, pad_token_id=0)
    with pytest.raises(ValueError, match="world_size must divide the 3 batches, got 2"):
        as_micro_batches(batches, world_size=2)
