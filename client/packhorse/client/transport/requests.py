"""Requests to the service: protobuf messages from Python arguments.

A value that its field cannot hold is refused here, with the field's name. Leaves other ranges to the service, which
raises the same exception; the methods and a transport's interface to `methods`; and answers to `locations`,
`client/_packing_answer` and `streams/blocks`.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from packhorse.client.error_texts import bounded, invalid
from packhorse.client.errors import InvalidRequestError
from packhorse.parameters import message_of
from packhorse.topology import Balance, BatchSchedule, Skips, Topology, as_choice
from packhorse.topology.checks import quoted
from packhorse.v1 import packing_pb2 as pb

Resources: TypeAlias = "Mapping[str, tuple[ArrayLike, int]]"
"""Name of a budget besides tokens, such as image tiles → (each sequence's amount, int [S]; a bin's maximum)."""

NO_RESOURCES: Resources = MappingProxyType({})
"""No budget besides tokens; a default of arguments, which must not change."""

_AMOUNTS_END = 2**31
"""The service takes amounts below this."""

_Message = TypeVar("_Message")


def message(kind: Callable[..., _Message], *, within: str = "", **fields: Any) -> _Message:
    """Returns a message with these fields; an InvalidRequestError names the first field whose value does not fit.

    Args:
        kind: the message's class.
        within: the path of the message in the request, with a dot at the end, for the error: "topology.".
        fields: the message's fields.
    """
    try:
        return kind(**fields)
    except (ValueError, TypeError, OverflowError):  # protobuf does not tell which field
        for name, value in fields.items():
            try:
                kind(**{name: value})
            except (ValueError, TypeError, OverflowError) as error:
                raise invalid(within + name, f"{bounded(error)} (got {quoted(value)})") from None
        raise


def topology_message(topology: Topology) -> pb.Topology:
    """Returns a topology's message."""
    if not isinstance(topology, Topology):
        raise invalid("topology", f"must be a Topology, e.g. Topology(world_size=8), got {quoted(topology)}")
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
    """Returns the messages of a batch schedule's phases."""
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
    """Returns the messages of ranges of positions."""
    if not isinstance(skips, Skips):
        raise invalid("skip", f"must be Skips, e.g. Skips.parse(['1200:1300']), got {quoted(skips)}")
    return [message(pb.PositionRange, within="skip.", first=first, end=end) for first, end in skips.ranges]


def checked_balance(field: str, balance: Balance | str) -> Balance:
    """Returns a Balance, also of its name; an InvalidRequestError for anything else names the field."""
    try:
        return as_choice(field, Balance, balance)
    except ValueError as error:
        raise InvalidRequestError(message_of(error), {"field": field}) from None


def balance_message(field: str, balance: Balance | str) -> str:
    """Returns a balance's name in the protocol; see `checked_balance`."""
    return f"BALANCE_{checked_balance(field, balance).name}"


def integers(field: str, values: ArrayLike | Iterable[int]) -> list[int]:
    """Returns a list of Python ints; an InvalidRequestError names the field of anything but a flat list of integers."""
    try:
        array = np.asarray(values if isinstance(values, np.ndarray) else list(values))  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:  # not a list, or lists of several lengths in a list
        raise invalid(field, f"must be a flat list of 64-bit integers ({bounded(error)})") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise invalid(field, f"must be a flat list of 64-bit integers (got {array.dtype} of shape {array.shape})")
    return [int(value) for value in array.tolist()]


def budget_messages(resources: Resources) -> list[pb.Budget]:
    """Returns the messages of resources; refuses anything but a mapping of name to (amounts, cap)."""
    if not isinstance(resources, Mapping) or not all(_is_pair(value) for value in resources.values()):
        raise invalid("resources", f"must be a dict of name to (amounts, cap), got {quoted(resources)}")
    messages = []
    for name, (given_amounts, cap) in resources.items():
        if not isinstance(name, str) or name in ("", "tokens"):
            raise invalid(
                "resources", f"{name!r} names no resource; take a text but 'tokens', whose cap is max_seq_len"
            )
        amounts = integers(f"the amounts of {name!r} in resources", given_amounts)
        if not isinstance(cap, int | np.integer):
            raise invalid("resources", f"the cap of {name!r} must be an integer of at least 1, got {quoted(cap)}")
        if amounts and not 0 <= min(amounts) <= max(amounts) < _AMOUNTS_END:
            index = next(index for index, amount in enumerate(amounts) if not 0 <= amount < _AMOUNTS_END)
            raise invalid(
                "resources", f"sequence {index} takes {amounts[index]} of {name!r}, which is not in [0, 2^31)"
            )
        messages.append(message(pb.Budget, name=name, cap=cap, amounts=amounts))
    return messages


def _is_pair(value: object) -> bool:
    """Whether a value is a tuple of two."""
    return isinstance(value, tuple) and len(value) == 2


def texts(field: str, values: Iterable[str]) -> list[str]:
    """Returns a list of texts; refuses a single text, which would be taken letter by letter."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise invalid(field, f"must be a list of texts, got {quoted(values)}")
    return list(values)
