"""From a failed call to the client's exception: by the service's reason, else by gRPC's status.

Owns which failures are the service's answers, which can never work, and which are accidents of the network. Accidents
are transient: every request may be sent again.
"""

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2
from grpc_status import rpc_status

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
)
from packhorse.client.transport.requests import bounded
from packhorse.v1 import packing_pb2 as pb

DOMAIN = "packhorse.v1"

_WITHOUT_REASON: dict[grpc.StatusCode, type[PackhorseError]] = {
    grpc.StatusCode.UNIMPLEMENTED: NotImplementedByServerError,  # an older server, or a web server
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: AccessDeniedError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,  # a service whose details were lost on the way
    grpc.StatusCode.NOT_FOUND: DatasetNotFoundError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: TooManyRequestsError,
}
"""What a status means that comes without a reason of ours. Those that are not listed come from the network, from a
proxy or from a server that broke: ServerUnavailableError."""

_OVER_SIZE = "larger than max"
"""What gRPC writes where a message is over a limit of either end; other RESOURCE_EXHAUSTED pass."""


def exception_of(error: grpc.RpcError, target: str) -> PackhorseError:
    """Returns the client's exception for a gRPC error; never raises, whatever came with it.

    Args:
        error: what a stub raised.
        target: who was asked.
    """
    assert isinstance(error, grpc.Call)  # what a stub raises is both
    info, retry, text = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo(), ""
    try:
        status = rpc_status.from_call(error)
        text = status.message if status else ""
        for detail in status.details if status else ():
            for message in (info, retry):
                if detail.Is(message.DESCRIPTOR):
                    detail.Unpack(message)
    except (ValueError, DecodeError):  # the trailer was cut or altered on the way: the status is left
        info.Clear()
    delay = retry.retry_delay.ToMilliseconds() / 1000 or None
    name = f"ERROR_REASON_{info.reason}"
    if info.domain == DOMAIN and name in pb.ErrorReason.keys():  # noqa: SIM118 (no mapping, though it has keys)
        kind = EXCEPTION_OF_REASON[pb.ErrorReason.Value(name)]
        return kind(bounded(text), info.metadata, retry_after_seconds=delay)
    code, details = error.code(), error.details() or ""
    kind = _WITHOUT_REASON.get(code, ServerUnavailableError)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _OVER_SIZE in details:
        kind = RequestTooLargeError
    return kind(f"{target}: {code.name}: {bounded(details)}", retry_after_seconds=delay)
