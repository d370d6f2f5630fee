"""The service without a transport: protocol messages in, protocol messages out.

Owns every method, for gRPC and for embedded clients, so both give the same bytes. Long work is cut into time slices
(`…_in_slices`). Leaves statuses, threads and memory to `servicer`.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from packhorse.dataset import MixtureDataset
from packhorse.server.base.faults import ServiceError
from packhorse.server.base.release import installed_version
from packhorse.server.base.time_slices import TimeSlices, finish
from packhorse.server.datasets.corpora import Corpora
from packhorse.server.datasets.protocols import Dataset, Datasets
from packhorse.server.datasets.run_progress import RunProgress
from packhorse.server.methods import asked_dataset, requests
from packhorse.server.methods.dataset_messages import dataset_message
from packhorse.server.methods.epochs import Epochs
from packhorse.server.methods.get_bins import get_bins_in_slices
from packhorse.server.methods.locate import locate_in_slices
from packhorse.server.methods.on_demand import pack
from packhorse.server.methods.on_demand.pack_stream import PackSession
from packhorse.server.methods.open_stream import OpenStream
from packhorse.server.methods.stage_request import stage_of
from packhorse.server.methods.stream_request import StreamRequest
from packhorse.server.methods.takedown_messages import takedown_message
from packhorse.topology import Skips, Topology
from packhorse.v1 import packing_pb2 as pb


class Backend:
    """Answers every request from the catalog's datasets; keeps only caches, and how far runs of mixtures have come.

    Args:
        catalog: the datasets.
        saw_run: called with every stream's dataset and topology.
        num_streams: returns how many streams are open now.
        reached: the table of how far runs have come; None if no other process shares it.
        corpora: the tokens of datasets; None if no tokens are sent.
    """

    def __init__(
        self,
        catalog: Datasets,
        *,
        saw_run: Callable[[Dataset, Topology], None] = lambda _dataset, _topology: None,
        num_streams: Callable[[], int] = lambda: 1,
        reached: RunProgress | None = None,
        corpora: Corpora | None = None,
    ) -> None:
        self._catalog = catalog
        self._epochs = Epochs()
        self._saw_run = saw_run
        self._num_streams = num_streams
        self._reached = reached or RunProgress()
        self._corpora = corpora or Corpora()

    def list_datasets(self, request: pb.ListDatasetsRequest) -> pb.ListDatasetsResponse:
        """Lists the datasets that are served."""
        names = self._catalog.names()
        return pb.ListDatasetsResponse(
            datasets=[self._described(name) for name in names], server_version=installed_version()
        )

    def get_dataset(self, request: pb.GetDatasetRequest) -> pb.GetDatasetResponse:
        """Describes one dataset."""
        return pb.GetDatasetResponse(dataset=self._described(request.name, request.dataset_digest))

    def _described(self, name: str, digest: str = "") -> pb.Dataset:
        """Returns the message of a dataset, with its takedown, the facts of its tokens, and its older digests."""
        dataset = asked_dataset.get_dataset(self._catalog, name, digest)
        message = dataset_message(dataset)
        if takedown := self._catalog.takedown(dataset):
            message.takedown.CopyFrom(takedown_message(takedown))
        message.MergeFrom(pb.Dataset(**self._corpora.facts(dataset)))
        message.older_digests.extend(self._catalog.older_digests(name))
        return message

    def open_stream(self, request: pb.StreamBinsRequest) -> OpenStream:
        """Checks a request, and returns its stream, before any block is made."""
        checked = StreamRequest.of(request, self._catalog, self._epochs)
        if checked.with_tokens:
            self._corpora.of(checked.dataset)  # raises now, before the header, if there are no tokens
        self._saw_run(checked.dataset, checked.topology)
        note = partial(self._note_reached, checked.dataset, checked.skips, checked.epoch)
        return OpenStream(checked, self._catalog, self._corpora, note, self._num_streams)

    def stream_bins(self, request: pb.StreamBinsRequest) -> Iterator[pb.StreamBinsResponse]:
        """Yields a stream's header, then its blocks, each made when the next is requested."""
        stream = self.open_stream(request)
        yield pb.StreamBinsResponse(header=stream.header)
        while (steps := stream.take()) and (block := stream.make(steps)) is not None:
            yield block

    def get_bins(self, request: pb.GetBinsRequest) -> pb.GetBinsResponse:
        """Returns the bins at any positions."""
        return finish(self.get_bins_in_slices(request))

    def get_bins_in_slices(self, request: pb.GetBinsRequest) -> TimeSlices[pb.GetBinsResponse]:
        """As `get_bins`, in time slices."""
        return get_bins_in_slices(self._catalog, self._epochs, self._corpora, self._note_reached, request)

    def locate_sequences(self, request: pb.LocateSequencesRequest) -> pb.LocateSequencesResponse:
        """Locates each id in an epoch."""
        return finish(self.locate_in_slices(request))

    def locate_in_slices(self, request: pb.LocateSequencesRequest) -> TimeSlices[pb.LocateSequencesResponse]:
        """As `locate_sequences`, in time slices."""
        return locate_in_slices(self._catalog, self._epochs, request)

    def append_stage(self, request: pb.AppendStageRequest) -> pb.AppendStageResponse:
        """Changes the stages of a mixture from a position on, unless bins after it have been sent."""
        requests.integer("from_position", request.from_position, 1)
        stage, replace = stage_of(request), request.replace
        check = partial(self._check_not_passed, request.dataset, request.from_position)
        self._catalog.append_stage(request.dataset, stage, request.from_position, check, replace=replace)
        return pb.AppendStageResponse(dataset=self._described(request.dataset))

    def _check_not_passed(self, name: str, from_position: int) -> None:
        """Raises a ServiceError if bins of a mixture after a position of its run have been sent."""
        reached = self._reached.of(name)
        if reached > from_position:
            raise ServiceError(
                pb.ERROR_REASON_POSITION_PASSED,
                f"mixture {name!r} cannot change at position {from_position} of the run: bins before {reached} have "
                "been sent already; choose that position or a later one, ahead of every rank",
                {"dataset": name, "position": str(from_position), "reached": str(reached)},
            )

    def _note_reached(self, dataset: Dataset, skips: Skips, epoch: int, end: int) -> None:
        """Notes how far a run of a mixture has come: to `end`, exclusive, counted without skipped positions."""
        if isinstance(dataset, MixtureDataset) and end:
            self._reached.note(dataset.name, epoch * dataset.num_bins + skips.to_whole(end - 1) + 1)

    def pack_sequences(self, request: pb.PackSequencesRequest) -> pb.PackSequencesResponse:
        """Packs the given lengths at once."""
        return pack.pack_sequences(request)

    def pack_in_slices(self, request: pb.PackSequencesRequest) -> TimeSlices[pb.PackSequencesResponse]:
        """As `pack_sequences`, in time slices."""
        return pack.pack_in_slices(request)

    def pack_session(self) -> PackSession:
        """Returns a new PackStream's session, which answers one message after the other."""
        return PackSession()

    def pack_stream(self, messages: Iterable[pb.PackStreamRequest]) -> Iterator[pb.PackStreamResponse]:
        """Packs sequences that arrive one by one: yields one response for every message."""
        session = self.pack_session()
        for message in messages:
            yield session.answer(message)
