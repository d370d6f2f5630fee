"""What the service refuses or fails at, with the reason that travels to clients.

Owns `ServiceError` and its few constructors; leaves canonical statuses to `status`, so that an embedded client needs
no gRPC here.
"""

from packhorse.v1 import packing_pb2 as pb


class ServiceError(Exception):
    """A refusal that a client may read: no paths, no traces.

    Args:
        reason: what a client branches on.
        message: what a person reads.
        metadata: facts behind it, by name.
        retry_after_seconds: when to come back, where that helps.
    """

    def __init__(
        self,
        reason: "pb.ErrorReason",
        message: str,
        metadata: dict[str, str] | None = None,
        *,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = metadata or {}
        self.retry_after_seconds = retry_after_seconds


def invalid_field(field: str, message: str) -> ServiceError:
    """A field of the request is missing or out of range."""
    return ServiceError(pb.ERROR_REASON_INVALID_FIELD, message, {"field": field})


def too_large(field: str, limit: int, message: str) -> ServiceError:
    """A field asks for more than one message may carry."""
    return ServiceError(pb.ERROR_REASON_REQUEST_TOO_LARGE, message, {"field": field, "limit": str(limit)})
