"""From Python arguments to protocol messages, refusing what a field cannot hold by the field's name.

Owns what the protocol's types alone decide; leaves ranges to the service, which refuses with the same exception.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from packhorse.client.errors import InvalidRequestError
from packhorse.topology import Balance, BatchSchedule, Skips, Topology, as_choice
from packhorse.v1 import packing_pb2 as pb

_Message = TypeVar("_Message")


def message(kind: Callable[..., _Message], *, within: str = "", **fields: Any) -> _Message:
    """Returns a message of the given fields; an InvalidRequestError names the one that does not fit.

    Args:
        kind: the message's class.
        within: the field that will hold this message, with a dot.
        fields: by name.
    """
    try:
        return kind(**fields)
    except (ValueError, TypeError, OverflowError):  # protobuf does not tell which field
        for name, value in fields.items():
            try:
                kind(**{name: value})
            except (ValueError, TypeError, OverflowError) as error:
                raise invalid(within + name, f"{bounded(error)} (got {shortened(value)})") from None
        raise


def topology_message(topology: Topology) -> pb.Topology:
    """Returns a topology as it travels; an InvalidRequestError names a number that does not fit."""
    if not isinstance(topology, Topology):
        raise invalid("topology", f"must be a Topology, e.g. Topology(world_size=8), got {shortened(topology)}")
    phases = [] if topology.batch_schedule is None else _phases(topology.batch_schedule)
    return message(
        pb.Topology,
        within="topology.",
        world_size=topology.world_size,
        workers_per_rank=topology.workers_per_rank,
        batch_size=0 if phases else topology.batch_size,
        batch_schedule=phases,
        start_position=topology.start_position,
        remainder=f"REMAINDER_POLICY_{topology.remainder.name}",
        mode=f"STREAM_MODE_{topology.mode.name}",
        balance=f"BALANCE_{topology.balance.name}",
        accumulation=topology.accumulation,
        cost_linear=topology.cost_linear,
    )


def _phases(schedule: BatchSchedule) -> list[pb.BatchPhase]:
    return [
        message(
            pb.BatchPhase,
            within="topology.batch_schedule.",
            global_batch_size=size,
            **{"tokens" if in_tokens else "bins": begin},
        )
        for begin, in_tokens, size in schedule.phases
    ]


def skip_message(skips: Skips) -> list[pb.PositionRange]:
    """Returns ranges of positions as they travel."""
    if not isinstance(skips, Skips):
        raise invalid("skip", f"must be Skips, e.g. Skips.parse(['1200:1300']), got {shortened(skips)}")
    return [message(pb.PositionRange, within="skip.", first=first, end=end) for first, end in skips.ranges]


def checked_balance(field: str, balance: Balance | str) -> Balance:
    """Returns a balance; an InvalidRequestError names the field where it is none."""
    try:
        return as_choice(field, Balance, balance)
    except ValueError as error:
        raise InvalidRequestError(str(error), {"field": field}) from None


def balance_message(field: str, balance: Balance | str) -> str:
    """Returns a balance as it travels; an InvalidRequestError names the field where it is none."""
    return f"BALANCE_{checked_balance(field, balance).name}"


def integers(field: str, values: ArrayLike | Iterable[int]) -> list[int]:
    """Returns a list of Python ints; anything that is not a flat row of integers is refused, not rounded."""
    try:
        array = np.asarray(values if isinstance(values, np.ndarray) else list(values))  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:  # no row at all, or rows of several lengths
        raise invalid(field, f"must be a flat list of 64-bit integers ({bounded(error)})") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise invalid(field, f"must be a flat list of 64-bit integers (got {array.dtype} of shape {array.shape})")
    return [int(value) for value in array.tolist()]


def texts(field: str, values: Iterable[str]) -> list[str]:
    """Returns a list of texts; one text alone is refused, since its letters are none."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise invalid(field, f"must be a list of texts, got {shortened(values)}")
    return list(values)


def invalid(field: str, what: str) -> InvalidRequestError:
    """The exception that names a field."""
    return InvalidRequestError(f"{field}: {what}", {"field": field})


def shortened(value: object) -> str:
    """Returns a value as an error quotes it: its first 40 characters."""
    return bounded(repr(value), 40)


def bounded(text: object, most: int = 1000) -> str:
    """Returns a text of at most `most` characters, and an ellipsis where there were more."""
    text = str(text)
    return text if len(text) <= most else f"{text[:most]}…"
