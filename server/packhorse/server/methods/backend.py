"""The service without a transport: protocol messages in, protocol messages out.

Owns every method, for gRPC and for embedded clients, so both give the same bytes, and what a look-up of ids and keys
may cost. Long work is cut into time slices (`…_in_slices`). Leaves the search itself to `packhorse.epoch`, and
statuses, threads and memory to `servicer`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import Keys, MixtureDataset
from packhorse.epoch import Assignment, Source, joined
from packhorse.formats.keys import check_key, shown_key
from packhorse.server.base.faults import ServiceError, invalid_field, too_large
from packhorse.server.base.time_slices import Pace, TimeSlices, finish
from packhorse.server.datasets.mixtures import RunProgress
from packhorse.server.datasets.protocols import Dataset, Datasets
from packhorse.server.methods import pack, requests
from packhorse.server.methods.messages import (
    ID_TYPES,
    as_declared,
    components_in,
    components_of,
    dataset_message,
    encode,
    takedown_message,
)
from packhorse.server.methods.pack_stream import PackSession
from packhorse.server.methods.stream_request import BLOCK_BYTES, Epochs, OpenStream, StreamRequest
from packhorse.topology import Skips, StreamMode, Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import LocationsChecksum, get_bins_context

MAX_LOCATE_IDS = 10_000
"""Ids in one LocateSequences."""

MAX_LOCATE_BISECTIONS = 1 << 27
"""Bisections in one LocateSequences: each id takes one for every distinct length. Some 40 seconds of one core."""

_BISECTIONS_AT_ONCE = 1 << 16
"""Bisections in one call of the kernel: some 20 ms."""

MAX_LOCATE_ARRANGED = 1 << 28
"""Bins that one LocateSequences may have arranged for a balance: each id may be in another optimizer step."""

_ARRANGED_AT_ONCE = 1 << 17
"""Of these, at once: some 20 ms."""

MAX_LOCATIONS = 500_000
"""Answers to one LocateSequences: an id has one for each piece."""

_BYTES_PER_LOCATION = 320
"""Of one SequenceLocation, as a message and in the bytes that are sent."""


def locate_in_slices(
    catalog: Datasets, epochs: Epochs, request: pb.LocateSequencesRequest
) -> TimeSlices[pb.LocateSequencesResponse]:
    """Locates each id and key of a request; a ServiceError if it is out of range, or asks for too much."""
    dataset = catalog.get(request.dataset, requests.digest_of_dataset(request.expected_digest))
    takedown = catalog.takedown(dataset)
    skips = requests.skips(request.skip).plus(takedown.skips_of(request.epoch, request.seed))
    requests.check_digest(dataset, skips, request.expected_digest, epoch=request.epoch, takedown=takedown)
    source = epochs.source(dataset, request.seed, request.epoch, skips)
    num_lengths = dataset.num_lengths
    assignment = None
    num_arranged = 1
    if request.HasField("topology"):
        topology = requests.topology(request.topology, source, request.epoch, dataset.manifest.n_sequences)
        if topology.mode is StreamMode.INDEPENDENT:
            raise invalid_field(
                "topology.mode",
                "topology.mode must be PARTITION: independent streams go through epochs of their own",
            )
        assignment = epochs.assignment(dataset, request.seed, request.epoch, skips, topology)
        num_arranged = max(1, assignment.bins_to_locate())
    most_ids = min(MAX_LOCATE_IDS, MAX_LOCATE_BISECTIONS // num_lengths, MAX_LOCATE_ARRANGED // num_arranged)
    num_ids = len(request.ids) + len(request.keys)
    if num_ids > most_ids:
        raise too_large(
            "keys" if request.keys else "ids",
            most_ids,
            f"{num_ids} ids and keys are asked for; ask this dataset for at most {most_ids}",
        )
    tables = dataset.key_tables
    _check_keys(request, tables)
    response = pb.LocateSequencesResponse(digest=requests.digest_of(dataset, skips, takedown))
    checksum = LocationsChecksum(request, response.digest)
    names = [component.name for component in components_of(dataset)]
    at_once = max(1, min(_BISECTIONS_AT_ONCE // num_lengths, _ARRANGED_AT_ONCE // num_arranged))
    pace = Pace()
    key_bytes = 0

    def located(ids: NDArray[np.int64]) -> Iterator[pb.SequenceLocation]:
        return _locations(source, assignment, request.topology, ids, names)

    for some in _located(request, tables, located, at_once):
        for location in some:
            response.locations.append(location)
            checksum.add(location)
            key_bytes += len(location.key)
        if len(response.locations) > MAX_LOCATIONS or key_bytes > requests.MAX_MESSAGE_BYTES // 2:
            what = f"there are more than {MAX_LOCATIONS} answers, or their keys are too long"
            raise too_large("ids", MAX_LOCATIONS, f"{what}; ask for fewer ids")
        if pace.is_over():
            yield _BYTES_PER_LOCATION * len(response.locations) + 2 * key_bytes
            pace.restart()
    catalog.confirm(dataset, range(len(names)))
    response.checksum = checksum.value
    yield _BYTES_PER_LOCATION * len(response.locations) + 2 * key_bytes
    return response


def _check_keys(request: pb.LocateSequencesRequest, tables: Mapping[str, Keys | None]) -> None:
    """Refuses malformed keys, and keys for a dataset that has none; a ServiceError."""
    if request.keys and not any(tables.values()):
        raise invalid_field(
            "keys",
            f"{shown_key(request.keys[0])[:80]} is not an id, and {request.dataset} has no keys: ask for ids, or "
            "prepare it with an id_column of text",
        )
    for key in request.keys:
        try:
            check_key(key)
        except ValueError as error:
            raise invalid_field("keys", str(error)) from None


def _located(
    request: pb.LocateSequencesRequest,
    tables: Mapping[str, Keys | None],
    located: Callable[[NDArray[np.int64]], Iterator[pb.SequenceLocation]],
    at_once: int,
) -> Iterator[list[pb.SequenceLocation]]:
    """Yields the locations of a request's ids, `at_once` of them together, then of its keys."""
    ids = np.array(request.ids, dtype=np.int64)
    for first in range(0, len(ids), at_once):
        locations = list(located(ids[first : first + at_once]))
        if request.with_keys:
            _name(locations, tables)
        yield locations
    for first in range(0, len(request.keys), at_once):
        keys = request.keys[first : first + at_once]
        answers: list[list[pb.SequenceLocation]] = [[] for _ in keys]
        for component, table in tables.items():
            if table is None:
                continue
            ids = table.ids_of(keys)
            of_ids: dict[int, list[pb.SequenceLocation]] = {}
            for location in located(np.unique(ids[ids >= 0])):
                if location.component in ("", component):
                    of_ids.setdefault(location.id, []).append(location)
            for key, id_of_key, answer in zip(keys, ids.tolist(), answers, strict=True):
                for location in of_ids.get(id_of_key, ()):
                    named = pb.SequenceLocation(key=key, component=component)
                    named.MergeFrom(location)
                    answer.append(named)
        yield [
            location
            for key, answer in zip(keys, answers, strict=True)
            for location in answer or [pb.SequenceLocation(id=-1, key=key)]
        ]


def _name(locations: Sequence[pb.SequenceLocation], tables: Mapping[str, Keys | None]) -> None:
    """Adds to locations the keys of their sequences."""
    for component, table in tables.items():
        if table is None:
            continue
        ours = [location for location in locations if location.component == component]
        for location, key in zip(ours, table.of(np.array([each.id for each in ours], np.int64)), strict=True):
            location.key = key


def _locations(
    source: Source,
    assignment: Assignment | None,
    topology: pb.Topology,
    ids: NDArray[np.int64],
    components: Sequence[str],
) -> Iterator[pb.SequenceLocation]:
    """Yields the locations of each id; an id that was split has one for each piece.

    In a mixture it has one for each time that it is used, and one without a position if a component has it and this
    epoch does not.
    """
    at = source.locate(ids)
    component_ids = np.full(len(at.ids), -1) if at.component_ids is None else at.component_ids
    columns = [component_ids, at.ids, at.first_tokens, at.lengths, at.positions, at.index_in_bin]
    if assignment is not None:
        streamed = assignment.locate(at.positions, at.index_in_bin)
        columns += [streamed.steps, streamed.ranks, streamed.slots]
    for row in zip(*(column.tolist() for column in columns), strict=True):
        component_id, sequence_id, first_token, length, position, index, *coordinates = row
        location = pb.SequenceLocation(id=sequence_id, found=length >= 0)
        if length >= 0:
            location.length, location.position, location.index_in_bin = length, position, index
            location.first_token = first_token
            location.component = components[component_id] if component_id >= 0 else ""
        if coordinates and coordinates[0] >= 0:
            step, rank, slot = coordinates
            worker = step % topology.workers_per_rank
            location.stream_location.CopyFrom(pb.StreamLocation(step=step, rank=rank, worker=worker, slot=slot))
        yield location


_COPIES = 3
"""Of an answer while it is made: in arrays, in the message and in the bytes that are sent."""


class Backend:
    """Answers every request from the catalog's datasets; keeps nothing between requests but caches.

    Args:
        catalog: the datasets.
        saw_run: called with every stream's dataset and topology.
        num_streams: returns how many streams are open now.
        reached: how far runs have come; None if no other process shares it.
    """

    def __init__(
        self,
        catalog: Datasets,
        *,
        saw_run: Callable[[Dataset, Topology], None] = lambda _dataset, _topology: None,
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
        dataset = self._catalog.get(name)
        message = dataset_message(dataset)
        if takedown := self._catalog.takedown(dataset):
            message.takedown.CopyFrom(takedown_message(takedown))
        message.older_digests.extend(self._catalog.older_digests(name))
        return message

    def open_stream(self, request: pb.StreamBinsRequest) -> OpenStream:
        """Checks a request, and returns its stream, of which nothing is made yet."""
        checked = StreamRequest.of(request, self._catalog, self._epochs)
        self._saw_run(checked.dataset, checked.topology)
        note = partial(self._note, checked.dataset, checked.skips, checked.epoch)
        return OpenStream(checked, self._catalog, note, self._num_streams)

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
        """Locates each id in an epoch."""
        return finish(self.locate_in_slices(request))

    def locate_in_slices(self, request: pb.LocateSequencesRequest) -> TimeSlices[pb.LocateSequencesResponse]:
        """As `locate_sequences`, in time slices."""
        return locate_in_slices(self._catalog, self._epochs, request)

    def append_stage(self, request: pb.AppendStageRequest) -> pb.AppendStageResponse:
        """Changes the stages of a mixture from a position on, unless bins after it have been sent."""
        requests.integer("from_position", request.from_position, 1)

        def check() -> None:
            reached = self._reached.of(request.dataset)
            if reached > request.from_position:
                raise ServiceError(
                    pb.ERROR_REASON_POSITION_PASSED,
                    f"mixture {request.dataset!r} cannot change at position {request.from_position} of the run: bins "
                    f"before {reached} have been sent already; choose that position or a later one, ahead of every "
                    f"rank",
                    {"dataset": request.dataset, "position": str(request.from_position), "reached": str(reached)},
                )

        stage, replace = requests.stage(request), request.replace
        self._catalog.append_stage(request.dataset, stage, request.from_position, check, replace=replace)
        return pb.AppendStageResponse(dataset=self._described(request.dataset))

    def _note(self, dataset: Dataset, skips: Skips, epoch: int, end: int) -> None:
        """Keeps how far a run of a mixture has come: to `end`, exclusive, of the positions that are not skipped."""
        if isinstance(dataset, MixtureDataset) and end:
            self._reached.note(dataset.name, epoch * dataset.num_bins + skips.to_whole(end - 1) + 1)

    def pack_sequences(self, request: pb.PackSequencesRequest) -> pb.PackSequencesResponse:
        """Packs the given lengths at once."""
        return finish(self.pack_in_slices(request))

    def pack_in_slices(self, request: pb.PackSequencesRequest) -> TimeSlices[pb.PackSequencesResponse]:
        """As `pack_sequences`, in time slices."""
        return pack.pack_in_slices(request)

    def pack_session(self) -> PackSession:
        """Returns a PackStream, which answers one message after the other."""
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
