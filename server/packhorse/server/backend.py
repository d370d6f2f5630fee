"""The service without a transport: protocol messages in, protocol messages out.

Owns what every method does, for gRPC and for embedded clients alike, which is why both give the same bytes. Long work
is cut into pieces (`…_in_pieces`). Leaves statuses, threads and memory to the servicer.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from packhorse.dataset import MixtureDataset, Takedown
from packhorse.epoch import Bins, Share, joined, shared_by
from packhorse.server import pack, requests
from packhorse.server.asked_stream import AskedStream
from packhorse.server.components import components_of, stages_of, takedown_message
from packhorse.server.encoding import ID_TYPES, SentTemplates, as_declared, encode
from packhorse.server.epochs import Epochs
from packhorse.server.faults import ServiceError
from packhorse.server.locate import locate_in_pieces
from packhorse.server.pack_session import PackSession
from packhorse.server.pieces import Pace, Pieces, finish
from packhorse.server.reached import Reached
from packhorse.server.served import Datasets, Served
from packhorse.topology import Skips, Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import block_context, get_bins_context, stream_positions

BLOCK_BYTES = 1 << 20
"""What later blocks of a stream grow to, where few streams are open."""

LEAST_BLOCK_BYTES = 16 << 10
"""The same where very many are."""

STREAMS_BYTES = 16 << 20
"""What the blocks of all streams take together, one of each. A stream holds some four times its block: as a message, as
bytes on their way, twice, and the next one."""

GROWTH = 4
"""A block has so many times the steps of the one before, until it is large enough."""

BLOCK_SECONDS = 30.0
"""A block has no more steps than its reader takes in so long: what is handed out, another stage or takedown comes too
late for."""

_COPIES = 3
"""An answer is held so often while it is made: in arrays, in the message and in the bytes that are sent."""


class Backend:
    """Answers every request from the catalog's datasets; keeps nothing between requests but caches.

    Args:
        catalog: the datasets.
        saw_run: told of every stream's dataset and topology.
        num_streams: how many are open now, the one that asks included.
        share: does pieces of work on large blocks.
        reached: how far runs have come; None where nobody shares it.
    """

    def __init__(
        self,
        catalog: Datasets,
        *,
        saw_run: Callable[[Served, Topology], None] = lambda _served, _topology: None,
        num_streams: Callable[[], int] = lambda: 1,
        share: Share | None = None,
        reached: Reached | None = None,
    ) -> None:
        self._catalog = catalog
        self._epochs = Epochs()
        self._saw_run = saw_run
        self._num_streams = num_streams
        self._sharing = nullcontext if share is None else partial(shared_by, share)
        self._reached = reached or Reached()

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

    def stream_bins(self, request: pb.StreamBinsRequest) -> Iterator[pb.StreamBinsResponse]:
        """Yields the header, then blocks: the first of one step, later ones as `block_bytes` and `next_steps` say."""
        asked = AskedStream.of(request, self._catalog, self._epochs)
        dataset, steps, header = asked.dataset, asked.steps, asked.header
        self._saw_run(dataset, asked.topology)
        yield pb.StreamBinsResponse(header=header)
        self._catalog.follow(asked.reader)
        sent = SentTemplates()
        taken, at_once = 0, 1
        while taken < len(steps):
            block = steps[taken : taken + at_once]
            end = asked.end_of(block[-1])
            self._note(dataset, asked.skips, asked.epoch, end)
            asked.reader.position = asked.skips.to_whole(end - 1) + 1
            if not self._is_current(dataset, asked.takedown):
                return
            message = pb.StreamBinsResponse()
            self._fill(message.block, asked, block, sent)
            made = time.monotonic()
            yield message
            taken += len(block)
            most = _steps_per_block(dataset, asked.batch_size, self._num_streams())
            at_once = min(next_steps(at_once, time.monotonic() - made), asked.most_steps, most)

    def _fill(self, block: pb.StreamBlock, asked: AskedStream, steps: range, sent: SentTemplates) -> None:
        """Fills in a block of a stream's steps."""
        with self._sharing():
            bins = as_declared(asked.assignment.bins(steps, asked.rank), asked.dataset.manifest)
        self._catalog.confirm(asked.dataset, _components_in(bins))
        block.first_step, block.num_steps = steps.start, len(steps)
        block.num_sequences, block.num_tokens = len(bins.ids), bins.num_tokens()
        context = block_context(asked.header.checksum, block)
        positions = stream_positions(asked.topology, asked.rank, steps.start, len(bins))
        redacted = asked.takedown.redacted(
            bins, epoch=asked.epoch, seed=asked.run_seed, num_bins=asked.num_whole_bins, skips=asked.skips
        )
        encode(bins, block.bins, context, sent, positions, redacted)

    def _is_current(self, dataset: Served, takedown: Takedown) -> bool:
        """Whether a stream goes on; where something changed by file, it ends, and is opened again where it stands."""
        return self._catalog.is_current(dataset) and self._catalog.takedown(dataset, goes_on=True) is takedown

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
        self._catalog.confirm(dataset, _components_in(bins))
        self._note(dataset, skips, request.epoch, end)
        digest = requests.digest_of(dataset, skips, takedown)
        response = pb.GetBinsResponse(digest=digest, id_type=ID_TYPES[dataset.manifest.id_dtype])
        context = get_bins_context(request, response.digest, response.id_type)
        num_bins = self._epochs.whole(dataset, request.seed, request.epoch).num_bins
        redacted = takedown.redacted(bins, epoch=request.epoch, seed=request.seed, num_bins=num_bins, skips=skips)
        encode(bins, response.bins, context, SentTemplates(), positions, redacted)
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
        """Appends a stage to a mixture, unless bins behind its beginning have been handed out."""
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

        self._catalog.append_stage(request.dataset, requests.stage(request), request.from_position, check)
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


def _components_in(bins: Bins) -> list[int]:
    """Which of a mixture's components bins are of; none where there is one dataset."""
    return [] if bins.dataset_ids is None else np.flatnonzero(np.bincount(bins.dataset_ids + 1)[1:]).tolist()


def block_bytes(num_streams: int) -> int:
    """Returns what a stream's blocks grow to while so many streams are open.

    Example:
        >>> [block_bytes(num_streams) >> 10 for num_streams in (1, 100, 1000, 4000)]
        [1024, 163, 16, 16]
    """
    return min(BLOCK_BYTES, max(LEAST_BLOCK_BYTES, STREAMS_BYTES // max(1, num_streams)))


def next_steps(num_steps: int, seconds: float) -> int:
    """Returns how many steps a stream's next block may have.

    Example:
        >>> next_steps(64, 0.5), next_steps(64, 20.0), next_steps(64, 240.0)  # trainers that take ever longer
        (256, 96, 8)

    Args:
        num_steps: of the block before.
        seconds: after which the next one was asked for.
    """
    return max(1, int(num_steps * min(GROWTH, BLOCK_SECONDS / max(seconds, 1e-9))))


def _steps_per_block(dataset: Served, batch_size: int, num_streams: int) -> int:
    """How many steps fill a block on average, and certainly fit into a message."""
    average = requests.average_bytes_per_bin(dataset) * batch_size
    most = requests.most_bytes_per_bin(dataset) * batch_size
    return max(1, min(int(block_bytes(num_streams) / average), requests.MAX_MESSAGE_BYTES // most))


@cache
def installed_version() -> str:
    """Returns this packhorse's version; empty in a source tree that is not installed."""
    try:
        return version("packhorse")
    except PackageNotFoundError:
        return ""


def _describe(dataset: Served) -> pb.Dataset:
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
        max_sequences_per_bin=dataset.max_sequences_per_bin,
        id_type=ID_TYPES[manifest.id_dtype],
        algorithm=manifest.algorithm,
        ids_sum_a=manifest.ids_sum_a,
        ids_sum_b=manifest.ids_sum_b,
        over_length=manifest.options.over_length,
        align=manifest.options.align,
        extra_tokens=manifest.options.extra_tokens,
        keep=manifest.options.keep,
        id_column=manifest.id_column or "",
        plan_cut_off=manifest.plan_cut_off,
        own_tokens=manifest.own_tokens,
        over_length_sequences=manifest.over_length.sequences,
        over_length_source_tokens=manifest.over_length.source_tokens,
        over_length_tokens=manifest.over_length.tokens,
        source=manifest.source,
        skipped_rows=0 if manifest.inputs is None else manifest.inputs.skipped.rows,
        num_groups=manifest.groups.n_groups if manifest.groups else 0,
        components=components_of(dataset),
        stages=stages_of(dataset),
    )
