"""The embedded target: the server's own backend in this process, without a network.

The only file of the client that reaches the server's packages, and only when an `embedded:` target is used, or when
rollouts are packed without a client.
"""

import math
from collections.abc import Callable, Iterator
from typing import TypeVar

from packhorse.client.errors import EXCEPTION_OF_REASON, PackhorseError
from packhorse.v1 import packing_pb2 as pb

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

PREFIX = "embedded:"


class EmbeddedTransport:
    """Answers from the prepared datasets below a folder, however long it takes.

    Args:
        target: embedded:DIR.

    Raises:
        PackhorseError: the server's packages are not installed, or no dataset is there.
    """

    has_answered = True

    def __init__(self, target: str) -> None:
        self.target = target
        try:
            from packhorse.server.backend import Backend
            from packhorse.server.faults import ServiceError
        except ModuleNotFoundError as error:
            raise PackhorseError(
                f"embedded: targets need {error.name}; install packhorse[server] beside the client"
            ) from None
        self._fault: type[ServiceError] = ServiceError
        try:
            self._backend = Backend.of_folder(target.removeprefix(PREFIX))
        except ValueError as error:
            raise PackhorseError(str(error)) from None

    def list_datasets(
        self, request: pb.ListDatasetsRequest, timeout_seconds: float = math.inf
    ) -> pb.ListDatasetsResponse:
        """Lists the datasets below the folder."""
        return self._answer(self._backend.list_datasets, request)

    def get_dataset(self, request: pb.GetDatasetRequest, timeout_seconds: float = math.inf) -> pb.GetDatasetResponse:
        """Describes one dataset."""
        return self._answer(self._backend.get_dataset, request)

    def get_bins(self, request: pb.GetBinsRequest, timeout_seconds: float = math.inf) -> pb.GetBinsResponse:
        """Returns the bins at any positions."""
        return self._answer(self._backend.get_bins, request)

    def locate_sequences(
        self, request: pb.LocateSequencesRequest, timeout_seconds: float = math.inf
    ) -> pb.LocateSequencesResponse:
        """Tells where each id stands in an epoch."""
        return self._answer(self._backend.locate_sequences, request)

    def pack_sequences(
        self, request: pb.PackSequencesRequest, timeout_seconds: float = math.inf
    ) -> pb.PackSequencesResponse:
        """Packs the given lengths at once."""
        return self._answer(self._backend.pack_sequences, request)

    def stream_bins(
        self, request: pb.StreamBinsRequest, timeout_seconds: float = math.inf
    ) -> Iterator[pb.StreamBinsResponse]:
        """Streams a header and blocks."""
        try:
            yield from self._backend.stream_bins(request)
        except self._fault as error:
            raise EXCEPTION_OF_REASON[error.reason](error.message, error.metadata) from None

    def pack_stream(
        self, requests: Iterator[pb.PackStreamRequest], timeout_seconds: float = math.inf
    ) -> Iterator[pb.PackStreamResponse]:
        """Yields one response for every request."""
        try:
            yield from self._backend.pack_stream(requests)
        except self._fault as error:
            raise EXCEPTION_OF_REASON[error.reason](error.message, error.metadata) from None

    def close(self) -> None:
        """Nothing to let go of."""

    def _answer(self, method: Callable[[_Request], _Response], request: _Request) -> _Response:
        try:
            return method(request)
        except self._fault as error:
            raise EXCEPTION_OF_REASON[error.reason](error.message, error.metadata) from None


class EmbeddedPlanner(EmbeddedTransport):
    """Packs lengths at once, and nothing else: what needs no dataset needs no folder.

    Raises:
        PackhorseError: the server's packages are not installed.
    """

    def __init__(self) -> None:
        self.target = PREFIX
        try:
            from packhorse.server.faults import ServiceError
            from packhorse.server.pack import pack_sequences
        except ModuleNotFoundError as error:
            raise PackhorseError(
                f"packing in this process needs {error.name}: pass client=connect(…), or install packhorse[server] "
                "beside the client"
            ) from None
        self._fault = ServiceError
        self._pack_sequences = pack_sequences

    def pack_sequences(
        self, request: pb.PackSequencesRequest, timeout_seconds: float = math.inf
    ) -> pb.PackSequencesResponse:
        """Packs the given lengths at once."""
        return self._answer(self._pack_sequences, request)
