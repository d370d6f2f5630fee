"""The budget of bytes: what is held, waited for, refused and given back."""

import asyncio

import pytest
from tests.waiting import some_turns

from packhorse.server.lanes.memory import MemoryBudget, OutOfMemoryBudgetError


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
