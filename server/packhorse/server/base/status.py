"""From reasons to canonical gRPC statuses with google.rpc details.

Owns the one catalogue of which reason is which status; clients have its counterpart, from reason to exception.
"""

from typing import Any as Anything
from typing import NoReturn

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from packhorse.server.base.faults import ServiceError
from packhorse.v1 import packing_pb2 as pb

DOMAIN = "packhorse.v1"

STATUS_OF_REASON = {
    pb.ERROR_REASON_INVALID_FIELD: grpc.StatusCode.INVALID_ARGUMENT,
    pb.ERROR_REASON_DATASET_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    pb.ERROR_REASON_DATASET_CORRUPT: grpc.StatusCode.DATA_LOSS,
    pb.ERROR_REASON_DIGEST_MISMATCH: grpc.StatusCode.FAILED_PRECONDITION,
    pb.ERROR_REASON_NOT_IMPLEMENTED: grpc.StatusCode.UNIMPLEMENTED,
    pb.ERROR_REASON_SHUTTING_DOWN: grpc.StatusCode.UNAVAILABLE,
    pb.ERROR_REASON_TOO_MANY_STREAMS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    pb.ERROR_REASON_REQUEST_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    pb.ERROR_REASON_TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    pb.ERROR_REASON_UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    pb.ERROR_REASON_ACCESS_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    pb.ERROR_REASON_VERSION_MISMATCH: grpc.StatusCode.UNIMPLEMENTED,
    pb.ERROR_REASON_POSITION_PASSED: grpc.StatusCode.FAILED_PRECONDITION,
    pb.ERROR_REASON_INTERNAL: grpc.StatusCode.INTERNAL,
}
"""Every reason's canonical status."""


def reason_name(reason: "pb.ErrorReason") -> str:
    """The reason as it travels in ErrorInfo."""
    return pb.ErrorReason.Name(reason).removeprefix("ERROR_REASON_")


async def abort(context: "grpc.aio.ServicerContext[Anything, Anything]", error: ServiceError) -> NoReturn:
    """Ends a call with an error's status, message and details."""
    await context.abort(
        STATUS_OF_REASON[error.reason],
        error.message,
        trailing_metadata=(("grpc-status-details-bin", status_details(error)),),
    )
    raise AssertionError("abort always raises")


def status_details(error: ServiceError) -> bytes:
    """Returns the serialised google.rpc.Status of an error, for the trailer `grpc-status-details-bin`."""
    details = [
        error_details_pb2.ErrorInfo(reason=reason_name(error.reason), domain=DOMAIN, metadata=error.metadata),
    ]
    packed = [_packed(detail) for detail in details]
    if error.reason == pb.ERROR_REASON_INVALID_FIELD:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.metadata["field"], description=error.message
        )
        packed.append(_packed(error_details_pb2.BadRequest(field_violations=[violation])))
    if error.retry_after_seconds is not None:
        delay = Duration()
        delay.FromMilliseconds(int(error.retry_after_seconds * 1000))
        packed.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    code = STATUS_OF_REASON[error.reason].value[0]
    status = status_pb2.Status(code=code, message=error.message, details=packed)
    return bytes(status.SerializeToString())


def _packed(message: object) -> Any:
    packed = Any()
    packed.Pack(message)  # type: ignore[arg-type]
    return packed
