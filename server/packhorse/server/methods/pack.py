"""Packing without a dataset, lengths at once (PackSequences).

Owns the checks and limits of the method and its answer; leaves the packing to `packhorse.packing`, which rank a bin
belongs to, to `bins_of_ranks`, and threads and draining to the servicer.

Legend: S sequences, N bins.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.packing import (
    LIST_ONLY,
    MAX_SEQ_LEN,
    PackedSequences,
    checked_lengths,
    laid_end_to_end,
    lower_bound,
    rooms_of_lengths,
    split_to_multiple,
)
from packhorse.packing import pack_sequences as pack_lengths
from packhorse.server.base.faults import ServiceError, invalid_field, too_large
from packhorse.server.base.pieces import Pieces, finish
from packhorse.server.methods import requests
from packhorse.server.methods.bins_of_ranks import check_costs, order_of_bins, ranks_of
from packhorse.topology import RoomRule
from packhorse.v1 import packing_pb2 as pb


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """Items of a request. Legend: S sequences, M items."""

    rooms: NDArray[np.int64]
    """Tokens that each takes, all its sequences together: int64 [M]."""
    separate_by: NDArray[np.int64]
    """Each item's number, items with different ones share no bin: int64 [M]; [0] where all may."""
    sequences: NDArray[np.int64]
    """Sequences of the items, item after item, each item's in the request's order: int64 [S]."""
    ends: NDArray[np.int64]
    """Where each item ends in `sequences`: int64 [M]."""

    @classmethod
    def of(cls, request: pb.PackSequencesRequest, rooms: NDArray[np.int64]) -> "Items":
        """Makes items of a request's sequences.

        Args:
            request: its `groups` and `separate_by` count.
            rooms: of every sequence: int64 [S].

        Raises:
            ServiceError: there are not as many numbers as sequences, a group does not fit a bin, is of several kinds,
                or the number of sequences in a bin is limited.
        """
        kinds = _numbers("separate_by", request.separate_by, len(rooms))
        groups = _numbers("groups", request.groups, len(rooms))
        every = np.arange(len(rooms))
        if not len(groups):
            return cls(rooms, kinds, every, every + 1)
        if request.max_sequences_per_bin:
            raise invalid_field(
                "max_sequences_per_bin",
                "max_sequences_per_bin does not go with groups: leave it 0",
            )
        order = np.argsort(groups, kind="stable")
        starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
        of_groups = np.add.reduceat(rooms[order], starts)
        if (of_groups > request.max_seq_len).any():
            at = int(np.argmax(of_groups > request.max_seq_len))
            raise invalid_field(
                "groups",
                f"groups: group {groups[order][starts[at]]} takes {of_groups[at]} tokens together, over max_seq_len "
                f"{request.max_seq_len}: raise it, or leave out sequences of the group",
            )
        of_items = kinds[order][starts] if len(kinds) else kinds
        ends = np.append(starts[1:], len(order))
        if len(kinds) and (np.repeat(of_items, ends - starts) != kinds[order]).any():
            at = int(np.argmax(np.repeat(of_items, ends - starts) != kinds[order]))
            raise invalid_field(
                "separate_by",
                f"separate_by has several numbers for group {groups[order][at]}, whose sequences share a bin",
            )
        return cls(of_groups, of_items, order, ends)

    def members(
        self, items: NDArray[np.int64], bin_ends: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the sequences of bins of items, and where each bin ends among them.

        Args:
            items: of all bins, end to end: int64 [M].
            bin_ends: exclusive end of every bin among them: int64 [N].
        """
        sizes = np.diff(self.ends, prepend=0)[items]
        ends = np.concatenate(([0], np.cumsum(sizes)))
        sequences = self.sequences[np.repeat(self.ends[items] - ends[1:], sizes) + np.arange(int(ends[-1]))]
        return sequences, ends[bin_ends]


def _numbers(field: str, given: object, num_sequences: int) -> NDArray[np.int64]:
    """Returns a field's numbers, one for each sequence, or none at all."""
    numbers = np.array(given, dtype=np.int64)
    if len(numbers) not in (0, num_sequences):
        raise invalid_field(field, f"{field} holds {len(numbers)} numbers for {num_sequences} lengths")
    return numbers


MAX_PACK_SEQUENCES = 1_000_000
"""Sequences in one PackSequences."""

MAX_PACK_LENGTHS = 1 << 17
"""Distinct lengths in one PackSequences: packers that plan by length take time and memory for each, a second or two and
some 100 MB together. Those that go through the sequences in their order have no such limit."""

MAX_KINDS = 1 << 10
"""Distinct numbers in `separate_by`: each is packed by itself, in a millisecond or more."""

SEARCHING = frozenset({"auto", "optimal"})
"""Packers that go on improving their bins until MAX_PACK_SECONDS are over."""

MAX_PACK_SECONDS = 10.0
"""How long a packer that improves its bins may go on: clients wait two minutes for an answer."""

BYTES_PER_LENGTH = 160
"""What packing a length takes, at most."""


def pack_sequences(request: pb.PackSequencesRequest) -> pb.PackSequencesResponse:
    """Packs the given lengths at once."""
    return finish(pack_in_pieces(request))


def pack_in_pieces(request: pb.PackSequencesRequest) -> Pieces[pb.PackSequencesResponse]:
    """As `pack_sequences`; yields before each kind of sequences that is packed by itself."""
    if len(request.lengths) > MAX_PACK_SEQUENCES:
        raise too_large(
            "lengths", MAX_PACK_SEQUENCES, f"lengths holds {len(request.lengths)}; send at most {MAX_PACK_SEQUENCES}"
        )
    num_bytes = BYTES_PER_LENGTH * len(request.lengths)
    yield num_bytes
    capacity = requests.integer("max_seq_len", request.max_seq_len, 1, MAX_SEQ_LEN)
    limit = requests.integer("max_sequences_per_bin", request.max_sequences_per_bin, 0) or None
    align = requests.integer("align", request.align, 0, capacity) or 1
    extra = requests.integer("extra_tokens", request.extra_tokens, 0, capacity - 1)
    ranks = ranks_of(request)
    try:
        lengths = checked_lengths(np.array(request.lengths, dtype=np.int64), capacity)
        rooms = rooms_of_lengths(lengths, RoomRule(capacity, align, extra))  # int64 [S]
    except ValueError as error:
        raise invalid_field("lengths", str(error)) from None
    check_costs(ranks, int(lengths.sum()), int(lengths.max(initial=0)))
    algorithm = request.algorithm or "best-fit"
    items = Items.of(request, rooms)
    rooms = items.rooms
    kinds = _kinds(items)
    num_lengths = sum(len(kind.counts) for kind in kinds)
    if num_lengths > MAX_PACK_LENGTHS and algorithm not in LIST_ONLY:
        raise too_large(
            "lengths",
            MAX_PACK_LENGTHS,
            f"lengths holds {num_lengths} distinct ones; {algorithm!r} takes at most {MAX_PACK_LENGTHS}: send "
            "fewer, or choose the algorithm 'random-order' or 'next-fit'",
        )
    parts = []
    for kind in kinds:
        parts.append(_packed(request, algorithm, rooms[kind.members], capacity, limit, MAX_PACK_SECONDS / len(kinds)))
        yield num_bytes
    sizes = np.concatenate([np.diff(part.bin_ends, prepend=0) for part in parts])
    indices = np.concatenate([kind.members[part.indices] for kind, part in zip(kinds, parts, strict=True)])
    try:
        indices, ends = split_to_multiple(
            indices, np.cumsum(sizes), rooms, ranks.world_size, allow_empty=request.allow_empty
        )
    except ValueError as error:
        raise invalid_field("num_bins_multiple_of", f"num_bins_multiple_of: {error}") from None
    indices, ends = items.members(indices, ends)
    order = order_of_bins(lengths[indices], ends, ranks)
    sizes = np.diff(ends, prepend=0)
    indices, ends = laid_end_to_end(indices, (ends - sizes)[order], sizes[order])
    return pb.PackSequencesResponse(
        indices=indices.astype("<u4").tobytes(),
        bin_ends=ends.astype("<u4").tobytes(),
        lower_bound=sum(lower_bound(kind.counts, capacity, max_sequences_per_bin=limit) for kind in kinds),
        algorithm=",".join(sorted({part.algorithm for part in parts})),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Kind:
    """Items that may share bins."""

    members: NDArray[np.int64]
    """Their indices, ascending: int64 [n]."""
    counts: dict[int, int]
    """Room in tokens → how many have it."""


def _kinds(items: Items) -> list[_Kind]:
    """Sorts items by `separate_by`; all are of one kind where it is empty."""
    rooms, numbers = items.rooms, items.separate_by
    kinds_of_items = [np.arange(len(rooms))]
    if len(numbers):
        order = np.argsort(numbers, kind="stable")
        kinds_of_items = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
    if len(kinds_of_items) > MAX_KINDS:
        raise too_large(
            "separate_by",
            MAX_KINDS,
            f"separate_by holds {len(kinds_of_items)} distinct numbers; send at most {MAX_KINDS}",
        )
    kinds = []
    for members in kinds_of_items:
        distinct, counts = np.unique(rooms[members], return_counts=True)
        kinds.append(_Kind(members, dict(zip(distinct.tolist(), counts.tolist(), strict=True))))
    return kinds


def _packed(
    request: pb.PackSequencesRequest,
    algorithm: str,
    rooms: NDArray[np.int64],
    capacity: int,
    limit: int | None,
    time_limit_seconds: float,
) -> PackedSequences:
    try:
        return pack_lengths(
            rooms,
            capacity,
            algorithm=algorithm,
            max_sequences_per_bin=limit,
            seed=request.seed if request.HasField("seed") else None,
            time_limit_seconds=time_limit_seconds,
        )
    except ValueError as error:  # every other field has been checked
        raise invalid_field("algorithm", f"algorithm: {error}") from None
    except ImportError as error:
        raise ServiceError(
            pb.ERROR_REASON_NOT_IMPLEMENTED,
            f"algorithm {algorithm!r} needs {error.name or 'a library'}, which this server does not have",
            {"field": "algorithm"},
        ) from None
