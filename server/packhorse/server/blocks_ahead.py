"""The blocks of a stream that are made while one is sent.

Owns how many, and in which lane; leaves making them to `open_stream` and sending them to the servicer.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from packhorse.server.lanes import Lane, Lanes
from packhorse.server.open_stream import BLOCK_BYTES, OpenStream
from packhorse.v1 import packing_pb2 as pb

SMALL_BLOCK_BYTES = 40 << 10
"""After a smaller block the next one is made among the small ones too."""

LARGE_BLOCK_BYTES = BLOCK_BYTES + BLOCK_BYTES // 2
"""No more than the next one is made while a larger block is sent."""

MOST_AHEAD = 3
"""For a consumer that waits for blocks, where threads would be idle. Two threads make two, and one more is at hand for
the first that is done: the event loop, which tells a thread to go on, waits for the interpreter first."""

AWAITED = 2
"""So many blocks more than not must have been waited for: one that nobody has read may lie in the network's buffers."""


class BlocksAhead:
    """Of one stream. Used from one event loop only.

    Args:
        stream: of which blocks are taken.
        lanes: where they are made.
        make: makes a block of its steps; None where the stream ends before it.
    """

    def __init__(self, stream: OpenStream, lanes: Lanes, make: Callable[[range], pb.StreamBinsResponse | None]) -> None:
        self._stream = stream
        self._lanes = lanes
        self._make = make
        self._upcoming: deque[asyncio.Future[pb.StreamBinsResponse | None]] = deque()
        self._num_awaited = 0
        self._num_bytes = 0  # of the block before the next one
        self._is_arranging = False

    def begin(self, num_bytes: int, after: Callable[[], Awaitable[None]] | None = None) -> None:
        """Has the next blocks made while one of so many bytes is sent; where there is something to wait for, one."""
        self._num_bytes = num_bytes
        is_small = num_bytes < SMALL_BLOCK_BYTES
        lane = self._lanes.small_blocks if is_small else self._lanes.streams
        if after is not None:
            self._upcoming.append(asyncio.ensure_future(self._made_after(after, lane)))
            return
        is_fast = self._num_awaited >= AWAITED and not is_small  # no two lanes have blocks of a stream at a time
        most = MOST_AHEAD if is_fast and num_bytes <= LARGE_BLOCK_BYTES else 1
        while not self._upcoming or (
            len(self._upcoming) < most and lane.is_short_of_work and not self._is_arranging  # its turn comes first
        ):
            if not (steps := self._stream.take()):
                return
            self._upcoming.append(self._begun(steps, lane))

    async def _made_after(self, after: Callable[[], Awaitable[None]], lane: Lane) -> pb.StreamBinsResponse | None:
        await after()
        steps = self._stream.take()
        return await self._begun(steps, lane) if steps else None

    def _begun(self, steps: range, lane: Lane) -> "asyncio.Future[pb.StreamBinsResponse | None]":
        """Has a block made, at once where nothing is to be arranged for it."""
        if self._stream.is_arranged(steps):
            return lane.submit(self._make, steps)
        self._is_arranging = True
        return asyncio.ensure_future(self._arranged(steps, lane))

    async def _arranged(self, steps: range, lane: Lane) -> pb.StreamBinsResponse | None:
        try:
            await self._lanes.arranging.run(self._stream.arrange_in_pieces(steps), _hold_nothing)
        finally:
            self._is_arranging = False
        return await lane.submit(self._make, steps)

    def take(self) -> "asyncio.Future[pb.StreamBinsResponse | None] | None":
        """Returns the next block that was begun; None after the last."""
        if not self._upcoming:
            return None
        following = self._upcoming.popleft()
        is_awaited = not following.done() and self._num_bytes >= SMALL_BLOCK_BYTES
        self._num_awaited = min(2 * AWAITED, self._num_awaited + 1) if is_awaited else max(0, self._num_awaited - 1)
        return following

    def close(self) -> None:
        """Gives up what was begun."""
        self._stream.close()
        for each in self._upcoming:
            each.cancel()


async def _hold_nothing(_num_bytes: int) -> None:
    """Windows are bounded by what an assignment remembers."""
