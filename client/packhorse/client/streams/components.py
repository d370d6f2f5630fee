"""What a mixture is made of, as the service tells it.

Owns the facts of one component; leaves what batches make of them to `batches` and audits to `proof.epoch_audit`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from packhorse.v1 import packing_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One of a mixture's prepared datasets; fields as in the protocol's Component.

    Example:
        >>> Component(name="web", num_bins=100, first_epoch=1, first_position=30, num_taken=90).end
        120
    """

    name: str
    """The dataset's name."""
    digest: str = ""
    """Its digest."""
    max_seq_len: int = 0
    """Capacity of a bin that it was prepared with, in tokens."""
    num_bins: int = 0
    """Bins of the mixture that each of its own epochs makes."""
    num_sequences: int = 0
    """Sequences in each of its own epochs."""
    own_tokens: int = 0
    """Tokens of these sequences themselves."""
    over_length: str = ""
    """What was done at prepare with sequences that do not fit a bin."""
    keep: str = "head"
    """Which end of a truncated sequence is in the plan."""
    id_column: str = ""
    """The input's column that ids come from; empty where an id is a row number."""
    key_column: str = ""
    """The input's column that keys come from; empty where sequences have ids only."""
    first_epoch: int = 0
    """In a stream's header: its own epoch when the mixture's epoch begins."""
    first_position: int = 0
    """The position there."""
    num_taken: int = 0
    """Likewise, how many of its bins from there on the mixture's epoch takes, over all ranks."""
    rows_per_bin: int = 1
    """How many of the bins that it was prepared with are joined into one of the mixture, each a row of it."""

    @property
    def end(self) -> int:
        """Where the taken bins end, counted from the beginning of `first_epoch`."""
        return self.first_position + self.num_taken


def read_components(components: Iterable[pb.Component]) -> tuple[Component, ...]:
    """Returns the components of an answer."""
    return tuple(
        Component(
            name=component.name,
            digest=component.digest,
            max_seq_len=component.max_seq_len,
            num_bins=component.num_bins,
            num_sequences=component.num_sequences,
            own_tokens=component.own_tokens,
            over_length=component.over_length,
            keep=component.keep or "head",
            id_column=component.id_column,
            key_column=component.key_column,
            first_epoch=component.first_epoch,
            first_position=component.first_position,
            num_taken=component.num_taken,
            rows_per_bin=component.rows_per_bin or 1,
        )
        for component in components
    )
