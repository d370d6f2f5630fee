"""The service without a transport: protocol messages in, protocol messages out.

Owns every method, for gRPC and for embedded clients, so both give the same bytes. Long work is cut into time slices
(`…_in_slices`). Leaves statuses, threads and memory to `servicer`.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from packhorse.dataset import MixtureDataset
from packhorse.epoch import joined
from packhorse.server.base.faults import ServiceError
from packhorse.server.base.time_slices import Pace, TimeSlices, finish
from packhorse.server.datasets.corpora import Corpora
from packhorse.server.datasets.protocols import Dataset, Datasets
from packhorse.server.datasets.run_progress import RunProgress
from packhorse.server.methods import asked_dataset, pack, requests, sizes, versions
from packhorse.server.methods.dataset_messages import ID_TYPES, dataset_message
from packhorse.server.methods.locate import locate_in_slices
from packhorse.server.methods.messages import as_declared, components_in, encode, encode_tokens
from packhorse.server.methods.open_stream import BLOCK_BYTES, OpenStream
from packhorse.server.methods.pack_stream import PackSession
from packhorse.server.methods.stage_request import stage_of
from packhorse.server.methods.stream_request import Epochs, StreamRequest
from packhorse.server.methods.takedown_messages import takedown_message
from packhorse.topology import Skips, Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import get_bins_context

_COPIES = 3
"""Copies of an answer in memory while it is made: in arrays, in the message and in the bytes that are sent."""


class Backend:
    """Answers every request from the catalog's datasets; keeps nothing between requests but caches.

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
        note = partial(self._note, checked.dataset, checked.skips, checked.epoch)
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
        dataset = asked_dataset.get_dataset(
            self._catalog, request.dataset, request.dataset_digest, request.expected_digest
        )
        takedown = self._catalog.takedown(dataset)
        versions.check_reads(dataset, takedown, request.wire_version)
        skips = asked_dataset.skips(request.skip)
        if not request.is_whole:
            skips = skips.plus(takedown.skips_of(request.epoch, request.seed))
        end = max(request.positions, default=-1) + 1
        asked_dataset.check_digest(
            dataset, skips, request.expected_digest, epoch=request.epoch, end=end, takedown=takedown
        )
        source = self._epochs.source(dataset, request.seed, request.epoch, skips)
        corpus = self._corpora.of(dataset) if request.with_tokens else None
        of_tokens = request.with_tokens * sizes.token_bytes(dataset)  # of a bin, at most
        # First a bound that needs no bins: each has at least one sequence.
        least = sizes.BYTES_PER_BIN + sizes.bytes_per_sequence(dataset) + of_tokens
        most_positions = sizes.MAX_MESSAGE_BYTES // least
        sizes.check_answer_size("positions", least * len(request.positions), most_positions, len(request.positions))
        positions = np.array(request.positions, dtype=np.int64)
        outside = positions[(positions < 0) | (positions >= source.num_bins)]
        if len(outside):
            requests.integer("positions", int(outside[0]), 0, source.num_bins - 1)
        most = sizes.most_bytes_per_bin(dataset, with_tokens=request.with_tokens)
        yield _COPIES * min(most * len(positions), sizes.MAX_MESSAGE_BYTES)
        # Then the bins, part by part, until they are too many for one message.
        parts = []
        num_bytes = 0
        at_once = max(1, BLOCK_BYTES // most)
        pace = Pace()
        for first in range(0, len(positions), at_once):
            part = source.bins(positions[first : first + at_once])
            bytes_of_bins = (sizes.BYTES_PER_BIN + of_tokens) * np.arange(1, len(part.bin_ends) + 1)
            per_sequence = sizes.bytes_per_sequence(dataset)
            ends = num_bytes + bytes_of_bins + per_sequence * part.bin_ends
            num_fitting = first + int(np.searchsorted(ends, sizes.MAX_MESSAGE_BYTES, side="right"))
            num_bytes = int(ends[-1])
            sizes.check_answer_size("positions", num_bytes, num_fitting, len(positions))
            parts.append(part)
            if pace.is_over():
                yield _COPIES * min(most * len(positions), sizes.MAX_MESSAGE_BYTES)
                pace.restart()
        bins = as_declared(joined(parts or [source.bins(positions)]), dataset.manifest)
        self._catalog.confirm(dataset, components_in(bins))
        self._note(dataset, skips, request.epoch, end)
        digest = asked_dataset.digest_of(dataset, skips, takedown)
        response = pb.GetBinsResponse(digest=digest, id_type=ID_TYPES[dataset.manifest.id_dtype])
        context = get_bins_context(request, response.digest, response.id_type)
        num_bins = self._epochs.whole(dataset, request.seed, request.epoch).num_bins
        redacted = takedown.redacted(bins, epoch=request.epoch, seed=request.seed, num_bins=num_bins, skips=skips)
        encode(bins, response.bins, context, None, positions, redacted)
        if corpus is not None:
            with self._corpora.reading(dataset):
                tokens = corpus.read(bins, redacted)
            has_prefixes = dataset.manifest.shares_prefixes
            encode_tokens(tokens, response.tokens, response.bins.checksum, has_prefixes=has_prefixes)
        del parts
        yield (_COPIES - 1) * num_bytes
        return response

    def locate_sequences(self, request: pb.LocateSequencesRequest) -> pb.LocateSequencesResponse:
        """Locates each id in an epoch."""
        return finish(self.locate_in_slices(request))

    def locate_in_slices(self, request: pb.LocateSequencesRequest) -> TimeSlices[pb.LocateSequencesResponse]:
        """As `locate_sequences`, in time slices."""
        return locate_in_slices(self._catalog, self._epochs, request)

    def append_stage(self, request: pb.AppendStageRequest) -> pb.AppendStageResponse:
        """Changes the stages of a mixture from a position on, unless bins after it have been sent."""
        requests.integer("from_position", request.from_position, 1)

        def check() -> None:
            """Raises a ServiceError if bins after the position have been sent."""
            reached = self._reached.of(request.dataset)
            if reached > request.from_position:
                raise ServiceError(
                    pb.ERROR_REASON_POSITION_PASSED,
                    f"mixture {request.dataset!r} cannot change at position {request.from_position} of the run: bins "
                    f"before {reached} have been sent already; choose that position or a later one, ahead of every "
                    f"rank",
                    {"dataset": request.dataset, "position": str(request.from_position), "reached": str(reached)},
                )

        stage, replace = stage_of(request), request.replace
        self._catalog.append_stage(request.dataset, stage, request.from_position, check, replace=replace)
        return pb.AppendStageResponse(dataset=self._described(request.dataset))

    def _note(self, dataset: Dataset, skips: Skips, epoch: int, end: int) -> None:
        """Notes how far a run of a mixture has come: to `end`, exclusive, counted without skipped positions."""
        if isinstance(dataset, MixtureDataset) and end:
            self._reached.note(dataset.name, epoch * dataset.num_bins + skips.to_whole(end - 1) + 1)

    def pack_sequences(self, request: pb.PackSequencesRequest) -> pb.PackSequencesResponse:
        """Packs the given lengths at once."""
        return finish(self.pack_in_slices(request))

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


@cache
def installed_version() -> str:
    """Returns this packhorse's version; empty in a source tree that is not installed."""
    try:
        return version("packhorse")
    except PackageNotFoundError:
        return ""
