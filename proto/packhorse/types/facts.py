"""Each fact that crosses the wire: a dataset, what a file takes away from it, and a stream of its bins.

Owns the classes, and `Fact`, which reads each from its message by the names of the fields.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self

from packhorse.topology import ContextRule, Skips
from packhorse.topology.choices import counted
from packhorse.v1 import packing_pb2 as pb


class Fact:
    """A frozen dataclass that is read from a message.

    Its fields have the names of the message's fields. A field that is unset, or zero, has the default of the class.

    Example:
        >>> from packhorse.types import Stage
        >>> from packhorse.v1 import packing_pb2 as pb
        >>> Stage.from_proto(pb.Stage(digest="3fa1", shares=["1"]))
        Stage(first_position=0, digest='3fa1', shares=('1',), bins_per_draw=1)
    """

    __slots__ = ()

    MESSAGE: ClassVar[Any]
    """Class of its message."""
    _classes: ClassVar[dict[str, type["Fact"]]] = {}

    def __init_subclass__(cls) -> None:
        """Remembers which class reads which message, for messages inside messages."""
        Fact._classes[cls.MESSAGE.DESCRIPTOR.full_name] = cls

    @classmethod
    def computed(cls, message: Any) -> dict[str, Any]:
        """Returns what the message holds in another form, by field of the class; nothing by default."""
        return {}

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        """Returns the facts of a message, which is one of `MESSAGE`."""
        values = cls.computed(message)
        own = _fields_of(cls)  # type: ignore[arg-type] # a class is hashable
        return cls(**{each.name: each.value(message) for each in own if each.name not in values}, **values)


class _MessageField(NamedTuple):
    """How a field is read from a message."""

    name: str
    has_presence: bool
    is_repeated: bool
    nested: Callable[[Any], Any] | None
    """Reads a message inside the message."""
    default: Any

    def value(self, message: Any) -> Any:
        if self.has_presence and not message.HasField(self.name):
            return None
        value = getattr(message, self.name)
        if self.is_repeated:
            return tuple(map(self.nested, value) if self.nested else value)
        if self.nested:
            return self.nested(value)
        return value if value or self.has_presence or self.default is MISSING else self.default


@cache
def _fields_of(cls: Any) -> list[_MessageField]:
    """Returns the fields of a class that its message has."""
    empty, found = cls.MESSAGE(), []
    for each in fields(cls):
        if (declared := empty.DESCRIPTOR.fields_by_name.get(each.name)) is None:
            continue
        inside = declared.message_type and Fact._classes.get(declared.message_type.full_name)
        is_repeated = not declared.has_presence and not isinstance(
            getattr(empty, each.name), bool | int | float | str | bytes
        )
        nested = inside.from_proto if inside else None
        found.append(_MessageField(each.name, declared.has_presence, is_repeated, nested, each.default))
    return found


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
    """In a mixture, their component."""
    token: int | None = None
    """The token that replaces each of their tokens; None if they are only masked from the loss."""
    seed: int | None = None
    """The seed of a run that had trained on them before `from_position`."""
    from_position: int = 0
    """A position of that run: epoch · num_bins + position."""
    reason: str = ""
    """Why."""
    digest: str = ""
    """Of this redaction and those before it in the file."""

    def __str__(self) -> str:
        """The redaction in one line."""
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
    """The redactions and skips of NAME.takedown.toml.

    Example:
        >>> Takedown(redactions=(Redaction(num_ids=2),)).redactions[0].num_ids
        2
    """

    MESSAGE: ClassVar = pb.Takedown

    digest: str = ""
    """Of all redactions; streams append it to their digests."""
    redactions: tuple[Redaction, ...] = ()
    """In order. If two name an id, the later one applies."""
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
    """The input column of the ids; empty if an id is a row number."""
    key_column: str = ""
    """The input column of the keys; empty if sequences have only ids."""
    first_epoch: int = 0
    """In a stream's header: its own epoch at the beginning of the mixture's epoch."""
    first_position: int = 0
    """The position there."""
    num_taken: int = 0
    """In a stream's header: the number of its bins, from there on, in the mixture's epoch, over all ranks."""
    rows_per_bin: int = 1
    """Number of its prepared bins that are joined into a bin of the mixture, each as a row."""

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
    """Digest of the run up to the end of this stage."""
    shares: tuple[str, ...]
    """Share of the bins that each component has, exactly."""
    bins_per_draw: int = 1
    """Number of consecutive bins of one component: those of a step, if whole steps are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceInfo(Fact):
    """What sequences need besides tokens; fields as in the protocol's Resource.

    Example:
        >>> str(ResourceInfo(name="tiles", cap=48, total=900, most=12))
        '900 tiles, at most 12 a sequence and 48 a bin'
    """

    MESSAGE: ClassVar = pb.Resource

    name: str
    """Such as "tiles"."""
    cap: int | None = None
    """The most that a bin may have; None if there is no limit."""
    total: int = 0
    """The amount of all sequences."""
    most: int = 0
    """The largest amount of one sequence or group."""

    def __str__(self) -> str:
        """The resource in one line."""
        cap = "" if self.cap is None else f" and {self.cap:,} a bin"
        return f"{self.total:,} {self.name}, at most {self.most:,} a sequence{cap}"


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
    num_rooms: int
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
    """The input column of the keys; empty if sequences have only ids, and for a mixture."""
    plan_cut_off: bool = False
    own_tokens: int = 0
    over_length_sequences: int = 0
    over_length_source_tokens: int = 0
    over_length_tokens: int = 0
    source: str = ""
    skipped_rows: int = 0
    skipped_by_reason: Mapping[str, int] = field(default_factory=dict, hash=False)
    """What is wrong with these rows → how many of them."""
    num_groups: int = 0
    """Number of groups; 0 if every sequence is planned by itself."""
    older_digests: tuple[str, ...] = ()
    components: tuple[Component, ...] = ()
    """The components of a mixture, in the order of `component_ids`; empty for a prepared dataset."""
    stages: tuple[Stage, ...] = ()
    """The stages of a mixture."""
    takedown: Takedown | None = None
    """Its takedown file; None if there is none."""
    context_rule: ContextRule | None = None
    """How several ranks share a bin; None if a rank takes a whole bin, or if the components of a mixture differ."""
    resources: tuple[ResourceInfo, ...] = ()
    """What its sequences need besides tokens, such as image tiles."""
    shares_prefixes: bool = False
    """Whether what a group's sequences begin with takes room once, so that batches are trees."""
    has_tokens: bool = False
    """Whether the server sends its tokens to loaders that name none."""
    has_loss_mask: bool = False
    """Whether these come with a loss mask."""
    token_dtype: str = ""
    """NumPy's name of the type in which the server's corpus holds them, such as uint16; empty if it is not known."""

    @classmethod
    def computed(cls, message: Any) -> dict[str, Any]:
        """Returns what the message holds in another form."""
        return {
            "ids_sum": (message.ids_sum_a, message.ids_sum_b),
            "context_rule": _context_rule(message),
            "skipped_by_reason": dict(sorted(message.skipped_by_reason.items())),  # maps have no order
        }


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
    """The input column of the ids; empty if an id is a row number."""
    components: tuple[Component, ...] = ()
    """The components of a mixture, with the bins that the epoch takes of each; empty for a prepared dataset."""
    skipped: Skips = field(default_factory=Skips)
    """Positions that are left out of the epoch: those of the request and those of a takedown file."""
    context_rule: ContextRule | None = None
    """As in `DatasetInfo`."""
    shares_prefixes: bool = False
    """As in `DatasetInfo`."""
    tokens_fingerprint: str = ""
    """Of the tokens that the dataset was prepared from, as `packhorse.wire` makes it; empty if it is not known."""
    tokens_sequences: int = 0
    """Sequences in their file; 0 if there is no fingerprint."""

    @classmethod
    def computed(cls, message: Any) -> dict[str, Any]:
        """Returns what the message holds in another form."""
        skipped = Skips.of((each.first, each.end) for each in message.skipped)
        return {"skipped": skipped, "context_rule": _context_rule(message)}


def _context_rule(message: Any) -> ContextRule | None:
    if not message.HasField("context_rule"):
        return None
    return ContextRule(**{each.name: getattr(message.context_rule, each.name) for each in fields(ContextRule)})


def skipped_text(rows: int, by_reason: Mapping[str, int] | None) -> str:
    """Returns how many rows were left out, and why.

    Example:
        >>> from packhorse.types import skipped_text
        >>> skipped_text(1203, {"the id is null": 3, "the length is null": 1200})
        '1,203 rows, 3 where the id is null, 1,200 where the length is null'
    """
    reasons = (f"{count:,} where {reason}" for reason, count in (by_reason or {}).items())
    return ", ".join([counted(rows, "row"), *reasons])
