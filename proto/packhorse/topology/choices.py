"""The choices that shape a stream, each with its one name in Python, on the command line and in the protocol.

Owns the names; a value in the protocol is the enum's name in capitals after a prefix, e.g. REMAINDER_POLICY_SPREAD.
"""

from enum import StrEnum
from numbers import Integral
from typing import TypeVar

from packhorse.parameters import parameter


def checked_integer(name: str, value: object, least: int, most: int | None = None) -> int:
    """Returns `value` as an int.

    Example:
        >>> checked_integer("batch_size", 8, 1)
        8

    Args:
        name: name of the value, for the message.
        value: a Python or NumPy integer, not a bool.
        least: smallest value allowed.
        most: largest value allowed; None for no limit.

    Raises:
        ValueError: the value is not an integer, or outside [least, most].
    """
    if type(value) is int and least <= value and (most is None or value <= most):
        return value
    wanted = f"an integer of at least {least}" if most is None else f"an integer in [{least}, {most}]"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(parameter(name) + f" must be {wanted}, got {quoted(value)}")
    number = int(value)
    if number < least or (most is not None and number > most):
        raise ValueError(parameter(name) + f" must be {wanted}, got {number}")
    return number


def quoted(value: object) -> str:
    """Returns a value as an error quotes it: its first 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def counted(number: int, noun: str) -> str:
    """Returns a number of things as a sentence holds it.

    Example:
        >>> counted(1, "rank"), counted(2_000, "id")
        ('1 rank', '2,000 ids')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


_Choice = TypeVar("_Choice", bound=StrEnum)


class RemainderPolicy(StrEnum):
    """What happens to a last step that is not full; every rank always gets the same number of steps."""

    SPREAD = "spread"
    """The last step's sequences are spread over all its bins; no sequence is lost or repeated."""
    DROP = "drop"
    """The last step is left out, and its size reported."""
    REPEAT = "repeat"
    """The last step is filled from the epoch's first positions."""
    EMPTY = "empty"
    """The last step is filled with empty bins."""


class StreamMode(StrEnum):
    """How streams share an epoch."""

    PARTITION = "partition"
    """The streams of an epoch are disjoint and together complete."""
    INDEPENDENT = "independent"
    """Every (epoch, rank, worker) has its own seed and goes through the whole epoch alone."""


class Balance(StrEnum):
    """What is balanced, by where ranks wait for each other. Positions never leave their optimizer step."""

    NONE = "none"
    """Every rank takes bins in the epoch's order."""
    MICRO_STEP = "micro-step"
    """At every step (FSDP, expert parallelism): in each step all ranks' bins cost about the same."""
    OPTIMIZER_STEP = "optimizer-step"
    """Once in `accumulation` steps (DDP, ZeRO-1): over an optimizer step the bins of every rank cost about the same."""


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
        ValueError: there is no such member; the message lists them.
    """
    try:
        return kind(str(value).lower().replace("_", "-"))
    except ValueError:
        raise ValueError(parameter(name) + f" must be one of {', '.join(kind)}, got {quoted(value)}") from None
