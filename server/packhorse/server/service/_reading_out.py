"""The refusal of a client that is still sending a stream of requests.

Owns reading what it sends before it is refused. Leaves the refusal itself to `servicer`.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from packhorse.server.base.faults import ServiceError

QUIET_SECONDS = 0.05
"""Silence of a client after which it is refused."""

READ_OUT_SECONDS = 2.0
"""Time after which a client is refused even if it is still sending."""


@asynccontextmanager
async def reading_out(messages: AsyncIterator[object]) -> AsyncIterator[None]:
    """Before a client is refused, reads what it still sends: otherwise grpc.aio reports INTERNAL, not the refusal.

    The read is not cancelled: gRPC's core would write what still arrives to memory that was freed. It ends by itself
    when the call ends.
    """
    try:
        yield
    except Exception:
        end = time.monotonic() + READ_OUT_SECONDS
        while (left := end - time.monotonic()) > 0:
            reading = asyncio.ensure_future(anext(messages, None))
            # The error is looked at, so that asyncio does not log its trace.
            reading.add_done_callback(lambda read: read.cancelled() or read.exception())
            done, _ = await asyncio.wait({reading}, timeout=min(QUIET_SECONDS, left))
            if not done or reading.cancelled():
                break
            failure = reading.exception()
            # `followed_call` raises it for a message that cannot be decoded; more may follow.
            is_undecodable = isinstance(failure, ServiceError)
            if not is_undecodable and (failure or reading.result() is None):
                break
        raise
