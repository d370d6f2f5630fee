"""What keeps requests waiting until the kernels of streams are there, so that no request compiles them by itself.

Owns the waiting; leaves health checks and reflection, which need no kernels, alone.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Lets a service's calls through once it is open.

    Args:
        service: its full name.
    """

    def __init__(self, service: str) -> None:
        self._prefix = f"/{service}/"
        self._is_open = asyncio.Event()

    def open(self) -> None:
        """Lets all calls through, from now on."""
        self._is_open.set()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Waits where the call is the service's."""
        if handler_call_details.method.startswith(self._prefix):
            await self._is_open.wait()
        return await continuation(handler_call_details)
