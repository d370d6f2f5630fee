"""The service without a transport: protocol messages in, protocol messages out.

Owns what every method does, for gRPC and for embedded clients alike, which is why both give the same bytes. Long work
is cut into pieces (`…_in_pieces`). Leaves statuses, threads and memory to the servicer.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import PreparedDataset
from packhorse.epoch import Bins, EpochStream, EpochView, StreamMode, Topology, independent_seed
from packhorse.server import pack, requests
from packhorse.server.catalog import Catalog
from packhorse.server.faults import too_large
from packhorse.server.pieces import Pace, Pieces, finish
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import bins_checksum, block_context, get_bins_context, header_checksum

BLOCK_BYTES = 512 << 10
"""What later blocks of a stream grow to."""

MAX_LOCATE_IDS = 10_000
"""Ids in one LocateSequences."""

MAX_LOCATE_BISECTIONS = 1 << 27
"""Bisections in one LocateSequences: each id takes one for every distinct length. Some 40 seconds of one core."""

_BISECTIONS_AT_ONCE = 1 << 16
"""Bisections in one call of the kernel: some 20 ms."""

MAX_LOCATIONS = 500_000
"""Answers to one LocateSequences: an id has one for each piece."""

_COPIES = 3
"""An answer is held so often while it is made: in arrays, in the message and in the bytes that are sent."""

_BYTES_PER_LOCATION = 320
"""What one SequenceLocation takes, as a message and in the bytes that are sent."""

_ID_TYPES = {"uint32": pb.ID_TYPE_UINT32, "int64": pb.ID_TYPE_INT64}


class Backend:
    """Answers every request from the catalog's datasets; keeps nothing between requests but caches.

    Args:
        catalog: the datasets.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._view = lru_cache(maxsize=64)(_view)

    @classmethod
    def of_folder(cls, root: Path | str) -> "Backend":
        """A backend of every prepared dataset below `root` (or of `root` itself)."""
        return cls(Catalog(root))

    def list_datasets(self, request: pb.ListDatasetsRequest) -> pb.ListDatasetsResponse:
        """Lists the datasets that are served."""
        names = self._catalog.names()
        return pb.ListDatasetsResponse(datasets=[_describe(self._catalog.get(name)) for name in names])

    def get_dataset(self, request: pb.GetDatasetRequest) -> pb.GetDatasetResponse:
        """Describes one dataset."""
        return pb.GetDatasetResponse(dataset=_describe(self._catalog.get(request.name)))

    def stream_bins(self, request: pb.StreamBinsRequest) -> Iterator[pb.StreamBinsResponse]:
        """Yields the header, then blocks: the first of one step, later ones up to BLOCK_BYTES."""
        dataset = self._catalog.get(request.dataset)
        requests.check_digest(dataset, request.expected_digest)
        num_bins = dataset.plan.num_bins
        topology = requests.topology(request.topology, num_bins)
        requests.check_message_size("topology.batch_size", topology.batch_size, dataset)
        rank = requests.integer("rank", request.rank, 0, topology.world_size - 1)
        worker = requests.integer("worker", request.worker, 0, topology.workers_per_rank - 1)
        mode = requests.choice("mode", request.mode, requests.STREAM_MODES, lambda value: pb.StreamMode.Name(value))
        first_step = requests.integer("first_step", request.first_step, 0)
        seed = request.seed
        if mode is StreamMode.INDEPENDENT:
            seed = independent_seed(request.seed, rank, worker)
            rank = worker = 0
            topology = Topology(
                batch_size=topology.batch_size, start_position=topology.start_position, remainder=topology.remainder
            )
        stream = EpochStream(self._view(dataset, seed, request.epoch), topology)
        options = dataset.manifest.options
        header = pb.StreamHeader(
            digest=dataset.manifest.digest,
            num_steps=stream.num_steps,
            num_bins=num_bins,
            num_bins_dropped=topology.num_bins_dropped(num_bins),
            max_seq_len=options.max_seq_len,
            max_sequences_per_bin=dataset.plan.max_sequences_per_bin,
            id_type=_ID_TYPES[dataset.manifest.id_dtype],
            align=options.align,
            extra_tokens=options.extra_tokens,
            over_length=options.over_length,
            keep=options.keep,
            id_column=dataset.manifest.id_column or "",
        )
        header.checksum = header_checksum(request, header)
        yield pb.StreamBinsResponse(header=header)
        steps = topology.worker_steps(worker, num_bins, first_step=first_step)
        taken, at_once = 0, 1
        most = _steps_per_block(dataset, topology.batch_size)
        while taken < len(steps):
            block = steps[taken : taken + at_once]
            message = pb.StreamBinsResponse()
            message.block.first_step = block.start
            message.block.num_steps = len(block)
            _encode(stream.read(block, rank), message.block.bins)
            self._catalog.confirm(dataset)
            context = block_context(header.checksum, block.start, len(block))
            message.block.bins.checksum = bins_checksum(message.block.bins, context)
            yield message
            taken += len(block)
            at_once = min(2 * at_once, most)

    def get_bins(self, request: pb.GetBinsRequest) -> pb.GetBinsResponse:
        """Returns the bins at any positions."""
        return finish(self.get_bins_in_pieces(request))

    def get_bins_in_pieces(self, request: pb.GetBinsRequest) -> Pieces[pb.GetBinsResponse]:
        """As `get_bins`, in pieces."""
        dataset = self._catalog.get(request.dataset)
        requests.check_digest(dataset, request.expected_digest)
        least = requests.BYTES_PER_BIN + dataset.pool.dtype.itemsize + 4
        most_positions = requests.MAX_MESSAGE_BYTES // least
        requests.check_answer_size("positions", least * len(request.positions), most_positions, len(request.positions))
        positions = np.array(request.positions, dtype=np.int64)
        outside = positions[(positions < 0) | (positions >= dataset.plan.num_bins)]
        if len(outside):
            requests.integer("positions", int(outside[0]), 0, dataset.plan.num_bins - 1)
        most = requests.most_bytes_per_bin(dataset)
        yield _COPIES * min(most * len(positions), requests.MAX_MESSAGE_BYTES)
        view = self._view(dataset, request.seed, request.epoch)
        parts = []
        num_bytes = 0
        at_once = max(1, BLOCK_BYTES // most)
        pace = Pace()
        for first in range(0, len(positions), at_once):
            part = view.bins(positions[first : first + at_once])
            bytes_of_bins = requests.BYTES_PER_BIN * np.arange(1, len(part.bin_ends) + 1)
            per_sequence = part.ids.itemsize + part.lengths.itemsize + (0 if part.starts is None else 8)
            ends = num_bytes + bytes_of_bins + per_sequence * part.bin_ends
            num_fitting = first + int(np.searchsorted(ends, requests.MAX_MESSAGE_BYTES, side="right"))
            num_bytes = int(ends[-1])
            requests.check_answer_size("positions", num_bytes, num_fitting, len(positions))
            parts.append(part)
            if pace.is_over():
                yield _COPIES * min(most * len(positions), requests.MAX_MESSAGE_BYTES)
                pace.restart()
        self._catalog.confirm(dataset)
        response = pb.GetBinsResponse(digest=dataset.manifest.digest, id_type=_ID_TYPES[dataset.manifest.id_dtype])
        _encode(_end_to_end(parts or [view.bins(positions)]), response.bins)
        context = get_bins_context(request, response.digest, response.id_type)
        response.bins.checksum = bins_checksum(response.bins, context)
        del parts
        yield (_COPIES - 1) * num_bytes
        return response

    def locate_sequences(self, request: pb.LocateSequencesRequest) -> pb.LocateSequencesResponse:
        """Tells where each id stands in an epoch."""
        return finish(self.locate_in_pieces(request))

    def locate_in_pieces(self, request: pb.LocateSequencesRequest) -> Pieces[pb.LocateSequencesResponse]:
        """As `locate_sequences`, in pieces."""
        dataset = self._catalog.get(request.dataset)
        requests.check_digest(dataset, request.expected_digest)
        num_lengths = len(dataset.plan.lengths)
        most_ids = min(MAX_LOCATE_IDS, MAX_LOCATE_BISECTIONS // num_lengths)
        if len(request.ids) > most_ids:
            raise too_large("ids", most_ids, f"ids holds {len(request.ids)}; ask this dataset for at most {most_ids}")
        view = self._view(dataset, request.seed, request.epoch)
        stream = None
        if request.HasField("topology"):
            stream = EpochStream(view, requests.topology(request.topology, dataset.plan.num_bins))
        response = pb.LocateSequencesResponse(digest=dataset.manifest.digest)
        ids = np.array(request.ids, dtype=np.int64)
        at_once = max(1, _BISECTIONS_AT_ONCE // num_lengths)
        pace = Pace()
        for first in range(0, len(ids), at_once):
            for location in _locations(view, stream, ids[first : first + at_once]):
                response.locations.append(location)
                if len(response.locations) > MAX_LOCATIONS:
                    raise too_large(
                        "ids", MAX_LOCATIONS, f"ids has more than {MAX_LOCATIONS} pieces; ask for fewer ids"
                    )
                if pace.is_over():
                    yield _BYTES_PER_LOCATION * len(response.locations)
                    pace.restart()
        self._catalog.confirm(dataset)
        yield _BYTES_PER_LOCATION * len(response.locations)
        return response

    def pack_sequences(self, request: pb.PackSequencesRequest) -> pb.PackSequencesResponse:
        """Packs the given lengths at once."""
        return finish(self.pack_in_pieces(request))

    def pack_in_pieces(self, request: pb.PackSequencesRequest) -> Pieces[pb.PackSequencesResponse]:
        """As `pack_sequences`, in pieces."""
        return pack.pack_in_pieces(request)

    def pack_session(self) -> pack.PackSession:
        """A PackStream of which the caller brings the messages."""
        return pack.PackSession()

    def pack_stream(self, messages: Iterable[pb.PackStreamRequest]) -> Iterator[pb.PackStreamResponse]:
        """Packs sequences that arrive one by one: yields one response for every message."""
        session = self.pack_session()
        for message in messages:
            yield session.answer(message)


def _view(dataset: PreparedDataset, seed: int, epoch: int) -> EpochView:
    return EpochView(dataset.plan, dataset.pool, seed=seed, epoch=epoch, starts=dataset.starts)


def _locations(view: EpochView, stream: EpochStream | None, ids: NDArray[np.int64]) -> Iterator[pb.SequenceLocation]:
    """Where each id stands, one after the other; an id that was split has one for each piece."""
    found = view.locate(ids)
    for sequence_id, start, length, position, index in zip(
        found.ids.tolist(),
        found.starts.tolist(),
        found.lengths.tolist(),
        found.positions.tolist(),
        found.index_in_bin.tolist(),
        strict=True,
    ):
        location = pb.SequenceLocation(id=sequence_id, found=length >= 0)
        if length >= 0:
            location.length, location.position, location.index_in_bin = length, position, index
            location.start = start
            place = stream.place(position, index) if stream else None
            if place:
                location.place.CopyFrom(
                    pb.StreamPlace(step=place.step, rank=place.rank, worker=place.worker, slot=place.slot)
                )
        yield location


def _steps_per_block(dataset: PreparedDataset, batch_size: int) -> int:
    """How many steps fill a block on average, and certainly fit into a message."""
    sequences_per_bin = dataset.manifest.n_sequences / dataset.manifest.n_bins
    bytes_per_sequence = requests.bytes_per_sequence(dataset)
    average = requests.BYTES_PER_BIN + bytes_per_sequence * sequences_per_bin
    most = requests.most_bytes_per_bin(dataset)
    return max(1, min(int(BLOCK_BYTES / (average * batch_size)), requests.MAX_MESSAGE_BYTES // (most * batch_size)))


def _encode(bins: Bins, message: pb.Bins) -> None:
    """Fills in a message where it lies: handing one message to another's constructor would copy all of it, slowly."""
    message.ids = bins.ids.astype(bins.ids.dtype.newbyteorder("<"), copy=False).tobytes()
    message.lengths = bins.lengths.astype("<i4", copy=False).tobytes()
    message.bin_ends = bins.bin_ends.astype("<u4").tobytes()
    message.positions = bins.positions.astype("<i8", copy=False).tobytes()
    if bins.starts is not None:
        message.starts = bins.starts.astype("<i8").tobytes()


def _end_to_end(parts: list[Bins]) -> Bins:
    """Returns blocks of bins (at least one) as one."""
    first_sequence = np.cumsum([0, *(len(part.ids) for part in parts[:-1])])
    starts = [part.starts for part in parts if part.starts is not None]
    return Bins(
        ids=np.concatenate([part.ids for part in parts]),
        lengths=np.concatenate([part.lengths for part in parts]),
        bin_ends=np.concatenate([part.bin_ends + first for part, first in zip(parts, first_sequence, strict=True)]),
        positions=np.concatenate([part.positions for part in parts]),
        starts=np.concatenate(starts) if starts else None,
    )


def _describe(dataset: PreparedDataset) -> pb.Dataset:
    manifest = dataset.manifest
    return pb.Dataset(
        name=dataset.name,
        digest=manifest.digest,
        max_seq_len=manifest.max_seq_len,
        num_sequences=manifest.n_sequences,
        num_bins=manifest.n_bins,
        total_tokens=manifest.total_tokens,
        efficiency=manifest.efficiency,
        lower_bound=manifest.lower_bound,
        num_lengths=manifest.distinct_lengths,
        num_templates=manifest.distinct_templates,
        max_sequences_per_bin=dataset.plan.max_sequences_per_bin,
        id_type=_ID_TYPES[manifest.id_dtype],
        algorithm=manifest.algorithm,
        ids_sum_a=manifest.ids_sum_a,
        ids_sum_b=manifest.ids_sum_b,
        over_length=manifest.options.over_length,
        align=manifest.options.align,
        extra_tokens=manifest.options.extra_tokens,
        keep=manifest.options.keep,
        id_column=manifest.id_column or "",
        plan_cut_off=manifest.plan_cut_off,
    )
