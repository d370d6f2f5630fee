"""What crosses the wire about a dataset, and about a stream of its bins.

Owns `DatasetInfo`, `Component`, `Stage` and `StreamHeader`; leaves what is taken away by file to `takedown`.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from packhorse.topology import Skips
from packhorse.types.fact import Fact
from packhorse.types.takedown import Takedown
from packhorse.v1 import packing_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Component(Fact):
    """One of a mixture's prepared datasets; fields as in the protocol's Component.

    Example:
        >>> Component(name="web", num_bins=100, first_epoch=1, first_position=30, num_taken=90).end
        120
    """

    MESSAGE: ClassVar = pb.Component

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Fact):
    """Positions of a mixture's run with the same weights.

    Example:
        >>> Stage(first_position=0, digest="3fa1", shares=("7/10", "3/10")).shares
        ('7/10', '3/10')
    """

    MESSAGE: ClassVar = pb.Stage

    first_position: int
    """Its first position of the run, which is epoch · num_bins + position."""
    digest: str
    """Of the run up to this stage's end."""
    shares: tuple[str, ...]
    """Share of the bins that each component has, exactly."""
    bins_per_draw: int = 1
    """How many bins in a row are of one component: those of a step, where whole steps are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo(Fact):
    """A prepared dataset and its plan; fields as in the protocol's Dataset.

    Example:
        >>> from packhorse.client import connect
        >>> with connect("embedded:datasets") as client:
        ...     info = client.get_dataset("corpus")
        >>> info.num_sequences, info.num_bins, info.efficiency
        (4, 2, 1.0)
    """

    MESSAGE: ClassVar = pb.Dataset

    name: str
    digest: str
    max_seq_len: int
    num_sequences: int
    num_bins: int
    total_tokens: int
    efficiency: float
    lower_bound: int
    num_lengths: int
    num_templates: int
    max_sequences_per_bin: int
    algorithm: str
    ids_sum: tuple[int, int]
    over_length: str
    align: int = 1
    extra_tokens: int = 0
    keep: str = "head"
    id_column: str = ""
    key_column: str = ""
    """The input's column that keys come from; empty where sequences have ids only, and of a mixture."""
    plan_cut_off: bool = False
    own_tokens: int = 0
    over_length_sequences: int = 0
    over_length_source_tokens: int = 0
    over_length_tokens: int = 0
    source: str = ""
    skipped_rows: int = 0
    num_groups: int = 0
    """Groups of sequences that share a bin; 0 where every sequence is planned by itself."""
    older_digests: tuple[str, ...] = ()
    components: tuple[Component, ...] = ()
    """Of a mixture, what it is made of, in the order of `component_ids`; empty for a prepared dataset."""
    stages: tuple[Stage, ...] = ()
    """Of a mixture, its stages."""
    takedown: Takedown | None = None
    """What is taken away from it by file; None where nothing is."""

    @classmethod
    def computed(cls, message: Any) -> dict[str, Any]:
        """Returns what the message holds in another form."""
        return {"ids_sum": (message.ids_sum_a, message.ids_sum_b)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHeader(Fact):
    """Facts about a stream.

    Example:
        >>> from packhorse.client import connect
        >>> with connect("embedded:datasets") as client, client.stream_bins("corpus") as stream:
        ...     stream.header.num_steps, stream.header.max_seq_len
        (2, 8)
    """

    MESSAGE: ClassVar = pb.StreamHeader

    digest: str
    """Digest of the dataset."""
    num_steps: int
    """Steps that every rank takes from start_position to the epoch's end."""
    num_bins: int
    """Bins of the whole epoch, over all ranks."""
    num_bins_dropped: int
    """Bins that the DROP policy leaves out of this epoch; 0 under every other policy."""
    max_seq_len: int
    """A bin's capacity in tokens."""
    max_sequences_per_bin: int
    """The most sequences in any bin."""
    align: int
    """A sequence's room in its bin is a multiple of this many tokens."""
    extra_tokens: int
    """Tokens kept free in every room beside the sequence's own, before rounding."""
    over_length: str
    """What was done at prepare with sequences that do not fit a bin: error, drop, truncate or split."""
    keep: str
    """Which end of a truncated sequence is in the plan: head or tail."""
    id_column: str
    """The input's column that ids come from; empty where an id is a row number."""
    components: tuple[Component, ...] = ()
    """Of a mixture, what it is made of, with what the epoch takes of each; empty for a prepared dataset."""
    skipped: Skips = field(default_factory=Skips)
    """Positions that are left out of the epoch: those of the request and those that a file takes away."""

    @classmethod
    def computed(cls, message: Any) -> dict[str, Any]:
        """Returns what the message holds in another form."""
        return {"skipped": Skips.of((each.first, each.end) for each in message.skipped)}
