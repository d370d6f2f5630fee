"""Requests that are no protocol messages, refused like any other bad request.

Owns the interceptor that notices them. gRPC by itself answers UNKNOWN and logs a traceback for each.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from packhorse.server.base.faults import ServiceError, invalid_field


class Decoding(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Hands methods of one service a ServiceError instead of a request that cannot be decoded.

    Args:
        service: full name, e.g. "packhorse.v1.PackingService".
    """

    def __init__(self, service: str) -> None:
        self._prefix = f"/{service}/"

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Returns the method's handler, with a decoder that does not raise."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(self._prefix):
            return handler
        return handler._replace(request_deserializer=_tolerant(handler.request_deserializer))


def _tolerant(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decoded(data: bytes) -> Any | ServiceError:
        try:
            return decode(data)
        except DecodeError:
            return invalid_field("request", f"the request's {len(data)} bytes are no protocol message of this method")

    return decoded
