"""The enums that shape a stream: remainder policy, mode and balance, and reading them from text.

Owns the names of the choices, which are the same in Python and on the command line. In the protocol a name is in
capitals after a prefix, e.g. REMAINDER_POLICY_SPREAD. Leaves checking numbers to `checks`.
"""

from enum import StrEnum
from typing import TypeVar

from packhorse.parameters import parameter
from packhorse.topology.checks import quoted

_Choice = TypeVar("_Choice", bound=StrEnum)


class RemainderPolicy(StrEnum):
    """What happens to a last step that is not full. Every rank gets the same number of steps under every policy."""

    SPREAD = "spread"
    """The last step's sequences are spread over all its bins; no sequence is lost or repeated."""
    DROP = "drop"
    """The last step is left out; the stream's header says how many bins it had."""
    REPEAT = "repeat"
    """The last step is filled from the epoch's first positions."""
    EMPTY = "empty"
    """The last step is filled with empty bins."""


class StreamMode(StrEnum):
    """Whether the streams of all ranks and workers share one epoch."""

    PARTITION = "partition"
    """The streams of an epoch are disjoint and together complete."""
    INDEPENDENT = "independent"
    """Each stream goes through the whole epoch, in an order from its own seed for (epoch, rank, worker)."""


class Balance(StrEnum):
    """What is balanced: the costs of ranks' bins between two points at which ranks wait for each other.

    Ranks only exchange bins of the same optimizer step.
    """

    NONE = "none"
    """Every rank takes bins in the epoch's order."""
    MICRO_STEP = "micro-step"
    """Ranks wait at every step (FSDP, expert parallelism): in each step all ranks' bins cost about the same."""
    OPTIMIZER_STEP = "optimizer-step"
    """Ranks wait once in `accumulation` steps (DDP, ZeRO-1): their bins cost about the same over an optimizer step."""


def as_choice(name: str, kind: type[_Choice], value: object) -> _Choice:
    """Returns the member of an enum that `value` is or names, in any case and with - or _ between words.

    Example:
        >>> as_choice("balance", Balance, "Micro_Step")
        <Balance.MICRO_STEP: 'micro-step'>

    Args:
        name: the option's name, for the message.
        kind: the enum.
        value: a member, or its value.

    Raises:
        ValueError: there is no such member; the message lists them.
    """
    try:
        return kind(str(value).lower().replace("_", "-"))
    except ValueError:
        raise ValueError(parameter(name) + f" must be one of {', '.join(kind)}, got {quoted(value)}") from None
