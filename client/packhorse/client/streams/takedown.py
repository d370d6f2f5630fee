"""What a file takes away from a dataset or a mixture, as the service tells it.

Owns these facts as Python values; leaves what batches make of redactions to `batches` and audits to
`proof.epoch_audit`.
"""

from dataclasses import dataclass

from packhorse.topology import Skips
from packhorse.topology.choices import counted
from packhorse.v1 import packing_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """Sequences whose tokens are masked from the loss, or replaced; fields as in the protocol's Redaction.

    Example:
        >>> str(Redaction(num_ids=2, seed=7, from_position=500, reason="private", component="web"))
        '2 ids of web masked, in the run of seed 7 from position 500 on: private'
    """

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
class TakenPositions:
    """Positions that a file leaves out; fields as in the protocol's TakedownSkip.

    Example:
        >>> TakenPositions(positions=Skips.parse(["1200:1300"]), epoch=2).positions.num_skipped
        100
    """

    positions: Skips
    """Of the whole epoch."""
    epoch: int | None = None
    """Of this epoch; None for every one."""
    seed: int | None = None
    """Of the run of this seed; None for every run."""
    reason: str = ""
    """Why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Takedown:
    """What NAME.takedown.toml takes away.

    Example:
        >>> Takedown(redactions=(Redaction(num_ids=2),)).redactions[0].num_ids
        2
    """

    digest: str = ""
    """Of all redactions: it ends the digests of streams."""
    redactions: tuple[Redaction, ...] = ()
    """In order: where two name an id, the later one holds."""
    skips: tuple[TakenPositions, ...] = ()
    """Positions that are left out."""


def read_takedown(takedown: pb.Takedown) -> Takedown:
    """Returns the takedown of an answer."""
    return Takedown(
        digest=takedown.digest,
        redactions=tuple(
            Redaction(
                num_ids=each.num_ids,
                component=each.component,
                token=each.token if each.HasField("token") else None,
                seed=each.seed if each.HasField("seed") else None,
                from_position=each.from_position,
                reason=each.reason,
                digest=each.digest,
            )
            for each in takedown.redactions
        ),
        skips=tuple(
            TakenPositions(
                positions=Skips(((each.first, each.end),)),
                epoch=each.epoch if each.HasField("epoch") else None,
                seed=each.seed if each.HasField("seed") else None,
                reason=each.reason,
            )
            for each in takedown.skips
        ),
    )
