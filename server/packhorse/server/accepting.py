"""Requests that gRPC has yet to accept stay in memory until it has.

Owns a task factory for the loop that serves; leaves listening again to `app`.

grpc.aio asks its core for the next request, and gives it memory to write that to. Where grpc.aio's own loop ends by an
error, as after a path that is no UTF-8, it cancels what it asked for, and frees memory that the core writes to a moment
later: the process died of it in one case of twenty.
"""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

_ASKING = frozenset({"_request_call", "_request_registered_call"})
"""grpc.aio's coroutines whose memory the core writes to."""

_asked: set[asyncio.Task[Any]] = set()


def keep_asked_requests(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any
) -> "asyncio.Task[Any]":
    """Makes a task, as `loop.create_task` does; one that asks for a request goes on when it is cancelled.

    Example:
        >>> async def serve():
        ...     asyncio.get_running_loop().set_task_factory(keep_asked_requests)
    """
    if getattr(coroutine, "__name__", None) not in _ASKING:
        return asyncio.Task(coroutine, loop=loop, **options)
    asking = asyncio.Task(coroutine, loop=loop)
    _asked.add(asking)  # the loop itself knows its tasks weakly
    asking.add_done_callback(_asked.discard)
    return asyncio.Task(_shielded(asking), loop=loop, **options)


async def _shielded(asking: "asyncio.Task[Any]") -> Any:
    return await asyncio.shield(asking)
