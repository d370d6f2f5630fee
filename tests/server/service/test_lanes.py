"""Lanes: turns, bounds and cancellation, without a server."""

import asyncio
import os
import sys
import threading

import pytest
from tests.waiting import time_with, until

from packhorse.server.base.time_slices import Pace, finish
from packhorse.server.service.lanes import SMALL_ANSWER_BYTES, Lane, LaneFullError, Lanes
from packhorse.server.watching.metrics import Metrics, values_of


async def nothing(num_bytes):
    pass


def counting(name, num_pieces, log, num_bytes=SMALL_ANSWER_BYTES + 1):
    for _ in range(num_pieces):
        log.append(name)
        yield num_bytes
    return name


@pytest.fixture
def make_lane():
    made = []

    def make(**options):
        made.append(Lane("test", **{"threads": 1} | options))
        return made[-1]

    yield make
    for lane in made:
        lane.close()


def test_requests_take_turns(make_lane):
    async def run():
        lane, log = make_lane(), []
        long, short = (
            asyncio.ensure_future(lane.run(counting(name, n, log), nothing)) for name, n in (("long", 50), ("short", 3))
        )
        assert await short == "short"
        assert not long.done()
        assert log.count("long") < 25
        assert await long == "long"

    asyncio.run(run())


def test_a_full_lane_refuses_and_one_that_emptied_does_not(make_lane):
    async def run():
        lane, gate = make_lane(most_requests=2), threading.Event()

        def waiting():
            gate.wait(10)
            return 1
            yield

        running = [asyncio.ensure_future(lane.run(waiting(), nothing)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(LaneFullError):
            await lane.run(waiting(), nothing)
        gate.set()
        assert await asyncio.gather(*running) == [1, 1]
        assert await lane.run(waiting(), nothing) == 1

    asyncio.run(run())


def test_what_is_cancelled_before_its_turn_never_runs_and_else_ends_with_its_piece(make_lane):
    async def run():
        lane, log, gate = make_lane(most_requests=2), [], threading.Event()

        def pieces():
            log.append("first")
            gate.wait(10)
            yield SMALL_ANSWER_BYTES + 1
            log.append("second")

        running = asyncio.ensure_future(lane.run(pieces(), nothing))
        queued = asyncio.ensure_future(lane.run(counting("queued", 1, log), nothing))
        await until(lambda: log)
        for task in (running, queued):
            task.cancel()
        await asyncio.wait((running, queued))
        gate.set()
        await lane.submit(int)
        assert log == ["first"]

    asyncio.run(run())


def test_bytes_are_told_after_every_turn_and_may_be_refused(make_lane):
    async def run():
        told = []
        sizes = [SMALL_ANSWER_BYTES + more for more in (5, 7, 9)]

        def pieces():
            yield from sizes
            raise AssertionError("refused before")

        async def hold(num_bytes):
            told.append(num_bytes)
            if num_bytes == sizes[-1]:
                raise MemoryError

        with pytest.raises(MemoryError):
            await make_lane().run(pieces(), hold)
        assert told == sizes

    asyncio.run(run())


def test_a_small_answer_takes_one_turn_unless_it_takes_long(make_lane, monkeypatch):
    async def run():
        told, turns = [], []

        async def hold(num_bytes):
            told.append(num_bytes)

        lane = make_lane()
        submit = lane.submit
        monkeypatch.setattr(lane, "submit", lambda *work: (turns.append(work), submit(*work))[1])
        log = []
        assert await lane.run(counting("small", 50, log, num_bytes=SMALL_ANSWER_BYTES), hold) == "small"
        assert (len(turns), told, len(log)) == (1, [SMALL_ANSWER_BYTES], 50)
        monkeypatch.setattr("packhorse.server.base.time_slices.SLICE_SECONDS", 0)
        assert await lane.run(counting("slow", 3, log, num_bytes=1), hold) == "slow"
        assert (len(turns), told[1:]) == (1 + 4, [1, 1, 1])

    asyncio.run(run())


def test_what_waits_is_counted_until_it_runs_or_is_cancelled(make_lane):
    async def run():
        lane, metrics, gate = make_lane(), Metrics(list), threading.Event()
        lane.measure(metrics)
        running = lane.submit(gate.wait, 10)
        waiting, cancelled = lane.submit(int), lane.submit(int)
        await until(lambda: values_of(metrics.lane_waiting)["test",] == 2)
        cancelled.cancel()
        await until(lambda: values_of(metrics.lane_waiting)["test",] == 1)
        gate.set()
        await asyncio.wait((running, waiting))
        await lane.submit(int)
        assert values_of(metrics.lane_waiting) == {("test",): 0}
        samples = {sample.name: sample.value for family in metrics.lane_wait.collect() for sample in family.samples}
        assert samples["packhorse_lane_wait_seconds_count"] == 3

    asyncio.run(run())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority of their own")
def test_threads_are_nice(make_lane):
    async def run():
        def niceness():
            return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

        own = niceness()
        if own > 9:
            pytest.skip(f"the tests run with niceness {own}, so lanes cannot be told apart below 20")
        assert await make_lane(niceness=7).submit(niceness) == own + 7
        lanes = Lanes.for_this_machine()
        assert await lanes.streams.submit(niceness) < await lanes.answers.submit(niceness)
        assert await lanes.answers.submit(niceness) < await lanes.packing.submit(niceness)
        lanes.close()

    asyncio.run(run())


def test_pieces_end_when_their_time_is_over(monkeypatch):
    from packhorse.server.base import time_slices

    now = [0.0]
    monkeypatch.setattr(time_slices, "time", time_with(monotonic=lambda: now[0]))
    pace = Pace()
    assert not pace.is_over()
    now[0] = time_slices.SLICE_SECONDS
    assert pace.is_over()
    pace.restart()
    assert not pace.is_over()


def test_finish_returns_what_the_pieces_return():
    assert finish(counting("done", 3, [])) == "done"
