"""Why a call failed: from gRPC's error to the client's exception.

An error with one of the service's own reasons is the service's answer. Of the others, a few statuses say why the call
was refused, and the rest are failures of the network, which may pass. Leaves trying again to `retries`, and why a
connection is refused to `handshake` and `_proxies`.
"""

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from packhorse.client.error_texts import bounded
from packhorse.client.errors import (
    EXCEPTION_OF_REASON,
    AccessDeniedError,
    DatasetNotFoundError,
    InvalidRequestError,
    NotImplementedByServerError,
    PackhorseError,
    RequestTooLargeError,
    ServerUnavailableError,
    TooManyRequestsError,
    UnauthenticatedError,
    named_field,
)
from packhorse.client.transport._proxies import Proxy
from packhorse.v1 import packing_pb2 as pb

DOMAIN = "packhorse.v1"
"""The `domain` of google.rpc.ErrorInfo that marks the service's own reasons."""

_WITHOUT_REASON: dict[grpc.StatusCode, type[PackhorseError]] = {
    grpc.StatusCode.UNIMPLEMENTED: NotImplementedByServerError,  # an older server, or a web server
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: AccessDeniedError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,  # a service whose details were lost on the way
    grpc.StatusCode.NOT_FOUND: DatasetNotFoundError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: TooManyRequestsError,
}
"""The exception for a status without one of the service's reasons. Every other status comes from the network, a proxy
or a broken server, and becomes ServerUnavailableError."""

_OVER_SIZE = "larger than max"
"""gRPC's text if a message is over the size limit of either side. Other RESOURCE_EXHAUSTED are temporary."""


def exception_of(error: grpc.RpcError, target: str, proxy: Proxy | None = None) -> PackhorseError:
    """Returns the client's exception for an error of a call to a target, perhaps through a proxy; never raises.

    A damaged trailer, which would hold the reason, is no error here: then the status decides which exception it is.
    """
    assert isinstance(error, grpc.Call)  # what a stub raises is an RpcError and a Call at once
    info, retry, text = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo(), ""
    try:
        status = rpc_status.from_call(error)
        text = status.message if status else ""
        for detail in status.details if status else ():
            for message in (info, retry):
                if detail.Is(message.DESCRIPTOR):
                    detail.Unpack(message)
    except (ValueError, DecodeError):  # the trailer was cut or altered on the way: its reason does not count
        info.Clear()
    delay = retry.retry_delay.ToMilliseconds() / 1000 or None  # 0: the service named none
    name = f"ERROR_REASON_{info.reason}"
    if info.domain == DOMAIN and name in pb.ErrorReason.keys():  # noqa: SIM118 (no mapping, though it has keys)
        kind = EXCEPTION_OF_REASON[pb.ErrorReason.Value(name)]
        return kind(named_field(bounded(text), info.metadata), info.metadata, retry_after_seconds=delay)
    code, details = error.code(), error.details() or ""
    kind = _WITHOUT_REASON.get(code, ServerUnavailableError)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _OVER_SIZE in details:
        kind = RequestTooLargeError
    text = f"{target}: {code.name}: {bounded(details)}"
    if kind is ServerUnavailableError and proxy is not None:
        return proxy.failure(target, text)
    return kind(text, retry_after_seconds=delay)
