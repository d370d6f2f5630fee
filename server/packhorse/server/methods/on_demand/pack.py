"""Packing without a dataset, all lengths at once (PackSequences).

Owns the method's checks, limits and answer. Leaves the packing to `packhorse.packing`, making items of groups to
`_items`, and which rank takes which bin to `bins_of_ranks`.

Legend: S sequences, M items, N bins, D ranks, d budgets (tokens, then resources).
"""

from collections.abc import Sequence
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
    pack_sizes,
    rooms_of_lengths,
    split_to_multiple,
    vector_bound,
)
from packhorse.packing import pack_sequences as pack_rooms
from packhorse.server.base.faults import ServiceError, invalid_field, too_large
from packhorse.server.base.time_slices import TimeSlices, finish
from packhorse.server.methods import requests
from packhorse.server.methods.on_demand._items import Items
from packhorse.server.methods.on_demand.bins_of_ranks import (
    MOST_COST,
    check_costs,
    evened,
    is_balanced,
    order_of_costs,
    ranks_of,
    sums_of,
)
from packhorse.topology import LEAST_EXTRA_TOKENS, RoomRule, Topology, cost_of
from packhorse.v1 import packing_pb2 as pb

MAX_PACK_SEQUENCES = 1_000_000
"""Most sequences in one PackSequences."""

MAX_PACK_LENGTHS = 1 << 17
"""Most distinct lengths in one PackSequences: packers that plan by length take time and memory for each, a second or
two and about 100 MB together. Packers that go through the sequences in their order have no such limit."""

MAX_BUDGETS = 4
"""Most budgets of one PackSequences, beside tokens."""

MAX_KINDS = 1 << 10
"""Most distinct numbers in `separate_by`: each kind is packed by itself, in a millisecond or more."""

SEARCHING = frozenset({"auto", "optimal"})
"""Packers that improve their bins until MAX_PACK_SECONDS are over."""

MAX_PACK_SECONDS = 10.0
"""How long the packers of SEARCHING may take: clients wait two minutes for an answer."""

_BYTES_PER_SEQUENCE = 160
"""Most bytes of memory that packing takes for one sequence."""


@dataclass(frozen=True, slots=True, eq=False)
class _Kind:
    """Items that may share bins."""

    members: NDArray[np.int64]
    """Indices of the items, ascending: int64 [n]."""
    counts: dict[int, int]
    """Room in tokens → how many of the items have it."""


def pack_sequences(request: pb.PackSequencesRequest) -> pb.PackSequencesResponse:
    """Packs the lengths of a request at once; `connect("embedded:")` finds it by the method's name."""
    return finish(pack_in_slices(request))


def pack_in_slices(request: pb.PackSequencesRequest) -> TimeSlices[pb.PackSequencesResponse]:
    """Packs the lengths of a request, in time slices: one for each kind of sequences that is packed by itself.

    Each slice yields the bytes of memory that the work needs from then on.
    """
    if len(request.lengths) > MAX_PACK_SEQUENCES:
        raise too_large(
            "lengths", MAX_PACK_SEQUENCES, f"lengths holds {len(request.lengths)}; send at most {MAX_PACK_SEQUENCES}"
        )
    num_bytes = _BYTES_PER_SEQUENCE * len(request.lengths)
    yield num_bytes
    max_seq_len = requests.integer("max_seq_len", request.max_seq_len, 1, MAX_SEQ_LEN)
    max_sequences_per_bin = requests.integer("max_sequences_per_bin", request.max_sequences_per_bin, 0) or None
    align = requests.integer("align", request.align, 0, max_seq_len) or 1
    extra_tokens = requests.integer("extra_tokens", request.extra_tokens, LEAST_EXTRA_TOKENS, max_seq_len - 1)
    ranks = ranks_of(request)
    try:
        rule = RoomRule(max_seq_len, align, extra_tokens)
        lengths = checked_lengths(np.array(request.lengths, dtype=np.int64), rule.longest_length)
        rooms = rooms_of_lengths(lengths, rule)  # int64 [S]
    except ValueError as error:
        raise invalid_field("lengths", str(error)) from None
    costs = _costs(request, lengths, ranks)
    algorithm = request.algorithm or "best-fit"
    sizes, capacities = _sizes(request, rooms)
    items = Items.of(request, sizes, capacities)
    kinds = _kinds(items, algorithm)
    packings = []  # of each kind, with indices into its members
    for kind in kinds:
        of_kind = items.sizes[kind.members]
        if request.budgets:
            packings.append(_pack_under_budgets(request, algorithm, of_kind, capacities, max_sequences_per_bin))
        else:
            packings.append(
                _pack_rooms(
                    request, algorithm, of_kind[:, 0], max_seq_len, max_sequences_per_bin, MAX_PACK_SECONDS / len(kinds)
                )
            )
        yield num_bytes
    # All kinds' bins, end to end: indices of items, and the exclusive end of each bin.
    indices = np.concatenate([kind.members[packed.indices] for kind, packed in zip(kinds, packings, strict=True)])
    starts = np.cumsum([0, *(len(packed.indices) for packed in packings[:-1])])
    ends = np.concatenate([start + packed.bin_ends for start, packed in zip(starts, packings, strict=True)])
    try:
        indices, ends = split_to_multiple(
            indices, ends, items.sizes[:, 0], ranks.world_size, allow_empty=request.allow_empty
        )
    except ValueError as error:
        raise invalid_field("num_bins_multiple_of", f"num_bins_multiple_of: {error}") from None
    if is_balanced(ranks):
        yield num_bytes
        indices, ends = _evened_items(indices, ends, items, costs, capacities, max_sequences_per_bin, ranks)
    indices, ends = items.members(indices, ends)  # from here on, the bins are of sequences
    if is_balanced(ranks):
        order = order_of_costs(costs[indices], ends, ranks)
        bin_sizes = np.diff(ends, prepend=0)
        indices, ends = laid_end_to_end(indices, (ends - bin_sizes)[order], bin_sizes[order])
    return pb.PackSequencesResponse(
        indices=indices.astype("<u4").tobytes(),
        bin_ends=ends.astype("<u4").tobytes(),
        lower_bound=sum(_lower_bound(kind, items, capacities, max_sequences_per_bin) for kind in kinds),
        algorithm=",".join(sorted({packed.algorithm for packed in packings})),
    )


def _evened_items(
    indices: NDArray[np.int64],
    ends: NDArray[np.int64],
    items: Items,
    costs: NDArray[np.int64],
    capacities: NDArray[np.int64],
    max_sequences_per_bin: int | None,
    ranks: Topology,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns bins of the same items that make ranks wait less; see `evened`. `costs` are of sequences: int64 [S]."""
    sizes, capacities = _with_limit(items.sizes, capacities, max_sequences_per_bin)
    item_costs = sums_of(costs[items.sequences], items.ends)
    kinds = items.separate_by if len(items.separate_by) else None
    return evened(indices, ends, sizes, item_costs, capacities, ranks, kinds)


def _sizes(request: pb.PackSequencesRequest, rooms: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns what each sequence takes, int64 [S, d], and what a bin has, int64 [d]: of tokens, then of each budget."""
    capacities = [request.max_seq_len, *caps_of(request.budgets, "budgets")]
    columns = [rooms]
    for each in request.budgets:
        amounts = np.array(each.amounts, dtype=np.int64)
        if len(amounts) != len(rooms):
            raise invalid_field(
                "budgets", f"budgets: {each.name!r} has {len(amounts)} amounts for {len(rooms)} lengths"
            )
        columns.append(amounts)
    return np.stack(columns, axis=1), np.array(capacities, dtype=np.int64)


def caps_of(budgets: Sequence[pb.Budget], field: str) -> list[int]:
    """Returns the capacity of each budget; raises a ServiceError that names `field` if the budgets are wrong."""
    if len({each.name for each in budgets}) < len(budgets) or len(budgets) > MAX_BUDGETS:
        raise invalid_field(field, f"{field} must be at most {MAX_BUDGETS} of distinct names")
    return [requests.integer(f"the cap of {each.name!r} in {field}", each.cap, 1, MAX_SEQ_LEN) for each in budgets]


def _costs(request: pb.PackSequencesRequest, lengths: NDArray[np.int64], ranks: Topology) -> NDArray[np.int64]:
    """Returns the cost of each sequence, int64 [S]: the request's numbers, or else by its length."""
    if not len(request.costs):
        check_costs(ranks, int(lengths.sum()), int(lengths.max(initial=0)))
        return cost_of(lengths, ranks.cost_linear)
    if len(request.costs) != len(lengths) or sum(request.costs) >= MOST_COST:
        raise invalid_field(
            "costs",
            f"costs holds {len(request.costs)} numbers for {len(lengths)} lengths, which add up to "
            f"{sum(request.costs)}: give one for each, that fit together into 62 bits",
        )
    return np.array(request.costs, dtype=np.int64)


def _lower_bound(kind: _Kind, items: Items, capacities: NDArray[np.int64], max_sequences_per_bin: int | None) -> int:
    """Returns a number of bins below which no packing of a kind exists."""
    of_tokens = lower_bound(kind.counts, int(capacities[0]), max_sequences_per_bin=max_sequences_per_bin)
    if len(capacities) == 1:
        return of_tokens
    sizes = items.sizes[kind.members]
    return max(of_tokens, vector_bound(sizes, np.ones(len(sizes), dtype=np.int64), capacities))


def _kinds(items: Items, algorithm: str) -> list[_Kind]:
    """Returns the kinds of items, by `separate_by`; a single one if it is empty."""
    rooms, numbers = items.sizes[:, 0], items.separate_by
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
    num_lengths = sum(len(kind.counts) for kind in kinds)
    if num_lengths > MAX_PACK_LENGTHS and algorithm not in LIST_ONLY:
        raise too_large(
            "lengths",
            MAX_PACK_LENGTHS,
            f"lengths holds {num_lengths} distinct ones; {algorithm!r} takes at most {MAX_PACK_LENGTHS}: send "
            "fewer, or choose the algorithm 'random-order' or 'next-fit'",
        )
    return kinds


def _pack_rooms(
    request: pb.PackSequencesRequest,
    algorithm: str,
    rooms: NDArray[np.int64],
    max_seq_len: int,
    max_sequences_per_bin: int | None,
    time_limit_seconds: float,
) -> PackedSequences:
    """Packs items of one kind that take only tokens: `rooms` is int64 [n]."""
    try:
        return pack_rooms(
            rooms,
            max_seq_len,
            algorithm=algorithm,
            max_sequences_per_bin=max_sequences_per_bin,
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


def _pack_under_budgets(
    request: pb.PackSequencesRequest,
    algorithm: str,
    sizes: NDArray[np.int64],
    capacities: NDArray[np.int64],
    max_sequences_per_bin: int | None,
) -> PackedSequences:
    """Packs items of one kind that also take resources: `sizes` is int64 [n, d]."""
    if algorithm not in ("auto", "best-fit"):
        raise invalid_field("algorithm", f"algorithm: budgets are packed by 'best-fit', not by {algorithm!r}")
    sizes, capacities = _with_limit(sizes, capacities, max_sequences_per_bin)
    return pack_sizes(sizes, capacities, seed=request.seed if request.HasField("seed") else None)


def _with_limit(
    sizes: NDArray[np.int64], capacities: NDArray[np.int64], max_sequences_per_bin: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Adds a limit of sequences in a bin as one more budget, of which each item takes 1; None adds nothing."""
    if max_sequences_per_bin is None:
        return sizes, capacities
    one_for_each = np.ones((len(sizes), 1), dtype=np.int64)
    return np.concatenate((sizes, one_for_each), axis=1), np.append(capacities, max_sequences_per_bin)
