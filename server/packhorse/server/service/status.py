"""Failures as canonical gRPC statuses with google.rpc details.

Owns the one table from reasons to statuses; `packhorse.client.errors` has its counterpart, from reasons to exceptions.
"""

import logging
import secrets
from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from packhorse.server.base.faults import ServiceError, lacks_files, no_file_left, reason_name, too_many_requests
from packhorse.server.service.lanes import LaneFullError
from packhorse.server.service.memory_budget import OutOfMemoryBudgetError
from packhorse.v1 import packing_pb2 as pb

_LOG = logging.getLogger(__name__)

DOMAIN = "packhorse.v1"
"""The domain of our reasons in google.rpc.ErrorInfo."""

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
    pb.ERROR_REASON_TOKENS_NOT_SERVED: grpc.StatusCode.FAILED_PRECONDITION,
    pb.ERROR_REASON_INTERNAL: grpc.StatusCode.INTERNAL,
}
"""Every reason's canonical status."""


def refusal_of(error: Exception) -> ServiceError:
    """Returns an exception as a client may read it. Logs the trace of an unexpected one, under an incident's number."""
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, LaneFullError):
        return too_many_requests("the queue for this kind of request is full")
    if isinstance(error, OutOfMemoryBudgetError):
        return too_many_requests("other requests hold the memory that this one needs")
    if lacks_files(error):
        return no_file_left()
    incident = secrets.token_hex(4)
    _LOG.error("incident %s", incident, exc_info=error)
    return ServiceError(
        pb.ERROR_REASON_INTERNAL,
        f"the server failed; its log has the details under incident {incident}",
        {"incident": incident},
    )


async def abort(context: "grpc.aio.ServicerContext[Any, Any]", error: ServiceError) -> NoReturn:
    """Ends a call with an error's status, message and details."""
    await context.abort(
        STATUS_OF_REASON[error.reason],
        error.message,
        trailing_metadata=(("grpc-status-details-bin", status_details(error)),),
    )


def status_details(error: ServiceError) -> bytes:
    """Returns the serialised google.rpc.Status of an error, for the trailer `grpc-status-details-bin`."""
    reason = reason_name(error.reason)
    details = [_packed(error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=error.metadata))]
    if error.reason == pb.ERROR_REASON_INVALID_FIELD:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.metadata["field"], description=error.message
        )
        details.append(_packed(error_details_pb2.BadRequest(field_violations=[violation])))
    if error.retry_after_seconds is not None:
        delay = Duration()
        delay.FromMilliseconds(int(error.retry_after_seconds * 1000))
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    code, _ = STATUS_OF_REASON[error.reason].value  # such as (3, "invalid argument")
    return bytes(status_pb2.Status(code=code, message=error.message, details=details).SerializeToString())


def _packed(message: object) -> any_pb2.Any:
    """Returns a message in protobuf's Any, in which details travel."""
    packed = any_pb2.Any()
    packed.Pack(message)  # type: ignore[arg-type]
    return packed
