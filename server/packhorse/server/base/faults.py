"""The refusals and failures of the service, with the reason that travels to clients.

Owns `ServiceError`, its few constructors and the names of reasons. Leaves canonical statuses to `service.status`, so
that an embedded client needs no gRPC here.
"""

import errno

from packhorse.v1 import packing_pb2 as pb

MESSAGE_BYTES = 1000
"""Most bytes of a message: gRPC carries it, and all facts, in headers, which many proxies limit to 8 KiB."""
FACT_BYTES = 200
"""Most bytes of one fact of the metadata."""
MOST_FACTS = 6
"""Most facts of the metadata; others are left out."""

RETRY_AFTER_SECONDS = 1.0
"""Seconds after which a client that was refused because the server is full should try again."""


class ServiceError(Exception):
    """A refusal that a client may read: it contains no paths and no traces. Texts too long for a header are cut.

    Args:
        reason: for programs.
        message: for people.
        metadata: facts, by name.
        retry_after_seconds: when to try again, if that helps.
    """

    def __init__(
        self,
        reason: "pb.ErrorReason",
        message: str,
        metadata: dict[str, str] | None = None,
        *,
        retry_after_seconds: float | None = None,
    ) -> None:
        self.reason = reason
        self.message = _cut(message, MESSAGE_BYTES)
        facts = list((metadata or {}).items())[:MOST_FACTS]
        self.metadata = {name: _cut(fact, FACT_BYTES) for name, fact in facts}
        super().__init__(self.message)
        self.retry_after_seconds = retry_after_seconds


def reason_name(reason: "pb.ErrorReason") -> str:
    """Returns the name of a reason in ErrorInfo and in metrics, such as INVALID_FIELD."""
    return pb.ErrorReason.Name(reason).removeprefix("ERROR_REASON_")


def invalid_field(field: str, message: str) -> ServiceError:
    """Returns the error for a field of the request that is missing or out of range."""
    return ServiceError(pb.ERROR_REASON_INVALID_FIELD, message, {"field": field})


def too_large(field: str, limit: int, message: str) -> ServiceError:
    """Returns the error for a field that asks for more than one message may carry."""
    return ServiceError(pb.ERROR_REASON_REQUEST_TOO_LARGE, message, {"field": field, "limit": str(limit)})


def too_many_requests(why: str) -> ServiceError:
    """Returns the error for a request that the server has no room for now."""
    return ServiceError(pb.ERROR_REASON_TOO_MANY_REQUESTS, f"{why}; try again", retry_after_seconds=RETRY_AFTER_SECONDS)


def lacks_files(error: BaseException) -> bool:
    """Whether a file could not be opened because too many are open."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def no_file_left() -> ServiceError:
    """Returns the error for a request for which the server cannot open another file now."""
    return too_many_requests("this server has reached its limit of open files and connections")


def _cut(text: str, most_bytes: int) -> str:
    """Returns a text of at most `most_bytes` of UTF-8, with an ellipsis if it was cut."""
    data = text.encode(errors="replace")
    if len(data) <= most_bytes:
        return data.decode()
    return data[: most_bytes - len("…".encode())].decode(errors="ignore") + "…"
