"""Index lists of micro-batches: within the token limit, and as many for every rank, where other packers failed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.client.rollouts import PackOptions, Rollouts, as_micro_batches, pack_rollouts


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
