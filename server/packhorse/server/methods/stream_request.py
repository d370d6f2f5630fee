"""A StreamBins request: checked, its epoch divided by its topology, and the header that answers it.

Owns the way from a request to the steps of its stream, and what the streams of a run share. Leaves the check of each
field to `requests`, caches to `epochs`, and the blocks of those steps to `open_stream`.
"""

from dataclasses import dataclass
from typing import Any

from packhorse.dataset import MixtureDataset, Takedown
from packhorse.epoch import Assignment, independent_seed
from packhorse.server.base.faults import ServiceError
from packhorse.server.datasets.protocols import Dataset, Datasets
from packhorse.server.datasets.stream_progress import StreamProgress
from packhorse.server.methods import asked_dataset, requests, sizes, versions
from packhorse.server.methods.dataset_messages import ID_TYPES, components_of, context_rule_of
from packhorse.server.methods.epochs import Epochs
from packhorse.server.methods.messages import MAX_POSITION_SPREAD
from packhorse.topology import Skips, StreamMode, Topology
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import HeaderChecksums

LONG_REQUEST_BYTES = 1 << 10
"""Size of a request above which nothing of its run is cached, because strangers choose what is in it."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Run:
    """What the streams of all ranks and workers share. It is cached, so it contains neither the dataset nor bins."""

    skips: Skips
    """All skipped positions, of the request and of files."""
    seed: int
    """Seed of the epoch: the run's, or the stream's own if streams are independent."""
    topology: Topology
    """Topology of the request."""
    divided_by: Topology
    """Topology by which the epoch is divided: the request's, or that of a single stream if streams are independent,
    each with an epoch of its own. Such a run is not cached."""
    num_whole_bins: int
    """Bins of the epoch before any are skipped."""
    header: pb.StreamHeader
    """Header without its checksum, which covers rank and worker too."""
    checksums: HeaderChecksums
    """Checksums of the header, for every stream."""

    @classmethod
    def of(cls, request: pb.StreamBinsRequest, dataset: Dataset, takedown: Takedown, epochs: Epochs) -> "_Run":
        """Checks the fields of a request that its run shares; see `StreamRequest.of`."""
        versions.check_reads(dataset, takedown, request.wire_version)
        skips = asked_dataset.skips_of(request.skip).plus(takedown.skips_of(request.epoch, request.seed))
        num_whole_bins = epochs.whole(dataset, request.seed, request.epoch).num_bins
        source = epochs.source(dataset, request.seed, request.epoch, skips)
        try:
            topology = requests.topology(request.topology, source, request.epoch, dataset.manifest.num_sequences)
        except ServiceError:  # if the cursor is of another dataset, the error that says so is better
            start = request.topology.start_position
            asked_dataset.check_digest(
                dataset, skips, request.expected_digest, epoch=request.epoch, before=start, takedown=takedown
            )
            raise
        batch_size = _batch_size(topology)
        field = "topology.batch_size" if topology.batch_schedule is None else "topology.batch_schedule"
        sizes.check_message_size(field, batch_size, dataset, with_tokens=request.with_tokens)
        seed, divided_by = request.seed, topology
        if topology.mode is StreamMode.INDEPENDENT:
            seed, divided_by = independent_seed(seed, *_rank_and_worker(request, topology)), topology.of_one_stream()
        manifest = dataset.manifest
        header = pb.StreamHeader(
            digest=asked_dataset.digest_of(dataset, skips, takedown),
            num_steps=divided_by.num_steps(source.num_bins),
            num_bins=source.num_bins,
            num_bins_dropped=divided_by.num_bins_dropped(source.num_bins),
            max_seq_len=manifest.options.max_seq_len,
            max_sequences_per_bin=dataset.max_sequences_per_bin,
            id_type=ID_TYPES[manifest.id_dtype],
            align=manifest.options.align,
            extra_tokens=manifest.options.extra_tokens,
            over_length=manifest.options.over_length,
            keep=manifest.options.keep,
            id_column=manifest.id_column or "",
            components=components_of(dataset, epochs.whole(dataset, seed, request.epoch)),
            context_rule=context_rule_of(manifest),
            shares_prefixes=manifest.shares_prefixes,
            **_token_fields(dataset),
            skipped=[pb.PositionRange(first=first, end=end) for first, end in skips.within(num_whole_bins).ranges],
        )
        return cls(
            skips=skips,
            seed=seed,
            topology=topology,
            divided_by=divided_by,
            num_whole_bins=num_whole_bins,
            header=header,
            checksums=HeaderChecksums(request, header),
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StreamRequest:
    """A checked request, with all that its stream needs."""

    dataset: Dataset
    takedown: Takedown
    """What files take away from the dataset."""
    skips: Skips
    """All skipped positions, of the request and of files."""
    epoch: int
    run_seed: int | None
    """Seed of the run; None if every stream has a seed of its own."""
    num_whole_bins: int
    """Bins of the epoch before any are skipped."""
    topology: Topology
    """How the epoch is divided, for this stream."""
    assignment: Assignment
    """Bins by step and rank. All streams of a run share it, so the number of workers in its topology is always 1."""
    rank: int
    steps: range
    """Steps of the stream's worker, from the one at which the stream begins."""
    progress: StreamProgress
    """How far the stream has come; at first, where it begins."""
    header: pb.StreamHeader
    with_tokens: bool
    """Whether blocks bring the tokens of their bins."""

    @classmethod
    def of(cls, request: pb.StreamBinsRequest, catalog: Datasets, epochs: Epochs) -> "StreamRequest":
        """Checks a request; raises a ServiceError if it is refused."""
        dataset = asked_dataset.get_dataset(catalog, request.dataset, request.dataset_digest, request.expected_digest)
        takedown = catalog.takedown(dataset)
        run = _run_of(request, dataset, takedown, epochs)
        topology, skips, num_bins = run.topology, run.skips, run.header.num_bins
        rank, worker = _rank_and_worker(request, topology)
        first_step = requests.integer("first_step", request.first_step, 0)
        begin = _end_of_read(topology, first_step, num_bins)
        asked_dataset.check_digest(
            dataset, skips, request.expected_digest, epoch=request.epoch, before=begin, takedown=takedown
        )
        divided_by = run.divided_by
        is_independent = topology.mode is StreamMode.INDEPENDENT
        if is_independent:
            rank = worker = 0  # of `divided_by`, which has this stream only
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
            topology=divided_by,
            assignment=epochs.assignment(dataset, run.seed, request.epoch, skips, divided_by),
            rank=rank,
            steps=divided_by.worker_steps(worker, num_bins, first_step=first_step),
            progress=StreamProgress(
                dataset.name, request.epoch, request.seed, run.num_whole_bins, skips.to_whole(begin)
            ),
            header=header,
            with_tokens=request.with_tokens,
        )

    @property
    def batch_size(self) -> int:
        """Bins of a step for each rank, at most."""
        return _batch_size(self.topology)

    @property
    def most_steps(self) -> int:
        """Most steps of a block: offsets of 32 bits reach its positions, and optimizer steps are arranged only once."""
        stride = self.topology.step_stride
        most = MAX_POSITION_SPREAD // (stride * self.topology.bins_per_optimizer_step)
        if self.assignment.most_steps is not None:
            most = min(most, self.assignment.most_steps // stride)
        return max(1, most)

    def end_of(self, step: int) -> int:
        """Returns an end, exclusive, of the positions that a step may take.

        Inside an optimizer step it is at or after that step's end, because a balance exchanges bins within it.
        """
        topology, num_bins = self.topology, self.header.num_bins
        end = topology.position_after(step, num_bins)
        if topology.steps_into_optimizer_step(step, num_bins):
            end += topology.bins_per_optimizer_step
        return min(end, num_bins)


def _run_of(request: pb.StreamBinsRequest, dataset: Dataset, takedown: Takedown, epochs: Epochs) -> _Run:
    """Returns the run of a request; from the cache, unless streams are independent or the request is long."""
    shared = pb.StreamBinsRequest()
    shared.CopyFrom(request)
    for field in ("rank", "worker", "first_step", "expected_digest", "dataset_digest", "run_id"):
        shared.ClearField(field)
    data = shared.SerializeToString()
    if request.topology.mode == pb.STREAM_MODE_INDEPENDENT or len(data) > LONG_REQUEST_BYTES:
        return _Run.of(request, dataset, takedown, epochs)
    return epochs.run(dataset, takedown, data, lambda: _Run.of(request, dataset, takedown, epochs))


def _rank_and_worker(request: pb.StreamBinsRequest, topology: Topology) -> tuple[int, int]:
    """Returns rank and worker; raises a ServiceError if the topology does not have them."""
    rank = requests.integer("rank", request.rank, 0, topology.world_size - 1)
    return rank, requests.integer("worker", request.worker, 0, topology.workers_per_rank - 1)


def _end_of_read(topology: Topology, first_step: int, num_bins: int) -> int:
    """Returns the end, exclusive, of what the run has read before a step: the dataset may differ from there on only."""
    if first_step == 0:
        return topology.start_position
    end = topology.position_after(first_step - 1, num_bins)
    if topology.steps_into_optimizer_step(first_step - 1, num_bins):
        # Some bins of this optimizer step were trained on, so all of it must be as it was.
        end += topology.steps_per_optimizer_step * topology.stretch_of(first_step).bins_per_step
    return end


def _batch_size(topology: Topology) -> int:
    """Returns the largest batch size of a topology's schedule."""
    return max(stretch.batch_size for stretch in topology.stretches)


def _token_fields(dataset: Dataset) -> dict[str, Any]:
    """Returns the header's fields about the tokens that a dataset was prepared from; empty if these are unknown."""
    inputs = None if isinstance(dataset, MixtureDataset) else dataset.manifest.inputs
    if inputs is None or inputs.tokens is None:
        return {}
    return {"tokens_fingerprint": inputs.tokens.fingerprint, "tokens_sequences": inputs.rows}
