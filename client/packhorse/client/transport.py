"""What the client needs of a transport, whatever lies behind it.

Owns the interface; `_grpc` and `_embedded` are its two forms, and give the same messages.
"""

from collections.abc import Iterator
from typing import Protocol

from packhorse.v1 import packing_pb2 as pb


class Transport(Protocol):
    """Carries requests to a service. Every method raises the exceptions of `packhorse.client.errors`."""

    target: str
    """What `connect` was given."""

    def list_datasets(self, request: pb.ListDatasetsRequest) -> pb.ListDatasetsResponse:
        """Lists the datasets that are served."""
        ...

    def get_dataset(self, request: pb.GetDatasetRequest) -> pb.GetDatasetResponse:
        """Describes one dataset."""
        ...

    def get_bins(self, request: pb.GetBinsRequest) -> pb.GetBinsResponse:
        """Returns the bins at any positions."""
        ...

    def locate_sequences(self, request: pb.LocateSequencesRequest) -> pb.LocateSequencesResponse:
        """Tells where each id stands in an epoch."""
        ...

    def pack_sequences(self, request: pb.PackSequencesRequest) -> pb.PackSequencesResponse:
        """Packs the given lengths at once."""
        ...

    def stream_bins(self, request: pb.StreamBinsRequest) -> Iterator[pb.StreamBinsResponse]:
        """Streams a header and blocks; closing the iterator ends the call."""
        ...

    def pack_stream(self, requests: Iterator[pb.PackStreamRequest]) -> Iterator[pb.PackStreamResponse]:
        """Yields one response for every request; closing the iterator ends the call."""
        ...

    def close(self) -> None:
        """Lets go of connections; later calls connect again."""
        ...
