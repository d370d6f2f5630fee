"""What the client needs of a transport, whatever lies behind it.

Owns the interface; `_grpc` and `_embedded` are its two forms, and give the same messages.
"""

import math
from collections.abc import Iterator
from typing import Protocol

from packhorse.v1 import packing_pb2 as pb


class Transport(Protocol):
    """Carries requests to a service. Every method raises the exceptions of `packhorse.client.errors`.

    `timeout_seconds` is how long the answer may take, and of a stream its first message.
    """

    target: str
    """What `connect` was given."""

    @property
    def has_answered(self) -> bool:
        """Whether the service has ever answered: one that has is waited for longer."""
        ...

    def list_datasets(
        self, request: pb.ListDatasetsRequest, timeout_seconds: float = math.inf
    ) -> pb.ListDatasetsResponse:
        """Lists the datasets that are served."""
        ...

    def get_dataset(self, request: pb.GetDatasetRequest, timeout_seconds: float = math.inf) -> pb.GetDatasetResponse:
        """Describes one dataset."""
        ...

    def get_bins(self, request: pb.GetBinsRequest, timeout_seconds: float = math.inf) -> pb.GetBinsResponse:
        """Returns the bins at any positions."""
        ...

    def locate_sequences(
        self, request: pb.LocateSequencesRequest, timeout_seconds: float = math.inf
    ) -> pb.LocateSequencesResponse:
        """Tells where each id stands in an epoch."""
        ...

    def pack_sequences(
        self, request: pb.PackSequencesRequest, timeout_seconds: float = math.inf
    ) -> pb.PackSequencesResponse:
        """Packs the given lengths at once."""
        ...

    def stream_bins(
        self, request: pb.StreamBinsRequest, timeout_seconds: float = math.inf
    ) -> Iterator[pb.StreamBinsResponse]:
        """Streams a header and blocks; closing the iterator ends the call."""
        ...

    def pack_stream(
        self, requests: Iterator[pb.PackStreamRequest], timeout_seconds: float = math.inf
    ) -> Iterator[pb.PackStreamResponse]:
        """Yields one response for every request; closing the iterator ends the call."""
        ...

    def close(self) -> None:
        """Lets go of connections; later calls connect again."""
        ...
