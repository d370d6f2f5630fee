"""Checks of a request's fields, and the types of `packhorse.topology` that are made of them.

Owns the checks of topologies and epochs, and of a single integer or choice. Leaves which dataset a request is about to
`asked_dataset`, stages to `stage_request`, sizes of answers to `sizes`, versions of the wire to `versions`, packing on
demand to `pack` and `pack_stream`, and answering to `backend`.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from typing import TypeVar

from packhorse.dataset import MixtureDataset
from packhorse.epoch import MAX_BINS_PER_OPTIMIZER_STEP, Source
from packhorse.server.base.faults import invalid_field, too_large
from packhorse.server.datasets.protocols import Dataset
from packhorse.topology import (
    Balance,
    BatchPhase,
    BatchSchedule,
    RemainderPolicy,
    StreamMode,
    Topology,
    checked_integer,
)
from packhorse.v1 import packing_pb2 as pb

MAX_SEQUENCES_PER_STEP = 1 << 23
"""Most sequences of all ranks in one step, on average: a last step that is not full is in memory as a whole."""

MAX_BATCH_PHASES = 1000
"""Most phases of a batch schedule."""

_KEPT_TOPOLOGIES = 64
"""Checked topologies that are cached, because all ranks and workers of a run send the same one."""

_KEPT_TOPOLOGY_BYTES = 1 << 10
"""Most bytes of a message whose topology is cached, because strangers choose how long it is."""

_Choice = TypeVar("_Choice", bound=StrEnum)


def integer(field: str, value: int, least: int, most: int | None = None) -> int:
    """Returns `value`; raises a ServiceError that names the field if it is outside [least, most]."""
    try:
        return checked_integer(field, value, least, most)
    except ValueError as error:
        raise invalid_field(field, str(error)) from None


def check_epoch(dataset: Dataset, epoch: int) -> None:
    """Refuses an epoch of a mixture whose positions, counted from the run's beginning, would not fit into 63 bits."""
    if isinstance(dataset, MixtureDataset):
        integer("epoch", epoch, 0, (1 << 63) // dataset.num_bins - 1)


def choice(field: str, value: int, name_of: Callable[[int], str], kind: type[_Choice]) -> _Choice:
    """Returns the member of an enum for a value of the protocol.

    Args:
        field: the field's name, for the error.
        value: the protocol's number.
        name_of: returns the protocol's name of a number, such as BALANCE_MICRO_STEP, which ends with a member's name.
        kind: the enum.

    Raises:
        ServiceError: no member has the value.
    """
    try:
        name = name_of(value)
    except ValueError:
        name = ""
    for member in kind:
        if name.endswith(f"_{member.name}"):
            return member
    raise invalid_field(field, f"{field} must be specified, one of: {', '.join(member.name for member in kind)}")


def topology(message: pb.Topology, source: Source, epoch: int, num_sequences: int) -> Topology:
    """Returns a checked topology for an epoch of a dataset with `num_sequences`."""
    data = message.SerializeToString()
    check = _topology if len(data) <= _KEPT_TOPOLOGY_BYTES else _topology.__wrapped__  # which caches nothing
    return check(data, source.num_bins, source.max_seq_len, epoch, num_sequences)


@lru_cache(_KEPT_TOPOLOGIES)
def _topology(data: bytes, num_bins: int, max_seq_len: int, epoch: int, num_sequences: int) -> Topology:
    """Returns the same as `topology`, for a message's bytes and facts of the epoch, so that it can be cached."""
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
        largest_batch = max(stretch.batch_size for stretch in shape.stretches)
    except ValueError as error:
        # The error begins with its field's name, sometimes before a colon.
        field = f"topology.{str(error).partition(' ')[0].rstrip(':')}"
        raise invalid_field(field, f"topology.{error}") from None
    _check_cost(shape, max_seq_len)
    sequences_per_bin = num_sequences / max(num_bins, 1)
    most_bins = max(1, min(MAX_BINS_PER_OPTIMIZER_STEP, int(MAX_SEQUENCES_PER_STEP / max(sequences_per_bin, 1))))
    if message.batch_schedule:
        _check_schedule(largest_batch * message.world_size, most_bins, shape)
        return shape
    factors = {"batch_size": largest_batch, "world_size": message.world_size}
    _check_product(factors, most_bins, "step")
    if shape.steps_per_optimizer_step > 1:
        factors["accumulation"] = shape.accumulation
    _check_product(factors, MAX_BINS_PER_OPTIMIZER_STEP, "optimizer step")
    return shape


def _batch_schedule(message: pb.Topology) -> BatchSchedule | None:
    """Returns a topology's batch schedule, None if it has none; raises a ValueError if it is malformed."""
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


def _check_schedule(bins_in_step: int, most_in_step: int, shape: Topology) -> None:
    """Refuses a batch schedule with too large a batch; the error counts in its unit, bins of an optimizer step.

    Args:
        bins_in_step: most bins of all ranks in a step of any phase.
        most_in_step: the most bins that a step may have.
        shape: the topology of the epoch.
    """
    batch, most = bins_in_step * shape.accumulation, most_in_step * shape.accumulation
    if shape.steps_per_optimizer_step > 1:
        most = min(most, MAX_BINS_PER_OPTIMIZER_STEP)
    if batch > most:
        raise too_large(
            "topology.batch_schedule",
            most,
            f"topology.batch_schedule has a global batch of {batch} bins; it can have {most} at most here",
        )


def _check_product(factors: dict[str, int], most_bins: int, unit: str) -> None:
    """Refuses factors that give a unit over `most_bins`; the error names the first factor that makes it so many.

    Args:
        factors: name of a field of the topology → its value; the bins of a unit are the product of all.
        most_bins: of a unit.
        unit: step or optimizer step, for the error.
    """
    product = 1
    for name, factor in factors.items():
        if product * factor > most_bins:
            limit = max(1, most_bins // product)
            given = " times ".join(f"topology.{each} {size}" for each, size in factors.items())
            raise too_large(
                f"topology.{name}",
                limit,
                f"{given} is more than {most_bins} bins in one {unit}; topology.{name} can be {limit} at most here",
            )
        product *= factor


def _check_cost(shape: Topology, max_seq_len: int) -> None:
    """Refuses costs whose sum over an optimizer step would not fit into 64 bits."""
    if shape.balance is Balance.NONE:
        return
    most = (1 << 62) // max(1, shape.bins_per_optimizer_step * max_seq_len) - max_seq_len
    integer("topology.cost_linear", shape.cost_linear, 0, max(most, 0))
