"""The service without a transport: protocol messages in, protocol messages out.

Owns what every method does, for gRPC and for embedded clients alike, which is why both give the same bytes. Long work
is cut into pieces (`…_in_pieces`). Leaves statuses, threads and memory to `servicer`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from packhorse.dataset import MixtureDataset
from packhorse.epoch import joined
from packhorse.server.base.faults import ServiceError
from packhorse.server.base.pieces import Pace, Pieces, finish
from packhorse.server.datasets.mixtures import RunProgress
from packhorse.server.datasets.served import Datasets, Served
from packhorse.server.methods import pack, requests
from packhorse.server.methods.components import components_of, stages_of, takedown_message
from packhorse.server.methods.encoding import ID_TYPES, as_declared, components_in, encode
from packhorse.server.methods.epochs import Epochs
from packhorse.server.methods.locate import locate_in_pieces
from packhorse.server.methods.open_stream import BLOCK_BYTES, OpenStream
from packhorse.server.methods.pack_session import PackSession
from packhorse.server.methods.stream_request import StreamRequest
from packhorse.topology import Skips, Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import get_bins_context

_COPIES = 3
"""An answer is held so often while it is made: in arrays, in the message and in the bytes that are sent."""


class Backend:
    """Answers every request from the catalog's datasets; keeps nothing between requests but caches.

    Args:
        catalog: the datasets.
        saw_run: told of every stream's dataset and topology.
        num_streams: how many are open now, the one that asks included.
        reached: how far runs have come; None where nobody shares it.
    """

    def __init__(
        self,
        catalog: Datasets,
        *,
        saw_run: Callable[[Served, Topology], None] = lambda _served, _topology: None,
        num_streams: Callable[[], int] = lambda: 1,
        reached: RunProgress | None = None,
    ) -> None:
        self._catalog = catalog
        self._epochs = Epochs()
        self._saw_run = saw_run
        self._num_streams = num_streams
        self._reached = reached or RunProgress()

    def list_datasets(self, request: pb.ListDatasetsRequest) -> pb.ListDatasetsResponse:
        """Lists the datasets that are served."""
        names = self._catalog.names()
        return pb.ListDatasetsResponse(
            datasets=[self._described(name) for name in names], server_version=installed_version()
        )

    def get_dataset(self, request: pb.GetDatasetRequest) -> pb.GetDatasetResponse:
        """Describes one dataset."""
        return pb.GetDatasetResponse(dataset=self._described(request.name))

    def _described(self, name: str) -> pb.Dataset:
        served = self._catalog.get(name)
        described = _describe(served)
        if takedown := self._catalog.takedown(served):
            described.takedown.CopyFrom(takedown_message(takedown))
        described.older_digests.extend(self._catalog.older_digests(name))
        return described

    def open_stream(self, request: pb.StreamBinsRequest) -> OpenStream:
        """Checks a request, and returns its stream, of which nothing is made yet."""
        asked = StreamRequest.of(request, self._catalog, self._epochs)
        self._saw_run(asked.dataset, asked.topology)
        note = partial(self._note, asked.dataset, asked.skips, asked.epoch)
        return OpenStream(asked, self._catalog, note, self._num_streams)

    def stream_bins(self, request: pb.StreamBinsRequest) -> Iterator[pb.StreamBinsResponse]:
        """Yields a stream's header, then its blocks, each made when it is asked for."""
        stream = self.open_stream(request)
        yield pb.StreamBinsResponse(header=stream.header)
        while (steps := stream.take()) and (block := stream.make(steps)) is not None:
            yield block

    def get_bins(self, request: pb.GetBinsRequest) -> pb.GetBinsResponse:
        """Returns the bins at any positions."""
        return finish(self.get_bins_in_pieces(request))

    def get_bins_in_pieces(self, request: pb.GetBinsRequest) -> Pieces[pb.GetBinsResponse]:
        """As `get_bins`, in pieces."""
        dataset = self._catalog.get(request.dataset, requests.digest_of_dataset(request.expected_digest))
        takedown = self._catalog.takedown(dataset)
        requests.check_reads(dataset, takedown, request.wire_version)
        skips = requests.skips(request.skip)
        if not request.is_whole:
            skips = skips.plus(takedown.skips_of(request.epoch, request.seed))
        end = max(request.positions, default=-1) + 1
        requests.check_digest(dataset, skips, request.expected_digest, epoch=request.epoch, end=end, takedown=takedown)
        source = self._epochs.source(dataset, request.seed, request.epoch, skips)
        least = requests.BYTES_PER_BIN + requests.bytes_per_sequence(dataset)
        most_positions = requests.MAX_MESSAGE_BYTES // least
        requests.check_answer_size("positions", least * len(request.positions), most_positions, len(request.positions))
        positions = np.array(request.positions, dtype=np.int64)
        outside = positions[(positions < 0) | (positions >= source.num_bins)]
        if len(outside):
            requests.integer("positions", int(outside[0]), 0, source.num_bins - 1)
        most = requests.most_bytes_per_bin(dataset)
        yield _COPIES * min(most * len(positions), requests.MAX_MESSAGE_BYTES)
        parts = []
        num_bytes = 0
        at_once = max(1, BLOCK_BYTES // most)
        pace = Pace()
        for first in range(0, len(positions), at_once):
            part = source.bins(positions[first : first + at_once])
            bytes_of_bins = requests.BYTES_PER_BIN * np.arange(1, len(part.bin_ends) + 1)
            per_sequence = requests.bytes_per_sequence(dataset)
            ends = num_bytes + bytes_of_bins + per_sequence * part.bin_ends
            num_fitting = first + int(np.searchsorted(ends, requests.MAX_MESSAGE_BYTES, side="right"))
            num_bytes = int(ends[-1])
            requests.check_answer_size("positions", num_bytes, num_fitting, len(positions))
            parts.append(part)
            if pace.is_over():
                yield _COPIES * min(most * len(positions), requests.MAX_MESSAGE_BYTES)
                pace.restart()
        bins = as_declared(joined(parts or [source.bins(positions)]), dataset.manifest)
        self._catalog.confirm(dataset, components_in(bins))
        self._note(dataset, skips, request.epoch, end)
        digest = requests.digest_of(dataset, skips, takedown)
        response = pb.GetBinsResponse(digest=digest, id_type=ID_TYPES[dataset.manifest.id_dtype])
        context = get_bins_context(request, response.digest, response.id_type)
        num_bins = self._epochs.whole(dataset, request.seed, request.epoch).num_bins
        redacted = takedown.redacted(bins, epoch=request.epoch, seed=request.seed, num_bins=num_bins, skips=skips)
        encode(bins, response.bins, context, None, positions, redacted)
        del parts
        yield (_COPIES - 1) * num_bytes
        return response

    def locate_sequences(self, request: pb.LocateSequencesRequest) -> pb.LocateSequencesResponse:
        """Tells where each id stands in an epoch."""
        return finish(self.locate_in_pieces(request))

    def locate_in_pieces(self, request: pb.LocateSequencesRequest) -> Pieces[pb.LocateSequencesResponse]:
        """As `locate_sequences`, in pieces."""
        return locate_in_pieces(self._catalog, self._epochs, request)

    def append_stage(self, request: pb.AppendStageRequest) -> pb.AppendStageResponse:
        """Changes the stages of a mixture from a position on, unless bins beyond it have been handed out."""
        requests.integer("from_position", request.from_position, 1)

        def check() -> None:
            reached = self._reached.of(request.dataset)
            if reached > request.from_position:
                raise ServiceError(
                    pb.ERROR_REASON_POSITION_PASSED,
                    f"mixture {request.dataset!r} cannot change at position {request.from_position} of the run: bins "
                    f"before {reached} have been handed out already; choose a position from there on, ahead of every "
                    "rank",
                    {"dataset": request.dataset, "position": str(request.from_position), "reached": str(reached)},
                )

        stage, replace = requests.stage(request), request.replace
        self._catalog.append_stage(request.dataset, stage, request.from_position, check, replace=replace)
        return pb.AppendStageResponse(dataset=self._described(request.dataset))

    def _note(self, served: Served, skips: Skips, epoch: int, end: int) -> None:
        """Keeps how far a run of a mixture comes: `end` is one behind its last position of what is left."""
        if isinstance(served, MixtureDataset) and end:
            self._reached.note(served.name, epoch * served.num_bins + skips.to_whole(end - 1) + 1)

    def pack_sequences(self, request: pb.PackSequencesRequest) -> pb.PackSequencesResponse:
        """Packs the given lengths at once."""
        return finish(self.pack_in_pieces(request))

    def pack_in_pieces(self, request: pb.PackSequencesRequest) -> Pieces[pb.PackSequencesResponse]:
        """As `pack_sequences`, in pieces."""
        return pack.pack_in_pieces(request)

    def pack_session(self) -> PackSession:
        """A PackStream of which the caller brings the messages."""
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


_NAMES = {
    "num_sequences": "n_sequences",
    "num_bins": "n_bins",
    "num_lengths": "distinct_lengths",
    "num_templates": "distinct_templates",
}
"""Field of the message → of the manifest, where their names differ."""


def _describe(dataset: Served) -> pb.Dataset:
    """Returns what is served of a dataset: each fact of its manifest or options that the message has a field for."""
    manifest, over = dataset.manifest, dataset.manifest.over_length
    facts = {**vars(manifest.options), **vars(manifest)}
    for name in ("over_length", "inputs", "groups", "keys", "id_column", "left_out", "max_sequences_per_bin"):
        facts.pop(name)
    declared = (field.name for field in pb.Dataset.DESCRIPTOR.fields)
    return pb.Dataset(
        **{name: facts[own] for name in declared if (own := _NAMES.get(name, name)) in facts},
        name=dataset.name,
        max_sequences_per_bin=dataset.max_sequences_per_bin,
        id_type=ID_TYPES[manifest.id_dtype],
        over_length=manifest.options.over_length,
        id_column=manifest.id_column or "",
        key_column=manifest.keys.column if manifest.keys else "",
        over_length_sequences=over.sequences,
        over_length_source_tokens=over.source_tokens,
        over_length_tokens=over.tokens,
        skipped_rows=0 if manifest.inputs is None else manifest.inputs.skipped.rows,
        left_out=map(asdict, manifest.left_out),
        num_groups=manifest.groups.n_groups if manifest.groups else 0,
        components=components_of(dataset),
        stages=stages_of(dataset),
    )
