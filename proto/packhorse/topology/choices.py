"""The choices that shape a stream, each with its one name in Python, on the command line and in the protocol.

Owns the names; a value in the protocol is the enum's name in capitals after a prefix, e.g. REMAINDER_POLICY_SPREAD.
"""

from enum import StrEnum
from typing import TypeVar

from packhorse.topology.checks import quoted

_Choice = TypeVar("_Choice", bound=StrEnum)


class RemainderPolicy(StrEnum):
    """What happens to a last step that is not full; every rank always gets the same number of steps."""

    SPREAD = "spread"
    """Its sequences are dealt over all its bins: none is lost, none repeated."""
    DROP = "drop"
    """It is left out, and its size reported."""
    REPEAT = "repeat"
    """It is filled from the epoch's first positions."""
    EMPTY = "empty"
    """It is filled with empty bins."""


class StreamMode(StrEnum):
    """How streams share an epoch."""

    PARTITION = "partition"
    """The streams of an epoch are disjoint and together complete."""
    INDEPENDENT = "independent"
    """Every (epoch, rank, worker) has a seed of its own and goes through the whole epoch alone."""


class Balance(StrEnum):
    """Where ranks wait for each other, and so what is made equal. Positions never leave their optimizer step."""

    NONE = "none"
    """Nothing: every rank takes bins in the epoch's order."""
    MICRO_STEP = "micro-step"
    """At every step (FSDP, expert parallelism): in each step all ranks' bins cost about the same."""
    OPTIMIZER_STEP = "optimizer-step"
    """Once in `accumulation` steps (DDP, ZeRO-1): over an optimizer step all ranks' bins cost the same in sum."""


def as_choice(name: str, kind: type[_Choice], value: object) -> _Choice:
    """Returns a member from itself or from its value in any case, with - or _ between words.

    Example:
        >>> as_choice("balance", Balance, "Micro_Step")
        <Balance.MICRO_STEP: 'micro-step'>

    Args:
        name: of the option, for the message.
        kind: the enum.
        value: a member, or its value.

    Raises:
        ValueError: it is none; the message lists those there are.
    """
    try:
        return kind(str(value).lower().replace("_", "-"))
    except ValueError:
        raise ValueError(f"{name} must be one of {', '.join(kind)}, got {quoted(value)}") from None
