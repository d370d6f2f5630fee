"""Streams that open go before what others send next."""

import asyncio
import threading
from dataclasses import replace

import pytest

from packhorse.server import openings as module
from packhorse.server.lanes import Lane, Lanes
from packhorse.server.metrics import Metrics
from packhorse.server.openings import Openings
from packhorse.server.servicer import PackingServicer
from packhorse.server.stream_limit import StreamLimit
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import WIRE_VERSION


class Backend:
    """Streams of a header and three blocks; the first block of stream "slow" is made when `gate` is set."""

    def __init__(self):
        self.gate = threading.Event()
        self.made = []

    def stream_bins(self, request):
        yield pb.StreamBinsResponse(header=pb.StreamHeader(num_steps=3))
        if request.dataset == "slow":
            assert self.gate.wait(20)
        for step in range(3):
            self.made.append((request.dataset, step))
            yield pb.StreamBinsResponse(block=pb.StreamBlock(first_step=step, num_steps=1))


class Context:
    def add_done_callback(self, callback):
        pass


@pytest.fixture
def lanes():
    lanes = replace(Lanes.for_this_machine(), small_blocks=Lane("small", threads=2))  # one more than "slow" holds
    yield lanes
    lanes.close()


def test_a_second_block_is_made_once_others_have_their_first(lanes):
    backend = Backend()

    async def run():
        servicer = PackingServicer(backend, Metrics(lambda: []), lanes, StreamLimit(10))

        def opened(name):
            return servicer.StreamBins(pb.StreamBinsRequest(dataset=name, wire_version=WIRE_VERSION), Context())

        slow, quick = opened("slow"), opened("quick")
        header_of_slow = asyncio.ensure_future(anext(slow))
        assert (await anext(quick)).HasField("header")
        assert (await anext(quick)).block.first_step == 0
        second = asyncio.ensure_future(anext(quick))
        for _ in range(3):
            await lanes.small_blocks.submit(int)  # what was put into the lane before is made now
        assert backend.made == [("quick", 0)]
        backend.gate.set()
        await header_of_slow
        assert (await second).block.first_step == 1
        assert [each.block.first_step async for each in quick] == [2]
        assert [each.block.first_step async for each in slow] == [0, 1, 2]

    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        backend.gate.set()


def test_an_opening_that_lasts_holds_others_up_no_longer_than_the_head_start(monkeypatch):
    monkeypatch.setattr(module, "OPENING_HEAD_START_SECONDS", 0.01)

    async def run():
        openings = Openings()
        with openings.one():
            await asyncio.wait_for(openings.over(), 20)
            assert not openings.are_over

    asyncio.run(run())


def test_an_opening_ends_once_and_with_its_stream():
    async def run():
        openings = Openings()
        with openings.one() as first, openings.one():
            first()
            first()
            assert not openings.are_over
            over = openings.over()
        assert over.done()
        with pytest.raises(ValueError, match="broke"), openings.one():
            raise ValueError("broke")
        assert openings.are_over
        assert openings.over().done()

    asyncio.run(run())
