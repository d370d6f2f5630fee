"""A StreamBins request: checked, its epoch cut for its topology, and the header that answers it.

Owns the way from a request to the steps of its stream. Leaves the check of each field to `requests`, and the blocks
that hold those steps to `open_stream`. The streams of one run share their topology and header, which are computed once,
because a thousand ranks open their streams at the same time.
"""

from dataclasses import dataclass

from packhorse.dataset import Takedown
from packhorse.epoch import Assignment, independent_seed
from packhorse.server.datasets.served import Datasets, Reader, Served
from packhorse.server.methods import requests
from packhorse.server.methods.components import components_of
from packhorse.server.methods.encoding import ID_TYPES, MAX_POSITION_SPREAD
from packhorse.server.methods.epochs import Epochs
from packhorse.topology import Skips, StreamMode, Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import HeaderChecksums

LONG_REQUEST_BYTES = 1 << 10
"""What is known of the run of a longer request is not kept: others choose what is in it."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Run:
    """What the streams of all ranks and workers share. It is kept, so it holds neither the dataset nor its bins."""

    skips: Skips
    topology: Topology
    num_whole_bins: int
    header: pb.StreamHeader
    """Without its checksum, which tells of the stream as well."""
    checksums: HeaderChecksums
    """Of the header, for every stream."""

    @classmethod
    def of(cls, request: pb.StreamBinsRequest, dataset: Served, takedown: Takedown, epochs: Epochs) -> "_Run":
        """Checks what a request says of its run; see `StreamRequest.of`."""
        requests.check_reads(dataset, takedown, request.wire_version)
        skips = requests.skips(request.skip).plus(takedown.skips_of(request.epoch, request.seed))
        num_whole_bins = epochs.whole(dataset, request.seed, request.epoch).num_bins
        begin = request.topology.start_position  # may be a cursor's in another dataset, which is then said first
        requests.check_digest(
            dataset, skips, request.expected_digest, epoch=request.epoch, begin=begin, takedown=takedown
        )
        source = epochs.source(dataset, request.seed, request.epoch, skips)
        topology = requests.topology(request.topology, source, request.epoch, dataset.manifest.n_sequences)
        requests.check_message_size("topology.batch_size", _batch_size(topology), dataset)
        seed, of_stream = _seed_and_topology(request, topology)
        manifest = dataset.manifest
        header = pb.StreamHeader(
            digest=requests.digest_of(dataset, skips, takedown),
            num_steps=of_stream.num_steps(source.num_bins),
            num_bins=source.num_bins,
            num_bins_dropped=of_stream.num_bins_dropped(source.num_bins),
            max_seq_len=manifest.options.max_seq_len,
            max_sequences_per_bin=dataset.max_sequences_per_bin,
            id_type=ID_TYPES[manifest.id_dtype],
            align=manifest.options.align,
            extra_tokens=manifest.options.extra_tokens,
            over_length=manifest.options.over_length,
            keep=manifest.options.keep,
            id_column=manifest.id_column or "",
            components=components_of(dataset, epochs.whole(dataset, seed, request.epoch)),
            skipped=[pb.PositionRange(first=first, end=end) for first, end in skips.within(num_whole_bins).ranges],
        )
        return cls(
            skips=skips,
            topology=topology,
            num_whole_bins=num_whole_bins,
            header=header,
            checksums=HeaderChecksums(request, header),
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StreamRequest:
    """A stream that may be made."""

    dataset: Served
    takedown: Takedown
    """What files take away of it."""
    skips: Skips
    """All that is left out, by the request and by files."""
    epoch: int
    run_seed: int | None
    """The run's; None where every stream has a seed of its own."""
    num_whole_bins: int
    """Bins of the epoch before anything is left out."""
    topology: Topology
    """How the epoch is divided, for this stream."""
    assignment: Assignment
    """Bins by step and rank. It is shared by streams of any number of workers, so its topology may have another one."""
    rank: int
    steps: range
    """The worker's, from where the stream begins."""
    reader: Reader
    """Where the stream stands; at first, where it begins."""
    header: pb.StreamHeader

    @classmethod
    def of(cls, request: pb.StreamBinsRequest, catalog: Datasets, epochs: Epochs) -> "StreamRequest":
        """Checks a request.

        Args:
            request: of the stream.
            catalog: the datasets.
            epochs: theirs.

        Raises:
            ServiceError: the request is refused.
        """
        dataset = catalog.get(request.dataset, requests.digest_of_dataset(request.expected_digest))
        takedown = catalog.takedown(dataset)
        run = _run_of(request, dataset, takedown, epochs)
        topology, skips, num_bins = run.topology, run.skips, run.header.num_bins
        rank, worker = _member(request, topology)
        first_step = requests.integer("first_step", request.first_step, 0)
        begin = _begin(topology, first_step, num_bins)
        requests.check_digest(
            dataset, skips, request.expected_digest, epoch=request.epoch, begin=begin, takedown=takedown
        )
        seed, of_stream = _seed_and_topology(request, topology)
        is_independent = of_stream is not topology
        if is_independent:
            rank = worker = 0
        header = pb.StreamHeader()
        header.CopyFrom(run.header)
        header.checksum = run.checksums.of(request.rank, request.worker)
        return cls(
            dataset=dataset,
            takedown=takedown,
            skips=skips,
            epoch=request.epoch,
            run_seed=None if is_independent else request.seed,
            num_whole_bins=run.num_whole_bins,
            topology=of_stream,
            assignment=epochs.assignment(dataset, seed, request.epoch, skips, of_stream),
            rank=rank,
            steps=of_stream.worker_steps(worker, num_bins, first_step=first_step),
            reader=Reader(dataset.name, request.epoch, request.seed, run.num_whole_bins, skips.to_whole(begin)),
            header=header,
        )

    @property
    def batch_size(self) -> int:
        """Bins of a step for each rank, at most."""
        return _batch_size(self.topology)

    @property
    def most_steps(self) -> int:
        """How many steps one block may have.

        Their positions lie within what a message tells apart, and their windows are arranged once.
        """
        stride = self.topology.step_stride
        most = MAX_POSITION_SPREAD // (stride * self.topology.bins_per_optimizer_step)
        if self.assignment.most_steps is not None:
            most = min(most, self.assignment.most_steps // stride)
        return max(1, most)

    def end_of(self, step: int) -> int:
        """One behind the last position that a step may take bins of: those of its window may be exchanged."""
        topology, num_bins = self.topology, self.header.num_bins
        end = topology.position_after(step, num_bins)
        if topology.steps_into_optimizer_step(step, num_bins):
            end += topology.bins_per_optimizer_step
        return min(end, num_bins)


def _run_of(request: pb.StreamBinsRequest, dataset: Served, takedown: Takedown, epochs: Epochs) -> _Run:
    """Returns the run of a request: what is kept of it, unless every stream has an epoch of its own."""

    def make() -> _Run:
        return _Run.of(request, dataset, takedown, epochs)

    shared = pb.StreamBinsRequest()
    shared.CopyFrom(request)
    for field in ("rank", "worker", "first_step", "expected_digest"):
        shared.ClearField(field)
    data = shared.SerializeToString()
    is_kept = request.topology.mode != pb.STREAM_MODE_INDEPENDENT and len(data) <= LONG_REQUEST_BYTES
    return epochs.run(dataset, (takedown, data), make) if is_kept else make()


def _member(request: pb.StreamBinsRequest, topology: Topology) -> tuple[int, int]:
    """Returns rank and worker; a ServiceError names the one that the topology has not."""
    rank = requests.integer("rank", request.rank, 0, topology.world_size - 1)
    return rank, requests.integer("worker", request.worker, 0, topology.workers_per_rank - 1)


def _begin(topology: Topology, first_step: int, num_bins: int) -> int:
    """Returns the position from which on a stream may differ from the one that was open before."""
    if first_step == 0:
        return topology.start_position
    begin = topology.position_after(first_step - 1, num_bins)
    if topology.steps_into_optimizer_step(first_step - 1, num_bins):
        # Bins of the window were consumed: all of it must be as it was.
        begin += topology.steps_per_optimizer_step * topology.stretch_of(first_step).bins_per_step
    return begin


def _seed_and_topology(request: pb.StreamBinsRequest, topology: Topology) -> tuple[int, Topology]:
    """Returns what a stream's bins are made of: a seed and a topology of its own where it has its epoch to itself."""
    if topology.mode is not StreamMode.INDEPENDENT:
        return request.seed, topology
    return independent_seed(request.seed, *_member(request, topology)), topology.of_one_stream()


def _batch_size(topology: Topology) -> int:
    return max(stretch.batch_size for stretch in topology.stretches)
