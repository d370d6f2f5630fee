"""Work of many callers that is handed to a lane together."""

import asyncio
import threading
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from packhorse.server import together as module
from packhorse.server.lanes import Lane
from packhorse.server.metrics import Metrics, values_of
from packhorse.server.together import MOST_TOGETHER, Together


@contextmanager
def lane_and_turns():
    """A lane, and a list that has an item for each turn of its thread."""
    lane, turns = Lane("together", threads=1), []
    submit = lane.submit
    lane.submit = lambda *what, **how: (turns.append(what), submit(*what, **how))[1]
    try:
        yield lane, turns
    finally:
        lane.close()


def test_what_is_gathered_takes_one_turn_and_each_gets_its_own_result():
    def work(number):
        done.append(number)
        if number % 2:
            raise LookupError(str(number))
        return number

    async def run():
        awaited = [together.submit(work, number, gathers=True) for number in range(6)]
        assert not turns
        found = await asyncio.wait_for(asyncio.gather(*awaited, return_exceptions=True), 20)
        assert [each if isinstance(each, int) else str(each) for each in found] == [0, "1", 2, "3", 4, "5"]
        assert done == list(range(6))
        assert len(turns) == 1
        alone = together.submit(work, 8, gathers=False)
        assert len(turns) == 2
        assert await asyncio.wait_for(alone, 20) == 8

    done = []
    with lane_and_turns() as (lane, turns):
        together = Together(lane)
        asyncio.run(run())


def test_each_piece_that_waits_is_counted_until_its_turn():
    def num_waiting():
        return values_of(metrics.lane_waiting)["together",]

    def seen():
        return {sample.name: sample.value for family in metrics.lane_wait.collect() for sample in family.samples}

    async def run():
        lane.measure(metrics)
        awaited = [together.submit(num_waiting, gathers=True) for _ in range(5)]
        assert num_waiting() == 5
        awaited.pop(1).cancel()
        assert await asyncio.wait_for(asyncio.gather(*awaited), 20) == [4, 2, 1, 0]
        assert seen()["packhorse_lane_wait_seconds_count"] == 4
        awaited = [together.submit(int, gathers=True) for _ in range(3)]
        lane.submit(busy.wait)
        await asyncio.sleep(4 * module.GATHER_SECONDS)
        lane.close()
        busy.set()
        await asyncio.wait(awaited)
        assert num_waiting() == 0

    metrics, busy = Metrics(list), threading.Event()
    with lane_and_turns() as (lane, _):
        together = Together(lane)
        asyncio.run(run())


def test_nobody_waits_for_others_where_they_are_enough():
    async def run():
        awaited = [together.submit(int, gathers=True) for _ in range(MOST_TOGETHER + 1)]
        assert len(turns) == 1
        assert await asyncio.wait_for(asyncio.gather(*awaited), 20) == [0] * (MOST_TOGETHER + 1)
        assert len(turns) == 2

    with lane_and_turns() as (lane, turns):
        together = Together(lane)
        asyncio.run(run())


def test_work_that_is_cancelled_before_its_turn_never_runs():
    async def run():
        left, stays = (together.submit(done.append, name, gathers=True) for name in ("left", "stays"))
        left.cancel()
        await asyncio.wait_for(stays, 20)
        assert done == ["stays"]

    done = []
    with lane_and_turns() as (lane, _):
        together = Together(lane)
        asyncio.run(run())


def test_the_loop_goes_on_where_work_takes_long(monkeypatch):
    """A pool may be read from a slow disk: what is done comes at once, the rest when it is, and nobody waits twice."""
    monkeypatch.setattr(module, "GIVE_WAY_SECONDS", 0.05)
    waits = []
    wait = threading.Event.wait

    async def run():
        first = [together.submit(work, gathers=True) for work in (int, slow.wait)]
        assert await asyncio.wait_for(first[0], 20) == 0
        assert not first[1].done()
        monkeypatch.setattr(threading.Event, "wait", lambda self, *limit: (waits.append(limit), wait(self, *limit))[1])
        second = [together.submit(int, gathers=True) for _ in range(2)]
        await asyncio.sleep(4 * module.GATHER_SECONDS)
        assert not waits  # the loop did not give way to a thread that is not free
        slow.set()
        assert await asyncio.wait_for(asyncio.gather(*first, *second), 20) == [0, True, 0, 0]

    slow = threading.Event()
    with lane_and_turns() as (lane, _):
        together = Together(lane)
        asyncio.run(run())


def test_the_loop_gives_way_again_to_a_thread_that_is_behind_and_works(monkeypatch):
    waits = []
    wait = threading.Event.wait
    monkeypatch.setattr(module, "GIVE_WAY_SECONDS", 0.05)

    async def run():
        first = [together.submit(slow[number].wait, gathers=True) for number in range(2)]
        await asyncio.sleep(4 * module.GATHER_SECONDS)
        slow[0].set()
        assert await asyncio.wait_for(asyncio.wrap_future(done), 20)  # one of two since the loop went on
        monkeypatch.setattr(threading.Event, "wait", lambda self, *limit: (waits.append(limit), wait(self, *limit))[1])
        second = [together.submit(int, gathers=True) for _ in range(2)]
        await asyncio.sleep(4 * module.GATHER_SECONDS)
        assert waits == [(0.05,)]
        slow[1].set()
        assert await asyncio.wait_for(asyncio.gather(*first, *second), 20) == [True, True, 0, 0]

    slow, done = [threading.Event(), threading.Event()], Future()
    with lane_and_turns() as (lane, _):
        together = Together(lane)
        count = together._count
        monkeypatch.setattr(together, "_count", lambda: (count(), done.done() or done.set_result(True)))
        asyncio.run(run())


def test_a_lane_that_closes_leaves_nobody_waiting():
    async def run():
        awaited = [together.submit(int, gathers=True) for _ in range(3)]
        before = lane.submit(busy.wait)
        await asyncio.sleep(4 * module.GATHER_SECONDS)
        lane.close()
        busy.set()
        assert await before
        for each in awaited:
            with pytest.raises(asyncio.CancelledError):
                await each

    busy = threading.Event()
    with lane_and_turns() as (lane, _):
        together = Together(lane)
        asyncio.run(run())
