"""Every call on its way in: its token, and the handler that receives its request.

Owns the server's one interceptor. Leaves receiving requests and sending answers to `followed_call`, what a token grants
to `bearer_tokens`, and the answers to `servicer`.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health

from packhorse.server.access.bearer_tokens import REFLECTION, TokenFile
from packhorse.server.access.caller import CALLER, TokenHolder
from packhorse.server.base.faults import ServiceError
from packhorse.server.service.followed_call import AllCalls, FollowedCall
from packhorse.server.watching.calls import SERVICE, Call, Watcher

_SERVICE_PREFIX, _HEALTH_PREFIX = f"/{SERVICE}/", f"/{health.SERVICE_NAME}/"


class Interceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Admits calls by their tokens, and wraps the handler of each, so that `FollowedCall` receives and answers it.

    Args:
        watchers: what each step is shown to, in this order.
        tokens: the token file. Every call needs one of its tokens, except health checks, which reveal only whether the
            server serves. None if no call needs a token.
        on_refusal: called with every refusal.
        writes_to_end: whether messages are written by `workarounds.write_to_its_end`.
    """

    def __init__(
        self,
        watchers: Sequence[Watcher],
        tokens: TokenFile | None,
        on_refusal: Callable[[ServiceError], None],
        *,
        writes_to_end: bool = True,
    ) -> None:
        self._tokens = tokens
        self._on_refusal = on_refusal
        self._all_calls = AllCalls(watchers, on_refusal, writes_to_end=writes_to_end)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Returns the method's handler, which receives the request within limits and shows every step."""
        path: str = handler_call_details.method
        handler = await continuation(handler_call_details)
        metadata = handler_call_details.invocation_metadata
        refusal = None if handler is None else self._token_refusal(path, metadata)
        call = Call("other" if handler is None else path.removeprefix("/"))
        call.holder = CALLER.get().name  # after `_token_refusal`, which sets it
        call.trace_parent = _header(metadata, "traceparent") or ""
        self._all_calls.show("began", call)
        if handler is None:
            self._all_calls.end(call, grpc.StatusCode.UNIMPLEMENTED, "there is no such method")
            return None
        followed = FollowedCall(self._all_calls, call, handler, self._all_calls.arriving[path])
        return followed.refusing(refusal) if refusal is not None else followed.handler()

    def _token_refusal(self, path: str, metadata: Any) -> ServiceError | None:
        """Sets `CALLER` to the token's holder; returns the error if the token is missing or not for this method."""
        if self._tokens is None or path.startswith(_HEALTH_PREFIX):
            return None
        try:
            grant = self._tokens.grant_of(_header(metadata, "authorization"))
            # Beside our service and health, reflection is the only one.
            grant.check_method(path.removeprefix(_SERVICE_PREFIX) if path.startswith(_SERVICE_PREFIX) else REFLECTION)
        except ServiceError as error:
            self._on_refusal(error)
            return error
        CALLER.set(TokenHolder(self._tokens, grant))
        return None


def _header(metadata: Any, name: str) -> str | None:
    """Returns a header's value; None if it is missing, is bytes, or comes several times."""
    values = [value for key, value in metadata or () if key == name]
    value = values[0] if len(values) == 1 else None
    return value if isinstance(value, str) else None
