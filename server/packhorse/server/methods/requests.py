"""From protocol messages to the epoch's own types; which fields are out of range, and how large an answer may be.

Owns the checks of what StreamBins, GetBins, LocateSequences and AppendStage ask for. Leaves the fields of packing on
demand to `pack` and `pack_stream`, and what is done with a request to `backend`.
"""

from collections.abc import Callable, Collection
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from functools import lru_cache
from typing import TypeVar

import numpy as np

from packhorse.dataset import MixtureDataset, StageEntry, Takedown, differing_parts, parts_at
from packhorse.epoch import MAX_BINS_PER_OPTIMIZER_STEP, Source, WeightsBy
from packhorse.server.base.faults import ServiceError, invalid_field, too_large
from packhorse.server.datasets.protocols import Dataset, Datasets
from packhorse.topology import (
    Balance,
    BatchPhase,
    BatchSchedule,
    RemainderPolicy,
    Skips,
    StreamMode,
    Topology,
    checked_integer,
)
from packhorse.v1 import packing_pb2 as pb
from packhorse.wire import PLAIN_WIRE_VERSION, REDACTING, SKIPPING, WIRE_VERSION, own_digest

MAX_MESSAGE_BYTES = 64 << 20
"""No response may be larger; clients accept as much."""

MAX_SEQUENCES_PER_STEP = 1 << 23
"""Sequences of all ranks in one step, on average: a last step that is not full is held in memory as a whole."""

MAX_SKIPS = 1000
"""Ranges of positions that a request may leave out."""

MAX_SKIPS_READ = 5_000
"""Ranges of an expected digest that are compared one by one, in some 10 ms."""

MAX_BATCH_PHASES = 1000
"""Phases that a batch schedule may have."""

_KEPT_TOPOLOGIES, _KEPT_TOPOLOGY_BYTES = 64, 1 << 10
"""Checked topologies that are kept, because all ranks and workers of a run send the same one, and the longest message
of these: strangers choose what is in it."""

"""Precede, in a digest, the skipped ranges and the digest of the redactions."""

BYTES_PER_LENGTH = 4
BYTES_PER_BIN = 16
"""Of a bin in a message beside its sequences: its template's number, twice if it is defined there, the template's size,
and the bin's position."""

_BYTES_PER_GROUP = 8
"""Of a sequence's group in a message of bins."""

_Choice = TypeVar("_Choice", bound=StrEnum)


def integer(field: str, value: int, least: int, most: int | None = None) -> int:
    """Returns `value`; a ServiceError naming the field if it is outside [least, most]."""
    try:
        return checked_integer(field, value, least, most)
    except ValueError as error:
        raise invalid_field(field, str(error)) from None


def check_epoch(dataset: Dataset, epoch: int) -> None:
    """Refuses an epoch of a mixture whose positions, counted from the run's beginning, would not fit into 63 bits."""
    if isinstance(dataset, MixtureDataset):
        integer("epoch", epoch, 0, (1 << 63) // dataset.num_bins - 1)


def check_wire_version(version: int) -> None:
    """Refuses a client that is too old for any dataset, or newer than this server, and says which of them is older."""
    if PLAIN_WIRE_VERSION <= version <= WIRE_VERSION:
        return
    older, newer = ("client", "server") if version < PLAIN_WIRE_VERSION else ("server", "client")
    raise _version_mismatch(
        version,
        f"this {older} is older than the {newer}: the client reads bins of wire version {max(version, 1)}, the server "
        f"sends versions {PLAIN_WIRE_VERSION} to {WIRE_VERSION}; upgrade packhorse on the {older}'s side to the "
        f"release of the {newer}",
    )


def check_reads(dataset: Dataset, takedown: Takedown, version: int) -> None:
    """Refuses a client that is too old for a dataset or its takedown: it would train on what it cannot read."""
    if version >= WIRE_VERSION:
        return
    what = {
        "is a mixture": isinstance(dataset, MixtureDataset),
        "has groups of sequences": dataset.has_groups,
        "has resources": bool(dataset.manifest.resources),
        "has something taken away by file, on which the client would train": bool(takedown),
    }
    needed = [name for name, is_there in what.items() if is_there]
    if needed:
        raise _version_mismatch(
            version,
            f"{dataset.name!r} {' and '.join(needed)}; that takes bins of wire version {WIRE_VERSION}, and this "
            f"client, which is older, reads version {max(version, 1)}: upgrade packhorse on the client's side to the "
            "release of the server",
        )


def _version_mismatch(version: int, message: str) -> ServiceError:
    return ServiceError(
        pb.ERROR_REASON_VERSION_MISMATCH,
        message,
        {"client_version": str(max(version, 1)), "server_version": str(WIRE_VERSION)},
    )


def choice(field: str, value: int, names: Callable[[int], str], kind: type[_Choice]) -> _Choice:
    """Returns the member of an enum for a value of the protocol; a ServiceError names the field if there is none.

    `names` returns a value's name there, which ends with the member's.
    """
    try:
        name = names(value)
    except ValueError:
        name = ""
    for member in kind:
        if name.endswith(f"_{member.name}"):
            return member
    raise invalid_field(field, f"{field} must be specified, one of: {', '.join(member.name for member in kind)}")


def topology(message: pb.Topology, source: Source, epoch: int, num_sequences: int) -> Topology:
    """Returns a checked topology for an epoch of a dataset with `num_sequences`."""
    data = message.SerializeToString()
    checked = _topology if len(data) <= _KEPT_TOPOLOGY_BYTES else _topology.__wrapped__
    return checked(data, source.num_bins, source.max_seq_len, epoch, num_sequences)


@lru_cache(_KEPT_TOPOLOGIES)
def _topology(data: bytes, num_bins: int, max_seq_len: int, epoch: int, num_sequences: int) -> Topology:
    message = pb.Topology.FromString(data)
    integer("topology.start_position", message.start_position, 0, num_bins)
    mode = choice("topology.mode", message.mode, pb.StreamMode.Name, StreamMode)
    remainder = choice("topology.remainder", message.remainder, pb.RemainderPolicy.Name, RemainderPolicy)
    balance = choice("topology.balance", message.balance, pb.Balance.Name, Balance)
    try:
        shape = Topology(
            world_size=message.world_size,
            workers_per_rank=message.workers_per_rank,
            batch_size=1 if message.batch_schedule else message.batch_size,
            batch_schedule=_batch_schedule(message),
            start_position=message.start_position,
            remainder=remainder,
            mode=mode,
            accumulation=message.accumulation,
            balance=balance,
            cost_linear=message.cost_linear,
        ).of_epoch(epoch, num_bins=num_bins, max_seq_len=max_seq_len)
        largest = max(stretch.batch_size for stretch in shape.stretches)
    except ValueError as error:
        field = f"topology.{str(error).partition(' ')[0].rstrip(':')}"
        raise invalid_field(field, f"topology.{error}") from None
    _check_cost(shape, max_seq_len)
    factors = {"batch_size": largest, "world_size": message.world_size, "accumulation": shape.accumulation}
    if shape.steps_per_optimizer_step == 1:
        del factors["accumulation"]
    sequences_per_bin = num_sequences / max(num_bins, 1)
    most_in_step = max(1, min(MAX_BINS_PER_OPTIMIZER_STEP, int(MAX_SEQUENCES_PER_STEP / max(sequences_per_bin, 1))))
    _check_product({name: factors[name] for name in ("batch_size", "world_size")}, most_in_step, "step")
    _check_product(factors, MAX_BINS_PER_OPTIMIZER_STEP, "optimizer step")
    return shape


def _batch_schedule(message: pb.Topology) -> BatchSchedule | None:
    """Returns a topology's schedule; a ValueError if it is malformed."""
    if not message.batch_schedule:
        return None
    if message.batch_size:
        raise ValueError(f"batch_size must be 0 beside a batch_schedule, got {message.batch_size}")
    if len(message.batch_schedule) > MAX_BATCH_PHASES:
        raise ValueError(f"batch_schedule holds {len(message.batch_schedule)} phases; give at most {MAX_BATCH_PHASES}")
    if any(phase.WhichOneof("begin") is None for phase in message.batch_schedule):
        raise ValueError("batch_schedule has a phase without a beginning; set its bins or its tokens")
    return BatchSchedule(
        tuple(
            BatchPhase(phase.tokens or phase.bins, phase.HasField("tokens"), phase.global_batch_size)
            for phase in message.batch_schedule
        )
    )


def _check_product(factors: dict[str, int], most: int, what: str) -> None:
    """Refuses a product of factors that is too many bins, naming the factor at which it is."""
    product = 1
    for name, factor in factors.items():
        if product * factor > most:
            limit = max(1, most // product)
            raise too_large(
                f"topology.{name}",
                limit,
                f"{' times '.join(f'topology.{n} {f}' for n, f in factors.items())} is more than {most} bins in one "
                f"{what}; topology.{name} can be {limit} at most here",
            )
        product *= factor


def _check_cost(shape: Topology, max_seq_len: int) -> None:
    """Refuses costs whose sum over an optimizer step would not fit into 64 bits."""
    if shape.balance is Balance.NONE:
        return
    most = (1 << 62) // max(1, shape.bins_per_optimizer_step * max_seq_len) - max_seq_len
    integer("topology.cost_linear", shape.cost_linear, 0, max(most, 0))


def stage(request: pb.AppendStageRequest) -> StageEntry | None:
    """Returns the stage to append, with checked weights; None if stages are only taken back."""
    if request.replace and not request.weights:
        return None
    try:
        by = WeightsBy(request.by or WeightsBy.BINS)
    except ValueError:
        raise invalid_field("by", f"by must be one of {', '.join(WeightsBy)}, got {request.by[:80]!r}") from None
    weights: dict[str, int | Decimal] = {}
    for each in request.weights:
        if each.component in weights:
            raise invalid_field("weights", f"weights name {each.component[:80]!r} twice; give each component one")
        try:
            weights[each.component] = Decimal(each.weight)
        except InvalidOperation:
            raise invalid_field(
                "weights", f"weights: that of {each.component[:80]!r} is not a number: {each.weight[:80]!r}"
            ) from None
    if not weights:
        raise invalid_field("weights", "weights must give components numbers, e.g. web 60 and code 40")
    try:
        return StageEntry(weights=weights, by=by)
    except ValueError as error:
        raise invalid_field("weights", str(error)) from None


def check_num_skips(ranges: Collection[pb.PositionRange]) -> None:
    """Refuses more ranges than a request may leave out."""
    if len(ranges) > MAX_SKIPS:
        raise too_large("skip", MAX_SKIPS, f"skip holds {len(ranges)} ranges; give at most {MAX_SKIPS}")


def skips(ranges: Collection[pb.PositionRange]) -> Skips:
    """Returns checked ranges of positions to skip."""
    check_num_skips(ranges)
    try:
        return Skips.of([(each.first, each.end) for each in ranges])
    except ValueError as error:
        raise invalid_field("skip", str(error)) from None


def digest_of(dataset: Dataset, skips: Skips, takedown: Takedown) -> str:
    """Returns the digest of a dataset with skipped ranges and redactions."""
    digest = f"{dataset.manifest.digest}{SKIPPING}{skips}" if skips else dataset.manifest.digest
    return f"{digest}{REDACTING}{takedown.digest}" if takedown.digest else digest


def get_dataset(catalog: Datasets, name: str, dataset_digest: str, expected_digest: str = "") -> Dataset:
    """Returns the dataset or mixture that a request is about.

    Args:
        catalog: of the datasets.
        name: of it.
        dataset_digest: that the client's earlier answers named; empty for any.
        expected_digest: of its run, see `check_digest`; empty for any.

    Raises:
        ServiceError: there is none of that name, or another one than the client's.
    """
    dataset = catalog.get(name, dataset_digest or own_digest(expected_digest))
    actual = dataset.manifest.digest
    if not dataset_digest or actual == dataset_digest:
        return dataset
    if isinstance(dataset, MixtureDataset) and parts_at(dataset_digest, dataset.chain) != 0:
        return dataset
    differs = ["stages"] if isinstance(dataset, MixtureDataset) else _differing(dataset_digest, actual)
    raise ServiceError(
        pb.ERROR_REASON_DIGEST_MISMATCH,
        f"dataset {name!r} is not the one that answered this client before: {', '.join(differs)} differ; replicas must "
        "serve the same data under one name. Connect again to read the other, or serve the earlier one everywhere",
        {"expected": dataset_digest, "actual": actual, "dataset": name, "differs": ",".join(differs)},
    )


def check_digest(
    dataset: Dataset,
    skips: Skips,
    expected: str,
    *,
    epoch: int,
    begin: int | None = None,
    end: int | None = None,
    takedown: Takedown,
) -> None:
    """Refuses a dataset with another digest than the request expects, saying what differs.

    Redactions change no bin, so no digest is refused for them.

    Args:
        dataset: of the name in the request.
        skips: all skipped ranges, of the request and of files.
        expected: the digest that the run began with; empty for any.
        epoch: of the request.
        begin: position, not counting skipped ones, at which the stream begins: only differences before it count.
            None: all count, up to `end`.
        end: position, not counting skipped ones, at which the request ends, exclusive. None for the epoch's end.
        takedown: of files.
    """
    if not expected:
        return
    facts = {"expected": expected, "actual": digest_of(dataset, skips, takedown), "dataset": dataset.name}
    expected_dataset, _, skipped = expected.partition(REDACTING)[0].partition(SKIPPING)
    if isinstance(dataset, MixtureDataset):
        _check_stages(dataset, skips, expected_dataset, epoch, end if begin is None else begin, facts)
    elif differs := _differing(expected_dataset, dataset.manifest.digest):
        raise ServiceError(
            pb.ERROR_REASON_DIGEST_MISMATCH,
            f"dataset {dataset.name!r} is not the one that this run began with: {', '.join(differs)} differ "
            f"(max_seq_len is {dataset.manifest.max_seq_len} here); serve the old dataset again, or start a new run",
            {**facts, "differs": ",".join(differs)},
        )
    if skipped == str(skips):
        return
    before = _skipped_before(skipped)
    upto = end if begin is None else begin
    if before is None or (before != skips and (upto is None or before.before(upto) != skips.before(upto))):
        named = f"{skipped.count(',') + 1} ranges" if before is None else f"the positions {before or 'none'}"
        raise ServiceError(
            pb.ERROR_REASON_DIGEST_MISMATCH,
            f"this run has skipped {named} of dataset {dataset.name!r}, now {skips or 'none'} "
            "are to be skipped: ranges before the cursor must stay as they were, because positions do not count them; "
            "add ranges after the cursor only",
            {**facts, "differs": "skip"},
        )


def _skipped_before(text: str) -> Skips | None:
    """Returns the ranges in a digest; None if they are too many to be read for one request.

    A run with too many ranges continues while they stay the same, which needs no reading.
    """
    if text.count(",") >= MAX_SKIPS_READ:
        return None
    try:
        return Skips.parse([text])
    except ValueError as error:
        raise invalid_field("expected_digest", f"expected_digest is not a digest of a server: {error}") from None


def _differing(expected: str, actual: str) -> list[str]:
    return [] if expected == actual else differing_parts(expected, actual)


def _check_stages(
    mixture: MixtureDataset, skips: Skips, expected: str, epoch: int, position: int | None, facts: dict[str, str]
) -> None:
    """Refuses a mixture that differs, before the position that a run has reached, from the one it began with."""
    departs = parts_at(expected, mixture.chain)
    if departs is None:
        return
    whole = mixture.num_bins if position is None else skips.to_whole(position - 1) + 1 if position else 0
    reached = epoch * mixture.num_bins + min(whole, mixture.num_bins)
    if reached > departs:
        at = "from the beginning" if not departs else f"at position {departs % mixture.num_bins} of epoch "
        at += str(departs // mixture.num_bins) if departs else ""
        raise ServiceError(
            pb.ERROR_REASON_DIGEST_MISMATCH,
            f"mixture {mixture.name!r} departs {at} ({departs} of the run) from the one that this run began with, and "
            f"the run has reached {reached}: expected {expected}, got {mixture.manifest.digest}; resume from a cursor "
            "at or before that position, or restore the stages that the run began with",
            {**facts, "differs": "stages", "departs": str(departs)},
        )


def bytes_per_sequence(dataset: Dataset) -> int:
    """Returns the bytes of a sequence in a message of bins if its length is sent."""
    return BYTES_PER_LENGTH + _bytes_per_entry(dataset)


def average_bytes_per_bin(dataset: Dataset) -> float:
    """Returns the average bytes of a bin in a message, once most templates have been defined."""
    sequences_per_bin = dataset.manifest.n_sequences / dataset.manifest.n_bins
    return BYTES_PER_BIN / 2 + _bytes_per_entry(dataset) * sequences_per_bin


def _bytes_per_entry(dataset: Dataset) -> int:
    """Returns the bytes of a sequence in a message of bins beside its length: id, first token and group."""
    manifest = dataset.manifest
    start_bytes = np.dtype(manifest.start_dtype).itemsize if manifest.start_dtype else 0
    group_bytes = _BYTES_PER_GROUP if dataset.has_groups else 0
    length_bytes = 0 if dataset.has_templates else BYTES_PER_LENGTH
    return np.dtype(manifest.id_dtype).itemsize + start_bytes + length_bytes + group_bytes


def most_bytes_per_bin(dataset: Dataset) -> int:
    """Returns the most bytes of a bin in a message, if its template is defined there."""
    return BYTES_PER_BIN + bytes_per_sequence(dataset) * dataset.max_sequences_per_bin


def check_message_size(field: str, num_bins: int, dataset: Dataset) -> None:
    """Refuses a number of bins that may not fit into one message."""
    limit = max(MAX_MESSAGE_BYTES // most_bytes_per_bin(dataset), 1)
    if num_bins > limit:
        raise too_large(
            field,
            limit,
            f"{field} asks for {num_bins} bins in one message; of this dataset, with up to "
            f"{dataset.max_sequences_per_bin} sequences in a bin, at most {limit} fit",
        )


def check_answer_size(field: str, num_bytes: int, num_fitting: int, num_bins: int) -> None:
    """Refuses bins that do not fit into one message, and says that the first `num_fitting` do."""
    if num_bytes > MAX_MESSAGE_BYTES:
        raise too_large(
            field,
            num_fitting,
            f"{field} asks for {num_bins} bins, more than the {MAX_MESSAGE_BYTES >> 20} MiB that one message holds; "
            f"the first {num_fitting} fit",
        )
