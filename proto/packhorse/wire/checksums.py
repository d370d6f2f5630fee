"""Checksums of headers and locations, and the seeds of all checksums, which are hashes of requests.

The server hashes the request that it received, the client the one that it sent. So a checksum also reveals a *request*
that was altered on the way. Owns which fields are hashed, and in which order. Leaves arrays of bins to
`bins_checksums`, and sets of ids to `id_sums`.
"""

import struct
from array import array
from collections.abc import Iterable

import xxhash

from packhorse.v1 import packing_pb2 as pb

_LOCATION = struct.Struct("<q?qqqq?qiii")
"""A SequenceLocation without its two texts, little-endian, in the order of `LocationsChecksum.add`."""


def header_checksum(request: pb.StreamBinsRequest, header: pb.StreamHeader) -> int:
    """Returns the checksum of a stream's header, seeded with its request; in [0, 2^64).

    The request's `first_step` and `expected_digest` are left out, because they change when a stream is reopened.

    Example:
        >>> request, header = pb.StreamBinsRequest(dataset="corpus", epoch=1), pb.StreamHeader(digest="d")
        >>> sent = header_checksum(request, header)
        >>> request.epoch = 2
        >>> sent == header_checksum(request, header)
        False
    """
    return HeaderChecksums(request, header).of(request.rank, request.worker)


class HeaderChecksums:
    """The header checksums of all streams of a run, which differ only by rank and worker.

    Example:
        >>> request, header = pb.StreamBinsRequest(dataset="corpus", rank=3), pb.StreamHeader(digest="d")
        >>> HeaderChecksums(request, header).of(rank=3, worker=0) == header_checksum(request, header)
        True

    Args:
        request: the request for any stream of the run.
        header: the header of any stream of the run.
    """

    def __init__(self, request: pb.StreamBinsRequest, header: pb.StreamHeader) -> None:
        # The texts before and after the rank and the worker, which `of` puts between them.
        self._before = _lines((request.dataset, request.epoch, request.seed, *_topology_fields(request.topology)))
        self._after = _lines(
            (
                _ranges_text(request.skip),
                header.digest,
                header.num_steps,
                header.num_bins,
                header.num_bins_dropped,
                header.max_seq_len,
                header.max_sequences_per_bin,
                header.id_type,
                header.align,
                header.extra_tokens,
                header.over_length,
                header.keep,
                header.id_column,
                # Later fields are hashed only if they are set, so that other headers keep their checksum.
                *(field for component in header.components for field in _component_fields(component)),
                *([_ranges_text(header.skipped)] if header.skipped else []),
                *(_context_rule_fields(header.context_rule) if header.HasField("context_rule") else []),
                *([int(header.shares_prefixes)] if header.shares_prefixes else []),
            )
        )

    def of(self, rank: int, worker: int) -> int:
        """Returns the checksum of one stream's header, in [0, 2^64)."""
        return _hash((self._before, rank, worker, self._after))


def block_context(checksum_of_header: int, block: pb.StreamBlock) -> int:
    """Returns the `context` with which `bins_checksum` is seeded for a block of a stream.

    It covers the stream, the block's steps, and the number of sequences and tokens in them.

    Example:
        >>> one, other = pb.StreamBlock(first_step=0, num_steps=2), pb.StreamBlock(first_step=2, num_steps=2)
        >>> block_context(5, one) == block_context(5, other)
        False

    Args:
        checksum_of_header: checksum of the stream's header.
        block: the block; its bins may be unset.
    """
    return _hash((checksum_of_header, block.first_step, block.num_steps, block.num_sequences, block.num_tokens))


def get_bins_context(request: pb.GetBinsRequest, digest: str, id_type: int) -> int:
    """Returns the `context` with which `bins_checksum` is seeded for a response to GetBins.

    Example:
        >>> one, other = pb.GetBinsRequest(positions=[1, 2]), pb.GetBinsRequest(positions=[2, 1])
        >>> get_bins_context(one, "d", 1) == get_bins_context(other, "d", 1)
        False
    """
    positions = _hash_of_numbers(request.positions)
    whole = ["whole"] if request.is_whole else []  # so that other responses keep the checksum of earlier releases
    return _hash(
        (request.dataset, request.epoch, request.seed, positions, _ranges_text(request.skip), digest, id_type, *whole)
    )


class LocationsChecksum:
    """The checksum of a LocateSequences response, seeded with its request. Locations are added one by one, in order.

    The request's `expected_digest` is left out, because the response does not depend on it.

    Example:
        >>> location = pb.SequenceLocation(id=7, found=True, position=3)
        >>> one = LocationsChecksum(pb.LocateSequencesRequest(dataset="corpus", epoch=1, ids=[7]), "d")
        >>> other = LocationsChecksum(pb.LocateSequencesRequest(dataset="corpus", epoch=2, ids=[7]), "d")
        >>> one.add(location), other.add(location)
        (None, None)
        >>> one.value == other.value
        False

    Args:
        request: the request.
        digest: the digest in the response.
    """

    def __init__(self, request: pb.LocateSequencesRequest, digest: str) -> None:
        # Keys are hashed only if they are requested, so that other responses keep the checksum of earlier releases.
        keys: tuple[str | int, ...] = ()
        if request.with_keys or request.keys:
            keys = (request.with_keys, *request.keys)
        fields: tuple[str | int, ...] = (
            request.dataset,
            request.epoch,
            request.seed,
            _hash_of_numbers(request.ids),
            request.HasField("topology"),
            *_topology_fields(request.topology),
            _ranges_text(request.skip),
            digest,
            *keys,
        )
        self._state = xxhash.xxh3_64(seed=_hash(fields))

    def add(self, location: pb.SequenceLocation) -> None:
        """Adds the next location."""
        streamed = location.stream_location
        self._state.update(
            _LOCATION.pack(
                location.id,
                location.found,
                location.length,
                location.position,
                location.index_in_bin,
                location.first_token,
                location.HasField("stream_location"),
                streamed.step,
                streamed.rank,
                streamed.worker,
                streamed.slot,
            )
            + location.component.encode()
            + location.key.encode()
        )

    @property
    def value(self) -> int:
        """The checksum of all locations added so far, in [0, 2^64)."""
        return int(self._state.intdigest())


def _component_fields(component: pb.Component) -> tuple[str | int, ...]:
    """Returns the fields of a component that are hashed, in their order."""
    return (
        component.name,
        component.digest,
        component.max_seq_len,
        component.num_bins,
        component.num_sequences,
        component.own_tokens,
        component.over_length,
        component.keep,
        component.id_column,
        component.first_epoch,
        component.first_position,
        component.num_taken,
        *([component.rows_per_bin] if component.rows_per_bin else []),
    )


def _context_rule_fields(rule: pb.ContextRule) -> tuple[int, ...]:
    return (rule.tokens_per_rank, rule.max_context_parallel, rule.cost_cap_percent, rule.cost_linear)


def _topology_fields(topology: pb.Topology) -> tuple[str | int, ...]:
    """Returns the fields of a topology that are hashed, in their order."""
    return (
        topology.world_size,
        topology.workers_per_rank,
        topology.batch_size,
        topology.start_position,
        topology.remainder,
        topology.mode,
        topology.balance,
        topology.accumulation,
        topology.cost_linear,
        *(_phase_text(phase) for phase in topology.batch_schedule),
    )


def _phase_text(phase: pb.BatchPhase) -> str:
    return f"{phase.WhichOneof('begin')}:{phase.bins}:{phase.tokens}:{phase.global_batch_size}"


def _hash_of_numbers(numbers: Iterable[int]) -> int:
    """Returns the hash of integers of 64 bits."""
    return int(xxhash.xxh3_64_intdigest(array("q", numbers).tobytes()))


def _ranges_text(ranges: Iterable[pb.PositionRange]) -> str:
    return ",".join(f"{each.first}:{each.end}" for each in ranges)


def _hash(fields: Iterable[str | int]) -> int:
    """Returns the hash of fields, written as text with one field on each line."""
    return int(xxhash.xxh3_64_intdigest(_lines(fields).encode()))


def _lines(fields: Iterable[str | int]) -> str:
    return "\n".join(map(str, fields))
