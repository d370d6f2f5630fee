"""The budget of bytes: what is held, waited for, refused and given back."""

import asyncio

import pytest
from tests.waiting import some_turns

from packhorse.server.service.memory_budget import MemoryBudget, OutOfMemoryBudgetError
from packhorse.server.service.stream_limit import StreamLimit, make_shared_limit


def test_shares_grow_shrink_and_end():
    async def run():
        budget = MemoryBudget(100, 0.01)
        one, other = budget.share(), budget.share()
        await one.hold(60)
        await other.hold(40)
        await one.hold(10)
        await other.hold(90)
        assert budget.held_bytes == 100
        with pytest.raises(OutOfMemoryBudgetError):
            await one.hold(11)
        assert budget.held_bytes == 100
        other.end()
        other.end()
        assert budget.held_bytes == 10
        await one.hold(100)
        one.end()
        assert budget.held_bytes == 0

    asyncio.run(run())


def test_one_waits_for_what_another_gives_back():
    async def run():
        budget = MemoryBudget(100, 30)
        holding = budget.share()
        await holding.hold(100)
        waiting = [asyncio.ensure_future(budget.share().hold(50)) for _ in range(2)]
        await some_turns()
        assert not any(task.done() for task in waiting)
        holding.end()
        await asyncio.wait_for(asyncio.gather(*waiting), 10)
        assert budget.held_bytes == 100

    asyncio.run(run())


@pytest.fixture
def shared(tmp_path):
    """Function: the limit of three processes, as one of them sees it."""
    path = tmp_path / "streams"
    make_shared_limit(path, 3)
    return lambda slot: StreamLimit(4, path, slot)


def test_one_process_counts_alone():
    limit = StreamLimit(2)
    assert [limit.take() for _ in range(4)] == [True, True, False, False]
    limit.give_back()
    assert [limit.take(), limit.take(), limit.most_streams, limit.num_open] == [True, False, 2, 2]


def test_all_processes_count_together(shared):
    first, second, third = (shared(slot) for slot in range(3))
    assert [limit.take() for limit in (first, second, third, first, second, third)] == [True] * 4 + [False] * 2
    second.give_back()
    assert [third.take(), second.take()] == [True, False]
    assert [first.num_open, second.num_open, third.num_open] == [2, 0, 2]


def test_streams_of_a_process_that_died_are_given_back(shared):
    alive, dying = shared(0), shared(1)
    assert [alive.take(), dying.take(), dying.take(), dying.take(), alive.take()] == [True] * 4 + [False]
    shared(1).clear()
    assert [alive.take() for _ in range(4)] == [True] * 3 + [False]
