"""What the server tells about a dataset, its takedown file and a stream of its bins, as frozen dataclasses.

Owns these classes: first those of which a `DatasetInfo` is made, then `DatasetInfo`, then `StreamHeader`. Their base
`Fact` fills each field from the message's field of the same name; `computed` gives the others. The messages, with the
unit and range of every field, are documented in v1/packing.proto.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from packhorse.topology import ContextRule, Skips
from packhorse.topology.checks import counted
from packhorse.types._fact import Fact
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
    """Number of ids in the file."""
    component: str = ""
    """In a mixture, the component that the ids belong to; empty otherwise."""
    token: int | None = None
    """The token that replaces each of their tokens; None if they are only masked from the loss."""
    seed: int | None = None
    """Seed of a run that had trained on them before `from_position`, and whose bins before it stay; None for no run."""
    from_position: int = 0
    """Position of that run from which on it is redacted: epoch · num_bins + position; 0 if there is no such run."""
    reason: str = ""
    """The reason that the file gives."""
    digest: str = ""
    """Digest of this redaction and of those before it in the file."""

    def __str__(self) -> str:
        """The redaction in one line."""
        of_component = f" of {self.component}" if self.component else ""
        action = "masked" if self.token is None else f"replaced by token {self.token}"
        in_run = (
            "" if self.seed is None else f", in the run of seed {self.seed} from position {self.from_position:,} on"
        )
        reason = f": {self.reason}" if self.reason else ""
        return f"{counted(self.num_ids, 'id')}{of_component} {action}{in_run}{reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenPositions(Fact):
    """Positions that a file leaves out; fields as in the protocol's TakedownSkip.

    Example:
        >>> TakenPositions(positions=Skips.parse(["1200:1300"]), epoch=2).positions.num_skipped
        100
    """

    MESSAGE: ClassVar = pb.TakedownSkip

    positions: Skips
    """The positions, as the epoch numbers them before anything is left out."""
    epoch: int | None = None
    """The only epoch without them; None for every epoch."""
    seed: int | None = None
    """Seed of the only run without them; None for every run."""
    reason: str = ""
    """The reason that the file gives."""

    @classmethod
    def computed(cls, message: Any) -> dict[str, Any]:
        """Returns the positions, for which the message has two fields: the first, and one after the last."""
        return {"positions": Skips(((message.first, message.end),))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Takedown(Fact):
    """The redactions and skips of a dataset's file NAME.takedown.toml.

    Example:
        >>> Takedown(redactions=(Redaction(num_ids=2),)).redactions[0].num_ids
        2
    """

    MESSAGE: ClassVar = pb.Takedown

    digest: str = ""
    """Digest of all redactions, which streams append to their own digests; empty if there is none."""
    redactions: tuple[Redaction, ...] = ()
    """Redactions in the file's order. If two name an id, the later one applies."""
    skips: tuple[TakenPositions, ...] = ()
    """Positions that are left out, in the file's order."""


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
    """The dataset's digest."""
    max_seq_len: int = 0
    """Capacity of the bins that the dataset was prepared with, in tokens; at most the mixture's."""
    num_bins: int = 0
    """Bins of the mixture that one epoch of the dataset makes."""
    num_sequences: int = 0
    """Sequences in one epoch of the dataset."""
    own_tokens: int = 0
    """Tokens of these sequences, without what `align` and `extra_tokens` add."""
    over_length: str = ""
    """What was done at prepare with sequences that do not fit a bin."""
    keep: str = "head"
    """Which end of a truncated sequence is in the plan."""
    id_column: str = ""
    """The input column of the ids; empty if an id is a row number."""
    key_column: str = ""
    """The input column of the keys; empty if sequences have only ids."""
    first_epoch: int = 0
    """In a stream's header: the dataset's own epoch at which the mixture's epoch begins."""
    first_position: int = 0
    """In a stream's header: the position in `first_epoch` at which the mixture's epoch begins, in [0, num_bins)."""
    num_taken: int = 0
    """In a stream's header: bins that the mixture's epoch takes from the dataset, from there on, over all ranks."""
    rows_per_bin: int = 1
    """Prepared bins of the dataset that are joined into a bin of the mixture, each as a row."""

    @property
    def end(self) -> int:
        """Where the taken bins end, counted from the beginning of `first_epoch`."""
        return self.first_position + self.num_taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Fact):
    """A range of positions of a run on a mixture, in which the weights stay the same.

    Example:
        >>> Stage(first_position=0, digest="3fa1", shares=("7/10", "3/10")).shares
        ('7/10', '3/10')
    """

    MESSAGE: ClassVar = pb.Stage

    first_position: int
    """First position of the stage, counted from the run's beginning: epoch · num_bins + position."""
    digest: str
    """Digest of the run up to the end of this stage."""
    shares: tuple[str, ...]
    """Exact share of the bins for each component, as a fraction such as "7/10"; together they are 1."""
    bins_per_draw: int = 1
    """Consecutive bins of one component: all bins of a step if whole steps are drawn, else 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceInfo(Fact):
    """Something that sequences need besides tokens, such as image tiles; fields as in the protocol's Resource.

    Example:
        >>> str(ResourceInfo(name="tiles", cap=48, total=900, most=12))
        '900 tiles, at most 12 a sequence and 48 a bin'
    """

    MESSAGE: ClassVar = pb.Resource

    name: str
    """Name of the resource, such as "tiles"."""
    cap: int | None = None
    """The most that a bin may have; None if there is no limit."""
    total: int = 0
    """Amount that all sequences need together."""
    most: int = 0
    """Largest amount that one sequence or group needs."""

    def __str__(self) -> str:
        """The resource in one line."""
        cap = "" if self.cap is None else f" and {self.cap:,} a bin"
        return f"{self.total:,} {self.name}, at most {self.most:,} a sequence{cap}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo(Fact):
    """A prepared dataset or a mixture, and its plan; fields as in the protocol's Dataset.

    Example:
        >>> from packhorse.client import connect
        >>> with connect("embedded:datasets") as client:
        ...     info = client.get_dataset("corpus")
        >>> info.num_sequences, info.num_bins, info.efficiency
        (4, 2, 1.0)
    """

    MESSAGE: ClassVar = pb.Dataset

    name: str
    """Name of the dataset's folder below the server's data root."""
    digest: str
    """Fingerprint of counts, options, templates and pools. Equal digests give equal bins."""
    max_seq_len: int
    """A bin's capacity in tokens."""
    num_sequences: int
    """Number of sequences."""
    num_bins: int
    """Bins in an epoch."""
    total_tokens: int
    """Sum of all rooms, in tokens."""
    efficiency: float
    """total_tokens / (num_bins · max_seq_len), in (0, 1]."""
    lower_bound: int
    """A number of bins below which no plan can go."""
    num_rooms: int
    """Number of distinct rooms; with resources, of classes of sizes."""
    num_templates: int
    """Number of distinct templates."""
    max_sequences_per_bin: int
    """The most sequences in any bin."""
    algorithm: str
    """Name of the packer that made the plan, such as "best-fit"."""
    ids_sum: tuple[int, int]
    """Fingerprint of all ids, as `packhorse.wire.ids_sum` makes it; (0, 0) for a mixture."""
    over_length: str
    """What was done at prepare with sequences that do not fit a bin: error, drop, truncate or split."""
    align: int = 1
    """A sequence's room is a multiple of this many tokens."""
    extra_tokens: int = 0
    """Tokens kept free in every room beside the sequence's own; -1 leaves out each sequence's last token."""
    keep: str = "head"
    """Which end of a truncated sequence is in the plan: head or tail."""
    id_column: str = ""
    """The input column of the ids; empty if an id is a row number."""
    key_column: str = ""
    """The input column of the keys; empty if sequences have only ids, and for a mixture."""
    plan_cut_off: bool = False
    """Whether a time limit ended planning early, so that the same input may give another plan next time."""
    own_tokens: int = 0
    """Tokens of the planned sequences, without what `align` and `extra_tokens` add."""
    over_length_sequences: int = 0
    """Sequences that were too long for a bin."""
    over_length_source_tokens: int = 0
    """All tokens of these sequences."""
    over_length_tokens: int = 0
    """Tokens of these sequences that are not in the plan, because they were dropped or cut off."""
    source: str = ""
    """The input of prepare, as the user named it; of paths only the last component."""
    skipped_rows: int = 0
    """Rows of the input that prepare left out."""
    skipped_by_reason: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Why rows were left out, such as "the length is null" → the number of these rows."""
    num_groups: int = 0
    """Number of groups; 0 if every sequence is planned by itself."""
    older_digests: tuple[str, ...] = ()
    """Digests of older versions of this dataset that can still be served, the oldest first."""
    components: tuple[Component, ...] = ()
    """The components of a mixture, in the order of `component_ids`; empty for a prepared dataset."""
    stages: tuple[Stage, ...] = ()
    """The stages of a mixture, in order."""
    takedown: Takedown | None = None
    """The dataset's takedown file; None if there is none."""
    context_rule: ContextRule | None = None
    """How several ranks share a bin; None if a rank takes a whole bin, or if the components of a mixture differ."""
    resources: tuple[ResourceInfo, ...] = ()
    """What the sequences need besides tokens, such as image tiles."""
    shares_prefixes: bool = False
    """Whether a prefix that sequences of a group share takes room only once, so that batches are trees."""
    has_tokens: bool = False
    """Whether the server can send the dataset's tokens, to loaders that have no token source of their own."""
    has_loss_mask: bool = False
    """Whether the tokens that the server sends come with a loss mask."""
    token_dtype: str = ""
    """NumPy's name of the type of the tokens in the server's corpus, such as uint16; empty if it is not known."""

    @classmethod
    def computed(cls, message: Any) -> dict[str, Any]:
        """Returns the two sums as a pair, and the context rule and the reasons as Python objects."""
        return {
            "ids_sum": (message.ids_sum_a, message.ids_sum_b),
            "context_rule": _context_rule(message),
            "skipped_by_reason": dict(sorted(message.skipped_by_reason.items())),  # maps have no order
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHeader(Fact):
    """What a server says about a stream before its first block; fields as in the protocol's StreamHeader.

    Example:
        >>> from packhorse.client import connect
        >>> with connect("embedded:datasets") as client, client.stream_bins("corpus") as stream:
        ...     stream.header.num_steps, stream.header.max_seq_len
        (2, 8)
    """

    MESSAGE: ClassVar = pb.StreamHeader

    digest: str
    """Digest of the dataset, and of what is skipped and redacted."""
    num_steps: int
    """Steps that every rank takes from start_position to the epoch's end."""
    num_bins: int
    """Bins of the whole epoch, over all ranks, without those that are skipped."""
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
    """The input column of the ids; empty if an id is a row number."""
    components: tuple[Component, ...] = ()
    """The components of a mixture, with the bins that the epoch takes of each; empty for a prepared dataset."""
    skipped: Skips = field(default_factory=Skips)
    """Positions that are left out of the epoch: those of the request and those of a takedown file."""
    context_rule: ContextRule | None = None
    """How several ranks share a bin, as in `DatasetInfo`."""
    shares_prefixes: bool = False
    """Whether a shared prefix takes room only once, as in `DatasetInfo`."""
    tokens_fingerprint: str = ""
    """Fingerprint of the token file that the dataset was prepared from, made by `packhorse.wire.tokens_fingerprint`;
    empty if it was not prepared from one such file."""
    tokens_sequences: int = 0
    """Sequences in that file; 0 if there is no fingerprint."""

    @classmethod
    def computed(cls, message: Any) -> dict[str, Any]:
        """Returns the skipped positions and the context rule as Python objects."""
        skipped = Skips.of((positions.first, positions.end) for positions in message.skipped)
        return {"skipped": skipped, "context_rule": _context_rule(message)}


def _context_rule(message: Any) -> ContextRule | None:
    """Returns the context rule of a message of a dataset or a header; None if it has none."""
    if not message.HasField("context_rule"):
        return None
    return ContextRule(**{field.name: getattr(message.context_rule, field.name) for field in fields(ContextRule)})
