"""How many blocks of a stream are made while one is sent."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from packhorse.server.blocks_ahead import AWAITED, LARGE_BLOCK_BYTES, MOST_AHEAD, SMALL_BLOCK_BYTES, BlocksAhead
from packhorse.server.lanes import Lane

MEDIUM = 1 << 20


class Steps:
    """Stands in for an open stream: its blocks are of one step each."""

    def __init__(self, num_blocks=100):
        self.left = list(range(num_blocks))
        self.is_closed = False
        self.unarranged, self.arranging, self.gate = set(), threading.Event(), threading.Event()

    def is_arranged(self, steps):
        return not self.unarranged.intersection(steps)

    def arrange_in_pieces(self, steps):
        self.arranged_by = threading.current_thread().name
        self.arranging.set()
        assert self.gate.wait(20)
        self.unarranged.difference_update(steps)
        yield 0

    def take(self):
        return range(self.left[0], self.left.pop(0) + 1) if self.left else range(0)

    def close(self):
        self.is_closed = True


@pytest.fixture
def lanes():
    names = {"small_blocks": ("small", 1), "streams": ("large", 2), "arranging": ("arranging", 1)}
    all_of_them = SimpleNamespace(**{field: Lane(name, threads=threads) for field, (name, threads) in names.items()})
    yield all_of_them
    for lane in vars(all_of_them).values():
        lane.close()


class Blocks:
    """Made when `gate` is set, and by which thread."""

    def __init__(self):
        self.gate = threading.Event()
        self.begun = []

    def make(self, steps):
        self.begun.append(threading.current_thread().name)
        assert self.gate.wait(20)
        return steps.start


def test_a_consumer_that_waits_has_more_made(lanes):
    async def run():
        blocks, steps = Blocks(), Steps()
        ahead = BlocksAhead(steps, lanes, blocks.make)
        for number in range(AWAITED):
            ahead.begin(MEDIUM)
            assert len(steps.left) == 99 - number
            upcoming = ahead.take()  # which is not made yet
            blocks.gate.set()
            assert await upcoming == number
            blocks.gate.clear()
        ahead.begin(MEDIUM)
        assert len(steps.left) == 100 - AWAITED - MOST_AHEAD
        blocks.gate.set()
        assert [await ahead.take() for _ in range(MOST_AHEAD)] == [AWAITED + number for number in range(MOST_AHEAD)]
        assert {name.rsplit("_", 1)[0] for name in blocks.begun} == {"large"}

    asyncio.run(run())


def test_a_consumer_that_has_become_slow_soon_has_one_made(lanes):
    async def run():
        blocks, steps = Blocks(), Steps()
        ahead = BlocksAhead(steps, lanes, blocks.make)
        num_taken = 0

        async def take(is_slow):
            nonlocal num_taken
            ahead.begin(MEDIUM)
            if is_slow:
                blocks.gate.set()
                await asyncio.wait(list(ahead._upcoming))
            upcoming = ahead.take()
            blocks.gate.set()
            assert await upcoming == num_taken
            num_taken += 1
            await asyncio.gather(*ahead._upcoming)
            blocks.gate.clear()
            return 100 - len(steps.left) - num_taken

        assert [await take(is_slow=False) for _ in range(AWAITED)][-1] == 0
        assert await take(is_slow=True) == MOST_AHEAD - 1
        assert [await take(is_slow=True) for _ in range(2 * AWAITED + MOST_AHEAD)][-1] == 0

    asyncio.run(run())


def test_a_consumer_that_is_slow_has_one_made(lanes):
    async def run():
        blocks, steps = Blocks(), Steps()
        blocks.gate.set()
        ahead = BlocksAhead(steps, lanes, blocks.make)
        for number in range(5):
            ahead.begin(MEDIUM)
            assert len(steps.left) == 99 - number
            await asyncio.wait(list(ahead._upcoming))
            assert await ahead.take() == number

    asyncio.run(run())


@pytest.mark.parametrize("num_bytes", [SMALL_BLOCK_BYTES - 1, LARGE_BLOCK_BYTES + 1])
def test_one_is_made_after_a_small_or_very_large_block(lanes, num_bytes):
    async def run():
        blocks, steps = Blocks(), Steps()
        ahead = BlocksAhead(steps, lanes, blocks.make)
        for number in range(AWAITED + 1):
            ahead.begin(num_bytes)
            assert len(steps.left) == 99 - number
            upcoming = ahead.take()  # awaited
            blocks.gate.set()
            assert await upcoming == number
            blocks.gate.clear()
        blocks.gate.set()
        lane = "small" if num_bytes < SMALL_BLOCK_BYTES else "large"
        assert {name.rsplit("_", 1)[0] for name in blocks.begun} == {lane}

    asyncio.run(run())


def test_small_blocks_are_made_once_the_others_have_left(lanes):
    """One that is made among the small ones would keep their thread until those before it have had their turn."""

    async def run():
        blocks, steps = Blocks(), Steps()
        blocks.gate.set()
        ahead = BlocksAhead(steps, lanes, blocks.make)
        for _ in range(AWAITED):
            ahead.begin(MEDIUM)
            await ahead.take()
        ahead.begin(MEDIUM)
        num_left = len(steps.left)
        for _ in range(MOST_AHEAD - 1):
            await ahead.take()
            ahead.begin(SMALL_BLOCK_BYTES - 1)  # as where many streams have opened
            assert len(steps.left) == num_left
        await ahead.take()
        ahead.begin(SMALL_BLOCK_BYTES - 1)
        await ahead.take()
        assert [name.rsplit("_", 1)[0] for name in blocks.begun[-2:]] == ["large", "small"]

    asyncio.run(run())


def test_one_is_made_while_others_keep_the_threads_at_work(lanes):
    async def run():
        blocks, others, steps = Blocks(), Blocks(), Steps()
        ahead = BlocksAhead(steps, lanes, blocks.make)
        for number in range(AWAITED):
            ahead.begin(MEDIUM)
            upcoming = ahead.take()
            blocks.gate.set()
            assert await upcoming == number
            blocks.gate.clear()
        waiting = [lanes.streams.submit(others.make, range(1)) for _ in range(4)]
        ahead.begin(MEDIUM)
        assert len(steps.left) == 99 - AWAITED
        blocks.gate.set()
        others.gate.set()
        await asyncio.gather(*waiting)
        assert await ahead.take() == AWAITED

    asyncio.run(run())


def test_after_the_last_block_none_is_begun_and_closing_gives_up(lanes):
    async def run():
        blocks, steps = Blocks(), Steps(2)
        ahead = BlocksAhead(steps, lanes, blocks.make)
        ahead.begin(MEDIUM)
        first = ahead.take()
        ahead.begin(MEDIUM)
        second = ahead._upcoming[0]
        ahead.begin(MEDIUM)
        ahead.close()
        assert steps.is_closed
        assert second.cancelled()
        blocks.gate.set()
        assert await first == 0

    asyncio.run(run())

    async def end():
        blocks = Blocks()
        blocks.gate.set()
        ahead = BlocksAhead(Steps(1), lanes, blocks.make)
        ahead.begin(MEDIUM)
        assert await ahead.take() == 0
        ahead.begin(MEDIUM)
        assert ahead.take() is None

    asyncio.run(end())


@pytest.mark.parametrize("num_bytes", [SMALL_BLOCK_BYTES - 1, MEDIUM])
def test_a_block_whose_windows_are_being_arranged_holds_up_nobody_elses(lanes, num_bytes):
    async def run():
        waiting, others = Steps(), Steps()
        waiting.unarranged.add(0)
        blocks = Blocks()
        blocks.gate.set()
        ahead, of_others = BlocksAhead(waiting, lanes, blocks.make), BlocksAhead(others, lanes, blocks.make)
        ahead.begin(num_bytes)
        upcoming = ahead.take()
        assert await asyncio.to_thread(waiting.arranging.wait, 20)
        for number in range(5):
            of_others.begin(num_bytes)
            assert await of_others.take() == number
        assert not upcoming.done()
        waiting.gate.set()
        assert await upcoming == 0
        assert waiting.arranged_by.startswith("arranging")
        assert not {name for name in blocks.begun if name.startswith("arranging")}

    asyncio.run(run())


def test_no_block_is_begun_after_one_whose_windows_are_being_arranged(lanes):
    """It would keep a thread until its turn comes, and with as many threads as there are it would never come."""

    async def run():
        steps, blocks = Steps(), Blocks()
        steps.unarranged.add(AWAITED)
        ahead = BlocksAhead(steps, lanes, blocks.make)
        for number in range(AWAITED):
            ahead.begin(MEDIUM)
            upcoming = ahead.take()
            blocks.gate.set()
            assert await upcoming == number
            blocks.gate.clear()
        ahead.begin(MEDIUM)
        assert len(steps.left) == 100 - AWAITED - 1
        ahead.begin(MEDIUM)
        assert len(steps.left) == 100 - AWAITED - 1
        blocks.gate.set()
        steps.gate.set()
        assert await ahead.take() == AWAITED
        ahead.begin(MEDIUM)
        assert len(steps.left) == 100 - AWAITED - 1 - MOST_AHEAD

    asyncio.run(run())
