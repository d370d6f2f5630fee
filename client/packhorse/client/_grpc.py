"""The remote target: a channel to any replica of the service.

Owns the channel, its options and the mapping of gRPC errors; leaves retries to `retry` and resuming to `stream`.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from packhorse.client.errors import (
    EXCEPTION_OF_REASON,
    NotImplementedByServerError,
    PackhorseError,
    RequestTooLargeError,
    ServerFaultError,
    ServerUnavailableError,
)
from packhorse.v1 import packing_pb2 as pb
from packhorse.v1 import packing_pb2_grpc

_Response = TypeVar("_Response")

DOMAIN = "packhorse.v1"
MAX_MESSAGE_BYTES = 65 << 20
UNARY_TIMEOUT_SECONDS = 30.0
PACK_TIMEOUT_SECONDS = 120.0  # a million distinct lengths take half a minute on a busy core

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),  # a peer that vanished without a word is noticed within half a minute
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.lb_policy_name", "round_robin"),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)

_WITHOUT_REASON: dict[grpc.StatusCode, type[PackhorseError]] = {
    grpc.StatusCode.UNAVAILABLE: ServerUnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: ServerUnavailableError,
    grpc.StatusCode.UNIMPLEMENTED: NotImplementedByServerError,  # an older server
    grpc.StatusCode.RESOURCE_EXHAUSTED: RequestTooLargeError,  # a message over gRPC's own limit; no retry shrinks it
}
"""What gRPC itself answers, before a request reaches the service or after its answer left it."""

_ANCHORS: list[grpc.Channel] = []
"""An idle channel, kept for the life of the process. With its last channel gRPC's engine winds down, and a process that
forks meanwhile (a DataLoader, right after `len(dataset)`) gets children whose calls never return."""


def has_used_grpc() -> bool:
    """Whether this process, or one that it was forked off, has opened a channel; its own forks may stall then."""
    return bool(_ANCHORS)


class GrpcTransport:
    """Calls a server. The channel is made when first needed, anew in every process, and so survives a fork.

    Args:
        target: host:port, dns:///…, unix:….
        credentials: of a secure channel; None for plain text.
        token: sent as a bearer token; only over a secure channel or a unix socket.

    Raises:
        ValueError: a token would travel in plain text.
    """

    def __init__(
        self, target: str, *, credentials: grpc.ChannelCredentials | None = None, token: str | None = None
    ) -> None:
        if token is not None and credentials is None and not target.startswith("unix:"):
            raise ValueError("token needs credentials: without a secure channel it would travel in plain text")
        self.target = target
        self._credentials = credentials
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._channel: grpc.Channel | None = None
        self._stub: Any = None
        self._pid = -1

    def list_datasets(self, request: pb.ListDatasetsRequest) -> pb.ListDatasetsResponse:
        """Lists the datasets that are served."""
        return self._call(self._connected().ListDatasets, request)

    def get_dataset(self, request: pb.GetDatasetRequest) -> pb.GetDatasetResponse:
        """Describes one dataset."""
        return self._call(self._connected().GetDataset, request)

    def get_bins(self, request: pb.GetBinsRequest) -> pb.GetBinsResponse:
        """Returns the bins at any positions."""
        return self._call(self._connected().GetBins, request)

    def locate_sequences(self, request: pb.LocateSequencesRequest) -> pb.LocateSequencesResponse:
        """Tells where each id stands in an epoch."""
        return self._call(self._connected().LocateSequences, request)

    def pack_sequences(self, request: pb.PackSequencesRequest) -> pb.PackSequencesResponse:
        """Packs the given lengths at once."""
        return self._call(self._connected().PackSequences, request, PACK_TIMEOUT_SECONDS)

    def stream_bins(self, request: pb.StreamBinsRequest) -> Iterator[pb.StreamBinsResponse]:
        """Streams a header and blocks; closing the iterator cancels the call."""
        yield from self._responses(self._connected().StreamBins(request, metadata=self._metadata))

    def pack_stream(self, requests: Iterator[pb.PackStreamRequest]) -> Iterator[pb.PackStreamResponse]:
        """Yields one response for every request; closing the iterator cancels the call."""
        yield from self._responses(self._connected().PackStream(requests, metadata=self._metadata))

    def close(self) -> None:
        """Closes the channel; later calls open another."""
        if self._channel is not None and self._pid == os.getpid():
            self._channel.close()
        self._channel = None

    def _connected(self) -> Any:
        if self._channel is None or self._pid != os.getpid():
            if not _ANCHORS:
                _ANCHORS.append(grpc.insecure_channel("127.0.0.1:1"))  # connects to nothing until it is used
            options = list(_OPTIONS)
            if self._credentials is None:
                self._channel = grpc.insecure_channel(self.target, options)
            else:
                self._channel = grpc.secure_channel(self.target, self._credentials, options)
            self._stub = packing_pb2_grpc.PackingServiceStub(self._channel)  # type: ignore[no-untyped-call]
            self._pid = os.getpid()
        return self._stub

    def _responses(self, call: Any) -> Iterator[Any]:
        try:
            yield from call
        except grpc.RpcError as error:
            raise exception_of(error, self.target) from None
        finally:
            call.cancel()

    def _call(
        self, method: Callable[..., _Response], request: object, timeout_seconds: float = UNARY_TIMEOUT_SECONDS
    ) -> _Response:
        try:
            return method(request, timeout=timeout_seconds, metadata=self._metadata)
        except grpc.RpcError as error:
            raise exception_of(error, self.target) from None


def exception_of(error: grpc.RpcError, target: str) -> PackhorseError:
    """Returns the client's exception for a gRPC error: by its reason, else by its status."""
    assert isinstance(error, grpc.Call)  # what a stub raises is both
    status = rpc_status.from_call(error)
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in status.details if status else ():
        for message in (info, retry):
            if detail.Is(message.DESCRIPTOR):
                detail.Unpack(message)
    delay = retry.retry_delay.ToMilliseconds() / 1000 or None
    name = f"ERROR_REASON_{info.reason}"
    if info.domain == DOMAIN and name in pb.ErrorReason.keys():  # noqa: SIM118 (no mapping, though it has keys)
        kind = EXCEPTION_OF_REASON[pb.ErrorReason.Value(name)]
        return kind(status.message, info.metadata, retry_after_seconds=delay)
    code, details = error.code(), error.details()
    kind = _WITHOUT_REASON.get(code, ServerFaultError)
    return kind(f"{target}: {code.name}: {details}")
