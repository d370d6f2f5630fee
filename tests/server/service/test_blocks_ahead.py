"""How many blocks of a stream are made while one is sent."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from packhorse.jobs import available_cores
from packhorse.server.service.lanes import Lanes
from packhorse.server.service.servicer import LARGE_BLOCK_BYTES, SMALL_BLOCK_BYTES, PackingServicer
from packhorse.server.service.stream_limit import StreamLimit
from packhorse.server.watching.metrics import Metrics
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import WIRE_VERSION

MEDIUM_BYTES = 2 * SMALL_BLOCK_BYTES


class Stream:
    """Blocks of one step and so many bytes each; those after the second are made when `gate` is set."""

    header = pb.StreamHeader(num_steps=20)
    with_tokens = False

    def __init__(self, num_bytes):
        self._ids = bytes(num_bytes)
        self._left = [range(step, step + 1) for step in range(20)]
        self.gate = threading.Event()
        self.threads = {}
        self.is_closed = False
        self.unarranged, self.arranging, self.is_free = set(), threading.Event(), threading.Event()

    def is_arranged(self, steps=range(1)):
        return not self.unarranged.intersection(steps)

    def arrange_in_slices(self, steps):
        self.threads["arranging"] = threading.current_thread().name.rpartition("_")[0]
        self.arranging.set()
        assert self.is_free.wait(20)
        self.unarranged.difference_update(steps)
        yield 0

    def take(self):
        return self._left.pop(0) if self._left else range(0)

    def make(self, steps):
        self.threads[steps.start] = threading.current_thread().name.rpartition("_")[0]
        assert steps.start < 2 or self.gate.wait(20)
        return pb.StreamBinsResponse(
            block=pb.StreamBlock(first_step=steps.start, num_steps=1, bins=pb.Bins(ids=self._ids))
        )

    def is_current(self):
        return True

    def close(self):
        self.is_closed = True

    @property
    def num_taken(self):
        return 20 - len(self._left)


@pytest.fixture
def lanes():
    lanes = Lanes.for_this_machine()
    yield lanes
    lanes.close()


@pytest.fixture
def opened(lanes):
    """Function: the messages of a stream; to be called in a running loop."""

    def opened(stream):
        servicer = PackingServicer(
            SimpleNamespace(open_stream=lambda request: stream), Metrics(list), lanes, StreamLimit(10)
        )
        context = SimpleNamespace(add_done_callback=lambda callback: None)
        request = pb.StreamBinsRequest(dataset="data", wire_version=WIRE_VERSION, with_tokens=stream.with_tokens)
        return servicer.StreamBins(request, context)

    return opened


async def second_block(messages):
    """Reads until the second block, after which a third is begun."""
    for _ in ("header", "first block", "second block"):
        message = await anext(messages)
    return message.block.first_step


@pytest.mark.parametrize(
    ("num_bytes", "num_more", "lane"),
    [(MEDIUM_BYTES, 1, "streams"), (10, 0, "small-blocks"), (LARGE_BLOCK_BYTES + 1, 0, "streams")],
)
def test_a_consumer_that_waits_has_one_more_made_unless_blocks_are_small_or_very_large(
    opened, num_bytes, num_more, lane
):
    async def run():
        stream = Stream(num_bytes)
        messages = opened(stream)
        assert await second_block(messages) == 1
        assert stream.num_taken == 3
        third = asyncio.ensure_future(anext(messages))
        for _ in range(3):
            await asyncio.sleep(0)
        assert stream.num_taken == 3 + num_more
        stream.gate.set()
        assert (await third).block.first_step == 2
        assert stream.num_taken == 4
        assert [message.block.first_step async for message in messages] == list(range(3, 20))
        assert set(stream.threads.values()) == {"small-blocks", lane}

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_consumer_that_is_slow_has_one_made(opened, lanes, monkeypatch):
    begun = []
    submit = lanes.streams.submit
    monkeypatch.setattr(lanes.streams, "submit", lambda *work: begun.append(submit(*work)) or begun[-1])

    async def run():
        stream = Stream(MEDIUM_BYTES)
        stream.gate.set()
        messages = opened(stream)
        await second_block(messages)
        for number in range(2, 12):
            assert stream.num_taken == number + 1
            await asyncio.wait(begun)
            assert (await anext(messages)).block.first_step == number

    asyncio.run(asyncio.wait_for(run(), 60))


def test_closing_a_stream_gives_up_what_was_begun(opened):
    async def run():
        stream = Stream(MEDIUM_BYTES)
        messages = opened(stream)
        await second_block(messages)
        third = asyncio.ensure_future(anext(messages))
        for _ in range(3):
            await asyncio.sleep(0)
        third.cancel()
        with pytest.raises(asyncio.CancelledError):
            await third
        assert stream.is_closed
        stream.gate.set()

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("num_bytes", [10, MEDIUM_BYTES])
def test_a_block_whose_windows_are_being_arranged_holds_up_nobody_elses(opened, num_bytes):
    async def run():
        waiting, other = Stream(num_bytes), Stream(num_bytes)
        waiting.unarranged.add(0)
        waiting.gate.set()
        other.gate.set()
        messages = opened(waiting)
        assert (await anext(messages)).HasField("header")
        first = asyncio.ensure_future(anext(messages))
        assert await asyncio.to_thread(waiting.arranging.wait, 20)
        steps = [message.block.first_step async for message in opened(other) if message.HasField("block")]
        assert steps == list(range(20))
        assert not first.done()
        assert waiting.num_taken == 1  # a second block would keep a thread until its turn comes
        waiting.is_free.set()
        assert (await first).block.first_step == 0
        assert [message.block.first_step async for message in messages] == list(range(1, 20))
        assert waiting.threads["arranging"] == "arranging"

    asyncio.run(asyncio.wait_for(run(), 60))


def test_tokens_that_hang_hold_up_no_ids(opened):
    """As on a disk that does not answer: more streams of tokens wait than their lane has threads."""

    async def run():
        hanging = [Stream(MEDIUM_BYTES) for _ in range(3 * available_cores())]
        for stream in hanging:
            stream.with_tokens = True
        waiting = [opened(stream) for stream in hanging]
        thirds = [asyncio.ensure_future(third_block(messages)) for messages in waiting]
        ids = Stream(MEDIUM_BYTES)
        ids.gate.set()
        steps = [message.block.first_step async for message in opened(ids) if message.HasField("block")]
        assert steps == list(range(20))
        assert "tokens" not in ids.threads.values()
        assert not any(third.done() for third in thirds)
        for stream in hanging:
            stream.gate.set()
        assert await asyncio.gather(*thirds) == [2] * len(hanging)
        assert {name for stream in hanging for name in stream.threads.values()} == {"tokens"}

    asyncio.run(asyncio.wait_for(run(), 60))


async def third_block(messages):
    await second_block(messages)
    return (await anext(messages)).block.first_step
