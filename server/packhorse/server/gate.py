"""What keeps requests waiting until the kernels of streams are there, so that no request compiles them by itself.

Owns the waiting; leaves health checks and reflection, which need no kernels, alone.
"""

import asyncio
from collections.abc import Awaitable, Callable

import grpc


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[misc]
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
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Waits where the call is the service's."""
        if handler_call_details.method.startswith(self._prefix):
            await self._is_open.wait()
        return await continuation(handler_call_details)
