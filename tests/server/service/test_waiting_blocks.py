"""A block that has waited for its client: sent only if nothing has changed by file meanwhile."""

import asyncio
from types import SimpleNamespace

import pytest

from packhorse.server.service import servicer as module
from packhorse.server.service.lanes import Lanes
from packhorse.server.service.servicer import LOOK_AGAIN_SECONDS, PackingServicer
from packhorse.server.service.stream_limit import StreamLimit
from packhorse.server.watching.metrics import Metrics
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import WIRE_VERSION


class Stream:
    """A header and ten blocks, until `changed`."""

    header = pb.StreamHeader(num_steps=10)
    with_tokens = False

    def __init__(self):
        self._left = [range(step, step + 1) for step in range(10)]
        self.num_looks = 0
        self.changed = False

    def is_arranged(self, _steps=None):
        return True

    def take(self):
        return self._left.pop(0) if self._left else range(0)

    def make(self, steps):
        return pb.StreamBinsResponse(block=pb.StreamBlock(first_step=steps.start, num_steps=1))

    def is_current(self):
        self.num_looks += 1
        return not self.changed

    def close(self):
        pass


@pytest.fixture
def lanes():
    lanes = Lanes.for_this_machine()
    yield lanes
    lanes.close()


def test_a_block_that_has_waited_is_looked_at_again(lanes, monkeypatch):
    now, stream = [0.0], Stream()
    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0])
    monkeypatch.setattr(module, "time", clock)

    async def run():
        servicer = PackingServicer(
            SimpleNamespace(open_stream=lambda request: stream), Metrics(list), lanes, StreamLimit(10)
        )
        context = SimpleNamespace(add_done_callback=lambda callback: None)
        came = servicer.StreamBins(pb.StreamBinsRequest(dataset="data", wire_version=WIRE_VERSION), context)
        for _ in range(4):  # the header, and three blocks
            await anext(came)
        assert stream.num_looks == 0  # the client is fast
        now[0] += 2 * LOOK_AGAIN_SECONDS
        assert (await anext(came)).block.first_step == 3
        assert stream.num_looks == 1
        now[0] += 2 * LOOK_AGAIN_SECONDS
        stream.changed = True
        assert [message async for message in came] == []

    asyncio.run(asyncio.wait_for(run(), 60))
