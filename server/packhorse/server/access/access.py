"""Who asks: every call's token is looked at before its message is.

Owns the interceptor that lets calls through or refuses them, and what a method may ask of its caller. Leaves what a
token grants to `tokens`; TLS and client certificates have been seen to before a call begins.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, NoReturn

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health

from packhorse.server.access.tokens import REFLECTION, Grant, TokenFile
from packhorse.server.base.faults import ServiceError
from packhorse.server.base.status import abort
from packhorse.v1 import packing_pb2 as pb

_HEALTH = f"/{health.SERVICE_NAME}/"
_PACKING = f"/{pb.DESCRIPTOR.services_by_name['PackingService'].full_name}/"


class Caller:
    """Whoever asked, and may read everything: what there is on a server without tokens."""

    name = ""
    """Of the token, for people and the log."""

    def check_request(self, request: Message) -> None:
        """Raises a ServiceError where the request is about a dataset that is not the caller's."""

    def check_changes(self) -> None:
        """Raises a ServiceError where nobody tells callers apart: anybody could change what all runs get."""
        raise ServiceError(
            pb.ERROR_REASON_NOT_IMPLEMENTED,
            "this server changes nothing for clients that it does not know: start it with --token-file, and give a "
            "token whose methods name AppendStage; or append on its machine, with --data-root",
        )

    def check_again(self) -> None:
        """Raises a ServiceError where the caller may not go on with an open stream."""

    def seen(self, response: pb.ListDatasetsResponse) -> pb.ListDatasetsResponse:
        """Returns the datasets that the caller may know of, and until when."""
        return response

    def seen_activity(self, activity: pb.GetActivityResponse) -> pb.GetActivityResponse:
        """Returns what the caller may know of the server's activity."""
        return activity

    def told(self, error: ServiceError) -> ServiceError:
        """Returns what the caller may read of a refusal."""
        return error


class HolderOfToken(Caller):
    """Whoever sent a token.

    Args:
        tokens: where it was found.
        grant: what it is for.
    """

    def __init__(self, tokens: TokenFile, grant: Grant) -> None:
        self._tokens = tokens
        self._grant = grant
        self.name = grant.name

    def check_request(self, request: Message) -> None:
        """Raises a ServiceError where the request is about a dataset that the token is not for."""
        if isinstance(request, pb.GetDatasetRequest):
            self._grant.check_dataset(request.name)
        elif "dataset" in request.DESCRIPTOR.fields_by_name:
            self._grant.check_dataset(request.dataset)  # type: ignore[attr-defined]

    def check_changes(self) -> None:
        """Nothing to check: the token's scope names the method."""

    def check_again(self) -> None:
        """Raises a ServiceError where the token has expired or was withdrawn."""
        self._tokens.check_again(self._grant)

    def seen(self, response: pb.ListDatasetsResponse) -> pb.ListDatasetsResponse:
        """Returns the datasets that the token is for, and when it expires."""
        expires = self._grant.expires
        return pb.ListDatasetsResponse(
            datasets=[dataset for dataset in response.datasets if self._grant.allows_dataset(dataset.name)],
            server_version=response.server_version,
            token_expires_seconds=0 if expires is None else int(expires.timestamp()),
        )

    def seen_activity(self, activity: pb.GetActivityResponse) -> pb.GetActivityResponse:
        """Returns the activity without streams of datasets that the token is not for."""
        if self._grant.covers_every_dataset:
            return activity
        seen = pb.GetActivityResponse()
        seen.CopyFrom(activity)
        seen.ClearField("streams")
        seen.ClearField("datasets")
        seen.streams.extend(each for each in activity.streams if self._grant.allows_dataset(each.dataset))
        seen.datasets.extend(each for each in activity.datasets if self._grant.allows_dataset(each.name))
        return seen

    def told(self, error: ServiceError) -> ServiceError:
        """Returns a refusal without the names of other people's datasets."""
        if error.reason != pb.ERROR_REASON_DATASET_NOT_FOUND or self._grant.covers_every_dataset:
            return error
        name = error.metadata.get("dataset", "")
        return ServiceError(error.reason, f"no dataset that this token is for is named {name!r}", error.metadata)


CALLER: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039 (it has no state)
"""Who made the call that this task answers."""


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses calls without a token that is for their method. Health is for everyone: it tells nothing but its status.

    Args:
        tokens: the tokens that there are.
        on_refusal: called with every refusal.
    """

    def __init__(self, tokens: TokenFile, on_refusal: Callable[[ServiceError], None]) -> None:
        self._tokens = tokens
        self._on_refusal = on_refusal

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Returns the method's handler, or one that refuses without looking at the request."""
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None or method.startswith(_HEALTH):
            return handler
        try:
            grant = self._tokens.grant_of(_authorization(handler_call_details.invocation_metadata))
            grant.check_method(method.removeprefix(_PACKING) if method.startswith(_PACKING) else REFLECTION)
        except ServiceError as error:
            self._on_refusal(error)
            return _refusing(handler, error)
        CALLER.set(HolderOfToken(self._tokens, grant))
        return handler


def _authorization(metadata: Any) -> str | None:
    """Returns the header `authorization`; None where there is none, or several."""
    found = [value for key, value in metadata or () if key == "authorization"]
    return found[0] if len(found) == 1 and isinstance(found[0], str) else None


def _refusing(handler: Any, error: ServiceError) -> Any:
    """Returns a handler that answers nothing but an error, at once: it reads no request, as streams of them do."""

    async def refuse(_: Any, context: Any) -> NoReturn:
        await abort(context, error)

    return handler._replace(
        request_streaming=True,
        response_streaming=True,
        request_deserializer=None,
        unary_unary=None,
        unary_stream=None,
        stream_unary=None,
        stream_stream=refuse,
    )
