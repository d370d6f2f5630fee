"""How a run is shaped, how servers are tried again and how lengths are packed on demand: options as objects.

Owns those of packing on demand; the others are re-exported from `packhorse.topology` and `packhorse.formats`.
"""

from dataclasses import dataclass

from packhorse.client.transport.requests import checked_balance, invalid
from packhorse.formats.asking import RetryPolicy
from packhorse.topology import (
    DEFAULT_COST_LINEAR,
    Balance,
    BatchPhase,
    BatchSchedule,
    RemainderPolicy,
    Skips,
    StreamMode,
    Topology,
)

__all__ = [
    "DEFAULT_PACKING",
    "Balance",
    "BatchPhase",
    "BatchSchedule",
    "PackOptions",
    "RemainderPolicy",
    "RetryPolicy",
    "Skips",
    "StreamMode",
    "Topology",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class PackOptions:
    """How lengths are packed on demand: by `Client.pack_sequences`, `pack_rollouts` and `pack_pairs`.

    Example:
        >>> PackOptions(algorithm="next-fit", balance="micro-step").balance
        <Balance.MICRO_STEP: 'micro-step'>

    Raises:
        InvalidRequestError: a field is out of range; names it.
    """

    algorithm: str = "best-fit"
    """The packer."""
    max_sequences_per_bin: int | None = None
    """The most sequences in a bin, or the most pairs; None for no limit."""
    balance: Balance | str = Balance.NONE
    """Where ranks wait for each other. "micro-step": at every step, so that its bins cost the same. "optimizer-step":
    once in the whole call, so that each rank's bins cost the same in sum."""
    cost_linear: int = DEFAULT_COST_LINEAR
    """Cost of a token beside attention: a sequence of L tokens costs cost_linear · L + L².
    `packhorse.client.cost_linear_of` computes a model's."""
    allow_empty: bool = False
    """Where there are fewer sequences than bins, the other bins are empty instead of an error raised."""

    def __post_init__(self) -> None:
        """Checks what needs no server; the service knows the packers and the largest numbers."""
        if not isinstance(self.algorithm, str):
            raise invalid("algorithm", f"must be a packer's name, got {type(self.algorithm).__name__}")
        if not isinstance(self.allow_empty, bool):
            raise invalid("allow_empty", f"must be True or False, got {type(self.allow_empty).__name__}")
        object.__setattr__(self, "balance", checked_balance("balance", self.balance))


DEFAULT_PACKING = PackOptions()
