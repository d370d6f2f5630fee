"""The methods of the service, and the interface of a transport that calls them.

The transports are in `transport/grpc_channels` and `transport/embedded`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message_factory import GetMessageClass

from packhorse.v1 import packing_pb2 as pb

_SERVICE = pb.DESCRIPTOR.services_by_name["PackingService"]
_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


@dataclass(frozen=True, slots=True)
class Method(Generic[_Request, _Response]):
    """One method of the service; its type parameters are the request and each message that it returns."""

    name: str
    """The method's name in Python, as in the server's backend: get_bins."""

    @property
    def rpc(self) -> str:
        """The method's name in the protocol: GetBins."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def path(self) -> str:
        """The method's path in gRPC: /packhorse.v1.PackingService/GetBins."""
        return f"/{_SERVICE.full_name}/{self.rpc}"

    @property
    def parse(self) -> Callable[[bytes], _Response]:
        """A function that decodes a message that the method returns; it raises DecodeError."""
        kind: Any = GetMessageClass(_SERVICE.methods_by_name[self.rpc].output_type)
        parse: Callable[[bytes], _Response] = kind.FromString
        return parse


LIST_DATASETS: Method[pb.ListDatasetsRequest, pb.ListDatasetsResponse] = Method("list_datasets")
GET_DATASET: Method[pb.GetDatasetRequest, pb.GetDatasetResponse] = Method("get_dataset")
GET_BINS: Method[pb.GetBinsRequest, pb.GetBinsResponse] = Method("get_bins")
LOCATE_SEQUENCES: Method[pb.LocateSequencesRequest, pb.LocateSequencesResponse] = Method("locate_sequences")
PACK_SEQUENCES: Method[pb.PackSequencesRequest, pb.PackSequencesResponse] = Method("pack_sequences")
APPEND_STAGE: Method[pb.AppendStageRequest, pb.AppendStageResponse] = Method("append_stage")
STREAM_BINS: Method[pb.StreamBinsRequest, pb.StreamBinsResponse] = Method("stream_bins")
PACK_STREAM: Method[Iterator[pb.PackStreamRequest], pb.PackStreamResponse] = Method("pack_stream")


def no_deadline() -> float:
    """Returns infinity: there is no deadline."""
    return math.inf


class Transport(Protocol):
    """Carries requests to a service. Every method raises the exceptions of `packhorse.client.errors`.

    Example:
        >>> from packhorse.client.transport.embedded import EmbeddedTransport
        >>> transport = EmbeddedTransport("embedded:datasets")
        >>> transport.answer(GET_DATASET, pb.GetDatasetRequest(name="corpus")).dataset.num_bins
        2
    """

    target: str
    """The target that `connect` was given."""

    @property
    def has_answered(self) -> bool:
        """Whether the service has ever answered; a client tries longer if it has."""

    def answer(
        self, method: Method[_Request, _Response], request: _Request, timeout_seconds: float = math.inf
    ) -> _Response:
        """Returns the one answer to a request, within the time."""

    def stream(
        self, method: Method[_Request, _Response], request: _Request, seconds_left: Callable[[], float] = no_deadline
    ) -> Iterator[_Response]:
        """Yields the messages that answer a request, or an iterator of requests; closing the iterator ends the call.

        Over a network, `seconds_left` is called before each message for the time until the deadline. The first message
        may take all of it; a later one fails if it takes half of it, so that there is time for another attempt. The
        transport's own limits may be shorter. Nothing is sent before the first message is asked for.
        """

    def close(self) -> None:
        """Closes connections; later calls connect again."""
