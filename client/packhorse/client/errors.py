"""Every exception of the client, and the one table from a service's reason to its exception.

Owns also how a server's message names a field (`named_field`). Leaves texts that many of them share to `error_texts`,
gRPC's own errors to `transport/grpc_errors`, and trying again to `transport/retries`.

PackhorseError
├── InvalidRequestError (a ValueError)   a field is missing or out of range
├── DatasetNotFoundError (a LookupError) no dataset of that name
├── DatasetCorruptError                  the dataset's files do not match their checksums
├── DigestMismatchError                  another dataset than the run began with
├── PositionPassedError                  a mixture was to change at a position whose bins have been sent
├── TokensNotServedError                 the server does not send the tokens of this dataset
├── NotImplementedByServerError          the server has no such method
├── VersionMismatchError                 client and server write bins differently; says which to upgrade
├── AccessDeniedError                    the server refuses this client, or this client refuses the server
│   └── UnauthenticatedError             the token is missing, unknown or expired
├── RequestTooLargeError                 the answer would be larger than a message may be
├── ServerFaultError                     a fault of the server; its log has the incident
├── StreamInterruptedError               retries did not help; says where to resume
└── TransientError                       passes; the client tries again
    ├── ServerUnavailableError           no server answers, or the connection broke
    ├── ServerShuttingDownError          the server ends its streams; another replica continues
    ├── TooManyStreamsError              the server has as many streams as it allows
    ├── TooManyRequestsError             the server's queue for this kind of request is full
    └── DamagedAnswerError               bytes changed on the way: the answer does not fit the request
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from packhorse.parameters import parameter
from packhorse.v1 import packing_pb2 as pb


class PackhorseError(Exception):
    """Base of all errors of the service and its client.

    Args:
        message: the text for people.
        metadata: facts about the error for programs, by name.
        retry_after_seconds: when the server asks to come back; None if it does not say.
    """

    def __init__(
        self, message: str, metadata: Mapping[str, str] | None = None, *, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.metadata = dict(metadata or {})
        self.retry_after_seconds = retry_after_seconds


class InvalidRequestError(PackhorseError, ValueError):
    """A field is missing or out of range; `metadata["field"]` names it."""


class DatasetNotFoundError(PackhorseError, LookupError):
    """No dataset has the requested name."""


class DatasetCorruptError(PackhorseError):
    """The dataset's files do not match their checksums, and it is not served."""


class DigestMismatchError(PackhorseError):
    """The run began with another dataset or version; `metadata["differs"]` names the parts that differ."""


class PositionPassedError(PackhorseError):
    """The server has already sent bins at or after the position where a mixture was to change.

    `metadata["position"]` is the requested position, `metadata["reached"]` one after the last that was sent.
    """


class TokensNotServedError(PackhorseError):
    """The server does not send the tokens of a dataset; the text says why, and the way out."""


class NotImplementedByServerError(PackhorseError):
    """The server has no such method or option; a newer one may."""


class VersionMismatchError(PackhorseError):
    """Client and server know different versions of the wire format of bins; the text says which of them to upgrade.

    `metadata["client_version"]` and `metadata["server_version"]` are the versions' numbers.
    """


class AccessDeniedError(PackhorseError):
    """The certificate, the token or a proxy does not allow this. Trying again does not help.

    The token is not for this method or dataset; the server refuses this client's certificate or its absence; this
    client refuses the server's certificate; or an HTTP proxy on the way refuses. `metadata["cause"]` is "method",
    "dataset", "client-certificate", "server-certificate", "plain-text" or "proxy"; a proxy that speaks gRPC may leave
    it out.
    """


class UnauthenticatedError(AccessDeniedError):
    """The token is missing, unknown or expired.

    `metadata["cause"]` is "missing", "unknown" or "expired".
    """


class RequestTooLargeError(PackhorseError):
    """The response would be larger than one message may be; `metadata["limit"]` says how much you may request."""


class ServerFaultError(PackhorseError):
    """A fault of the server; its log has the details under `metadata["incident"]`."""


class TransientError(PackhorseError):
    """A temporary failure; the client tries again until its deadline."""


class ServerUnavailableError(TransientError):
    """No server answers at the target, or the connection broke before the answer was complete."""


class ServerShuttingDownError(TransientError):
    """The server is shutting down: it ends its streams, and another replica may continue them."""


class TooManyStreamsError(TransientError):
    """The server has as many open streams as it allows."""


class TooManyRequestsError(TransientError):
    """The server's queue for this kind of request is full."""


class DamagedAnswerError(TransientError):
    """An answer or its request was altered on the way: its checksum or content does not fit."""


class StreamInterruptedError(PackhorseError):
    """A stream broke and could not be reopened in time.

    Args:
        message: the text for people.
        position: the position to resume at (`start_position`).
        step: the step that was to come next.
    """

    def __init__(self, message: str, *, position: int, step: int) -> None:
        super().__init__(message, {"position": str(position), "step": str(step)})
        self.position = position
        self.step = step

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the keyword arguments too: a worker sends its error to its parent."""
        return partial(type(self), position=self.position, step=self.step), self.args


def named_field(message: str, metadata: Mapping[str, str]) -> str:
    """Returns a server's message; if it begins with the name of the field at fault, that name becomes a `parameter`.

    The command line then prints the field as its flag: see `packhorse.parameters`.
    """
    field = metadata.get("field", "")
    return parameter(field) + message.removeprefix(field) if field and message.startswith(field) else message


EXCEPTION_OF_REASON: dict[int, type[PackhorseError]] = {  # by the number of an ErrorReason
    pb.ERROR_REASON_INVALID_FIELD: InvalidRequestError,
    pb.ERROR_REASON_DATASET_NOT_FOUND: DatasetNotFoundError,
    pb.ERROR_REASON_DATASET_CORRUPT: DatasetCorruptError,
    pb.ERROR_REASON_DIGEST_MISMATCH: DigestMismatchError,
    pb.ERROR_REASON_NOT_IMPLEMENTED: NotImplementedByServerError,
    pb.ERROR_REASON_SHUTTING_DOWN: ServerShuttingDownError,
    pb.ERROR_REASON_TOO_MANY_STREAMS: TooManyStreamsError,
    pb.ERROR_REASON_REQUEST_TOO_LARGE: RequestTooLargeError,
    pb.ERROR_REASON_TOO_MANY_REQUESTS: TooManyRequestsError,
    pb.ERROR_REASON_UNAUTHENTICATED: UnauthenticatedError,
    pb.ERROR_REASON_ACCESS_DENIED: AccessDeniedError,
    pb.ERROR_REASON_VERSION_MISMATCH: VersionMismatchError,
    pb.ERROR_REASON_POSITION_PASSED: PositionPassedError,
    pb.ERROR_REASON_TOKENS_NOT_SERVED: TokensNotServedError,
    pb.ERROR_REASON_INTERNAL: ServerFaultError,
}
"""A service's reason → the client's exception. Every reason but UNSPECIFIED is here."""
