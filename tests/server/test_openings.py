"""Streams that open in a wave: what others send next waits until it is over."""

import asyncio
from contextlib import ExitStack

import pytest

from packhorse.server import openings as module
from packhorse.server import together
from packhorse.server.lanes import Lanes
from packhorse.server.metrics import Metrics
from packhorse.server.openings import MANY, MOST_SECONDS, QUIET_SECONDS, Openings
from packhorse.server.servicer import PackingServicer
from packhorse.server.stream_limit import StreamLimit
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import WIRE_VERSION


class Clock:
    """The running loop's time, which stands still but for `pass_on`."""

    def __init__(self):
        self._now = 100.0
        self._loop = asyncio.get_running_loop()
        self._loop.time = lambda: self._now

    async def pass_on(self, seconds):
        self._now += seconds
        for _ in range(4):  # turns of the loop: its timers run, and what waited for them
            await asyncio.sleep(0)


@pytest.fixture
def streams():
    with ExitStack() as streams:
        yield streams


@pytest.fixture
def lanes():
    lanes = Lanes.for_this_machine()
    yield lanes
    lanes.close()


def test_many_streams_make_a_wave_until_it_is_quiet(streams):
    async def run():
        clock, openings = Clock(), Openings()
        for _ in range(MANY - 1):
            streams.enter_context(openings.stream())
        assert not openings.are_many()
        await clock.pass_on(QUIET_SECONDS / 2)
        streams.enter_context(openings.stream())
        assert openings.are_many()
        waiting = asyncio.ensure_future(openings.over())
        await clock.pass_on(QUIET_SECONDS / 2)
        streams.enter_context(openings.stream())
        await clock.pass_on(QUIET_SECONDS / 2)
        assert openings.are_many()
        assert not waiting.done()
        await clock.pass_on(QUIET_SECONDS)
        assert not openings.are_many()
        assert waiting.done()
        streams.enter_context(openings.stream())
        assert not openings.are_many()  # another wave, of one

    asyncio.run(run())


def test_a_wave_lasts_while_streams_get_their_first_blocks(streams):
    async def run():
        clock, openings = Clock(), Openings()
        openings.got_first()
        assert not openings.are_many()  # of a stream alone
        for _ in range(MANY):
            streams.enter_context(openings.stream())
        for _ in range(4):
            await clock.pass_on(QUIET_SECONDS * 0.75)
            assert openings.are_many()
            openings.got_first()
        await clock.pass_on(2 * QUIET_SECONDS)
        openings.got_first()
        assert not openings.are_many()

    asyncio.run(run())


def test_a_wave_holds_up_its_own_streams_and_none_that_was_open_before(streams):
    async def run():
        clock, openings = Clock(), Openings()
        before = streams.enter_context(openings.stream())
        await clock.pass_on(2 * QUIET_SECONDS)
        waves = [streams.enter_context(openings.stream()) for _ in range(MANY)]
        assert all(openings.hold_up(wave) for wave in waves)
        assert not openings.hold_up(before)
        await clock.pass_on(2 * QUIET_SECONDS)
        assert not any(openings.hold_up(wave) for wave in waves)

    asyncio.run(run())


def test_streams_that_have_left_are_none_of_the_wave(streams):
    async def run():
        clock, openings = Clock(), Openings()
        for _ in range(3 * MANY):
            with openings.stream():
                assert not openings.are_many()
        before = openings.stream()
        before.__enter__()
        await clock.pass_on(2 * QUIET_SECONDS)
        for _ in range(MANY):
            streams.enter_context(openings.stream())
        before.__exit__(None, None, None)  # it was of another wave
        assert openings.are_many()

    asyncio.run(run())


def test_nobody_waits_where_streams_open_without_end(streams):
    async def run():
        clock, openings = Clock(), Openings()
        for _ in range(MANY):
            streams.enter_context(openings.stream())
        waiting = asyncio.ensure_future(openings.over())
        seconds = 0.0
        while not waiting.done():
            streams.enter_context(openings.stream())
            await clock.pass_on(QUIET_SECONDS / 2)
            seconds += QUIET_SECONDS / 2
            assert seconds <= MOST_SECONDS + 2 * QUIET_SECONDS
        assert seconds >= MOST_SECONDS
        for _ in range(2 * MANY):
            streams.enter_context(openings.stream())
            assert not openings.are_many()
            await clock.pass_on(QUIET_SECONDS / 2)
        await clock.pass_on(2 * QUIET_SECONDS)
        for _ in range(MANY):
            streams.enter_context(openings.stream())
        assert openings.are_many()  # another wave

    asyncio.run(run())


def test_who_left_meanwhile_holds_up_nobody(streams):
    async def run():
        clock, openings = Clock(), Openings()
        for _ in range(MANY):
            streams.enter_context(openings.stream())
        left, stays = (asyncio.ensure_future(openings.over()) for _ in range(2))
        await clock.pass_on(0)
        left.cancel()
        await clock.pass_on(2 * QUIET_SECONDS)
        assert stays.done()

    asyncio.run(run())


class Backend:
    """Streams of a header and four blocks; keeps which were made."""

    def __init__(self):
        self.made = []

    def open_stream(self, request):
        return Stream(request.dataset, self.made)


class Stream:
    header = pb.StreamHeader(num_steps=4)

    def __init__(self, name, made):
        self._name, self._made = name, made
        self._left = [range(step, step + 1) for step in range(4)]

    def is_arranged(self, _steps=None):
        return True

    def take(self):
        return self._left.pop(0) if self._left else range(0)

    def make(self, steps):
        self._made.append((self._name, steps.start))
        return pb.StreamBinsResponse(block=pb.StreamBlock(first_step=steps.start, num_steps=1))

    def is_current(self):
        return True

    def close(self):
        pass


class Context:
    def add_done_callback(self, callback):
        pass


def test_next_blocks_are_made_once_no_others_open(lanes, monkeypatch):
    monkeypatch.setattr(module, "QUIET_SECONDS", 5.0)
    monkeypatch.setattr(module, "MANY", 2)
    monkeypatch.setattr(together, "GATHER_SECONDS", 0.0)  # the clock stands still
    backend = Backend()

    async def run():
        clock = Clock()
        servicer = PackingServicer(backend, Metrics(list), lanes, StreamLimit(10))

        def opened(name):
            return servicer.StreamBins(pb.StreamBinsRequest(dataset=name, wire_version=WIRE_VERSION), Context())

        async def first_of(stream):
            assert (await anext(stream)).HasField("header")
            assert (await anext(stream)).block.first_step == 0

        alone, others = opened("alone"), [opened(name) for name in ("one", "two")]
        await first_of(alone)
        assert (await anext(alone)).block.first_step == 1  # nobody else opens
        for other in others:
            await first_of(other)
        assert (await anext(alone)).block.first_step == 2  # begun before others opened
        last, *seconds = (asyncio.ensure_future(anext(stream)) for stream in (alone, *others))
        await clock.pass_on(0)
        for _ in range(3):
            await lanes.small_blocks.submit(int)  # what was put into the lane before is made now
        assert sorted(backend.made) == [("alone", 0), ("alone", 1), ("alone", 2), ("one", 0), ("two", 0)]
        await clock.pass_on(6.0)
        assert [(await each).block.first_step for each in (last, *seconds)] == [3, 1, 1]
        for other in others:
            assert [each.block.first_step async for each in other] == [2, 3]
            await clock.pass_on(0)

    asyncio.run(asyncio.wait_for(run(), 60))
