"""What a file takes away from a dataset or a mixture.

Owns these facts; leaves what batches make of redactions to `packhorse.client.batches`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from packhorse.topology import Skips
from packhorse.topology.choices import counted
from packhorse.types.fact import Fact
from packhorse.v1 import packing_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction(Fact):
    """Sequences whose tokens are masked from the loss, or replaced; fields as in the protocol's Redaction.

    Example:
        >>> str(Redaction(num_ids=2, seed=7, from_position=500, reason="private", component="web"))
        '2 ids of web masked, in the run of seed 7 from position 500 on: private'
    """

    MESSAGE: ClassVar = pb.Redaction

    num_ids: int
    """How many ids it names."""
    component: str = ""
    """Of a mixture, the component that they are of."""
    token: int | None = None
    """What replaces each of their tokens; None where they are masked from the loss only."""
    seed: int | None = None
    """The run of this seed had trained on them before `from_position`."""
    from_position: int = 0
    """A position of that run: epoch · num_bins + position."""
    reason: str = ""
    """Why."""
    digest: str = ""
    """Of it and those before it in its file."""

    def __str__(self) -> str:
        """What is taken away, in one line."""
        of_component = f" of {self.component}" if self.component else ""
        action = "masked" if self.token is None else f"replaced by token {self.token}"
        since = (
            f", in the run of seed {self.seed} from position {self.from_position:,} on" if self.seed is not None else ""
        )
        return f"{counted(self.num_ids, 'id')}{of_component} {action}{since}" + (
            f": {self.reason}" if self.reason else ""
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenPositions(Fact):
    """Positions that a file leaves out; fields as in the protocol's TakedownSkip.

    Example:
        >>> TakenPositions(positions=Skips.parse(["1200:1300"]), epoch=2).positions.num_skipped
        100
    """

    MESSAGE: ClassVar = pb.TakedownSkip

    positions: Skips
    """Of the whole epoch."""
    epoch: int | None = None
    """Of this epoch; None for every one."""
    seed: int | None = None
    """Of the run of this seed; None for every run."""
    reason: str = ""
    """Why."""

    @classmethod
    def computed(cls, message: Any) -> dict[str, Any]:
        """Returns what the message holds in another form."""
        return {"positions": Skips(((message.first, message.end),))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Takedown(Fact):
    """What NAME.takedown.toml takes away.

    Example:
        >>> Takedown(redactions=(Redaction(num_ids=2),)).redactions[0].num_ids
        2
    """

    MESSAGE: ClassVar = pb.Takedown

    digest: str = ""
    """Of all redactions: it ends the digests of streams."""
    redactions: tuple[Redaction, ...] = ()
    """In order: where two name an id, the later one holds."""
    skips: tuple[TakenPositions, ...] = ()
    """Positions that are left out."""
