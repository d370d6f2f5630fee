"""From protocol messages to the epoch's own types, refusing what is out of range by field name.

Owns the check of every request field; leaves what is done with them to `backend`.
"""

from collections.abc import Callable
from typing import TypeVar

from packhorse.dataset import PreparedDataset, differing_parts
from packhorse.epoch import RemainderPolicy, StreamMode, Topology
from packhorse.packing import checked_integer
from packhorse.server.faults import ServiceError, invalid_field, too_large
from packhorse.v1 import packing_pb2 as pb

MAX_MESSAGE_BYTES = 64 << 20
"""No response may be larger; clients accept as much."""

MAX_BINS_PER_STEP = 1 << 20
"""Bins of all ranks in one step: dealing out a last step that is not full takes time and memory for each."""

BYTES_PER_SEQUENCE = 12
BYTES_PER_START = 8
BYTES_PER_BIN = 12

REMAINDER_POLICIES = {
    pb.REMAINDER_POLICY_SPREAD: RemainderPolicy.SPREAD,
    pb.REMAINDER_POLICY_DROP: RemainderPolicy.DROP,
    pb.REMAINDER_POLICY_REPEAT: RemainderPolicy.REPEAT,
    pb.REMAINDER_POLICY_EMPTY: RemainderPolicy.EMPTY,
}
STREAM_MODES = {
    pb.STREAM_MODE_PARTITION: StreamMode.PARTITION,
    pb.STREAM_MODE_INDEPENDENT: StreamMode.INDEPENDENT,
}

_Choice = TypeVar("_Choice")


def integer(field: str, value: int, least: int, most: int | None = None) -> int:
    """Returns `value`; a ServiceError naming the field where it is outside [least, most]."""
    try:
        return checked_integer(field, value, least, most)
    except ValueError as error:
        raise invalid_field(field, str(error)) from None


def choice(
    field: str,
    value: int,
    choices: dict["pb.RemainderPolicy", _Choice] | dict["pb.StreamMode", _Choice],
    name_of: Callable[[int], str],
) -> _Choice:
    """Returns what an enum's value stands for; a ServiceError naming the field where it must be specified."""
    for known, meaning in choices.items():
        if int(known) == value:
            return meaning
    names = ", ".join(name_of(int(known)) for known in choices)
    raise invalid_field(field, f"{field} must be specified, one of: {names}")


def topology(message: pb.Topology, num_bins: int) -> Topology:
    """Returns a checked topology for an epoch of `num_bins` bins."""
    for name in ("world_size", "workers_per_rank", "batch_size"):
        integer(f"topology.{name}", getattr(message, name), 1)
    if message.world_size * message.batch_size > MAX_BINS_PER_STEP:
        alone = message.batch_size > MAX_BINS_PER_STEP
        raise too_large(
            "topology.batch_size" if alone else "topology.world_size",
            MAX_BINS_PER_STEP if alone else MAX_BINS_PER_STEP // message.batch_size,
            f"topology.world_size {message.world_size} times topology.batch_size {message.batch_size} is more than "
            f"{MAX_BINS_PER_STEP} bins in a step",
        )
    return Topology(
        world_size=message.world_size,
        workers_per_rank=message.workers_per_rank,
        batch_size=message.batch_size,
        start_position=integer("topology.start_position", message.start_position, 0, num_bins),
        remainder=choice(
            "topology.remainder", message.remainder, REMAINDER_POLICIES, lambda value: pb.RemainderPolicy.Name(value)
        ),
    )


def check_digest(dataset: PreparedDataset, expected: str) -> None:
    """Refuses a dataset with another digest than the request expects, saying what differs."""
    actual = dataset.manifest.digest
    if expected and expected != actual:
        differs = differing_parts(expected, actual)
        raise ServiceError(
            pb.ERROR_REASON_DIGEST_MISMATCH,
            f"dataset {dataset.name!r} is another than this run began with: {', '.join(differs)} differ (max_seq_len "
            f"is {dataset.manifest.max_seq_len} here); serve the old dataset again, or start a new run",
            {"expected": expected, "actual": actual, "differs": ",".join(differs), "dataset": dataset.name},
        )


def bytes_per_sequence(dataset: PreparedDataset) -> int:
    """Returns what a sequence takes in a message of bins, at most."""
    return BYTES_PER_SEQUENCE + (0 if dataset.starts is None else BYTES_PER_START)


def most_bytes_per_bin(dataset: PreparedDataset) -> int:
    """Returns what a bin takes in a message of bins, at most."""
    return BYTES_PER_BIN + bytes_per_sequence(dataset) * dataset.plan.max_sequences_per_bin


def check_message_size(field: str, num_bins: int, dataset: PreparedDataset) -> None:
    """Refuses a number of bins that may not fit into one message."""
    limit = max(MAX_MESSAGE_BYTES // most_bytes_per_bin(dataset), 1)
    if num_bins > limit:
        raise too_large(
            field,
            limit,
            f"{field} asks for {num_bins} bins in one message; of this dataset, with up to "
            f"{dataset.plan.max_sequences_per_bin} sequences in a bin, at most {limit} fit",
        )


def check_answer_size(field: str, num_bytes: int, num_fitting: int, num_bins: int) -> None:
    """Refuses bins that do not fit into one message, of which the first `num_fitting` do."""
    if num_bytes > MAX_MESSAGE_BYTES:
        raise too_large(
            field,
            num_fitting,
            f"{field} asks for {num_bins} bins, more than the {MAX_MESSAGE_BYTES >> 20} MiB that one message holds; "
            f"the first {num_fitting} fit",
        )
