"""The manifest of a prepared folder: facts, the plan's options with their defaults, and checksums.

Owns its fields, its one rendering as JSON and the refusal of any other; leaves the files beside it to `layout`.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from packhorse.dataset._fields import LATER, as_object, check_fields
from packhorse.dataset.plain_files import PreparedDatasetError
from packhorse.parameters import parameter
from packhorse.topology import DEFAULT_COST_CAP_PERCENT, LEAST_EXTRA_TOKENS, ContextRule, RoomRule

FORMAT_VERSION = 1
"""Version of the folder's layout."""

EPOCH_VERSION = 1
"""Version of the epoch function: the same plan under another version gives other bins, hence another digest."""

MOST_MANIFEST_BYTES = 1 << 20
"""A larger file is no manifest."""

_DIGEST = re.compile("[0-9a-f]{16}(-[0-9a-f]{16}){3}")
_SHA256 = re.compile("[0-9a-f]{64}")
_MOST = 2**63 - 1

OverLength = Literal["error", "drop", "truncate", "split"]
"""Treatment of sequences that are too long for a bin."""

Keep = Literal["head", "tail"]
"""Which end of a truncated sequence stays in the plan."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of a plan: with the counts, they determine it."""

    max_seq_len: int
    """A bin's capacity in tokens, in [1, 2^31)."""
    algorithm: str = "auto"
    """The packer: "auto", or a name in `packhorse.packing.PACKERS`."""
    max_sequences_per_bin: int | None = None
    """The most sequences in a bin. By default there is no limit."""
    over_length: OverLength = "error"
    """What happens to a sequence longer than max_seq_len. "error" refuses it, "drop" leaves it out, "truncate" keeps as
    many of its tokens as fit, and "split" keeps all, in pieces, but refuses it if it takes of a resource. The manifest
    counts these sequences and the lost tokens, and over_length.npy lists them.
    """
    keep: Keep = "head"
    """Which end of a truncated sequence stays: "head", its first tokens, or "tail", its last."""
    align: int = 1
    """A sequence's room in its bin is a multiple of this many tokens, as context and tensor parallelism need."""
    extra_tokens: int = 0
    """Tokens kept free for each sequence in addition to its own, before rounding (for BOS, EOS). -1 leaves out the last
    token of each, which trainers that shift labels predict and never read.
    """
    tokens_per_rank: int | None = field(default=None, metadata=LATER)
    """For dynamic context parallelism: each rank computes this many tokens at a time, and max_seq_len / tokens_per_rank
    ranks, a power of two, share a bin. By default a rank takes a whole bin.
    """
    cost_cap_percent: int | None = field(default=None, metadata=LATER)
    """With `tokens_per_rank`: the most that sequences may cost on each of their ranks, in percent of a rank full of
    short sequences. A sequence that costs more gets more ranks than its tokens need. By default 300.
    """

    @property
    def context(self) -> ContextRule | None:
        """How bins are laid over groups of ranks; None if a rank takes a bin.

        Raises:
            ValueError: the options do not make a rule.
        """
        if self.tokens_per_rank is None:
            return None
        ranks, rest = divmod(self.max_seq_len, max(1, self.tokens_per_rank))
        if self.tokens_per_rank < 1 or rest or ranks & (ranks - 1):
            raise ValueError(
                parameter("max_seq_len")
                + f" {self.max_seq_len} must be a power of two times "
                + parameter("tokens_per_rank")
                + f" {self.tokens_per_rank}"
            )
        cap = DEFAULT_COST_CAP_PERCENT if self.cost_cap_percent is None else self.cost_cap_percent
        return ContextRule(self.tokens_per_rank, ranks, cap)

    @property
    def rooms(self) -> RoomRule:
        """The rule from a sequence's length to its room in a bin."""
        return RoomRule(self.max_seq_len, self.align, self.extra_tokens)


@dataclass(frozen=True, kw_only=True)
class OverLengthLedger:
    """What the over-length policy did."""

    sequences: int = 0
    """Sequences that were too long."""
    source_tokens: int = 0
    """All their tokens."""
    tokens: int = 0
    """Those of them that are not in the plan because of the policy."""
    pieces: int = 0
    """Pieces that they were split into; 0 under every other policy."""
    over_cap: int = field(default=0, metadata=LATER)
    """Sequences among them that fit max_seq_len and take more of a resource than its cap, alone or as a group."""

    def __add__(self, other: "OverLengthLedger") -> "OverLengthLedger":
        """Returns what the policy did to both."""
        return OverLengthLedger(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )


MOST_LISTED = 100
"""Files and skipped rows that a manifest names at most; where there are more, a file beside it names all."""


@dataclass(frozen=True, kw_only=True)
class InputRecord:
    """A file that was read."""

    name: str
    """Its path below the folder that all of them are in."""
    size_bytes: int
    """Its size."""
    modified_ns: int
    """When it was last written to, in nanoseconds since 1970."""
    rows: int
    """Its rows."""
    etag: str | None = field(default=None, metadata=LATER)
    """What an object store calls this version of it, its ETag or generation; None for a file."""


@dataclass(frozen=True, kw_only=True)
class SkippedRow:
    """A row that was left out because something is wrong with it."""

    file: str
    """Its file, as in `Inputs.files`."""
    row: int
    """Its row there, 0-based."""
    reason: str
    """What is wrong."""


@dataclass(frozen=True, kw_only=True)
class SkippedRows:
    """The rows that were left out."""

    rows: int = 0
    """How many."""
    first: tuple[SkippedRow, ...] = ()
    """The first of them; skipped.jsonl names all where there are more."""
    by_reason: dict[str, int] | None = field(default=None, metadata=LATER)
    """What is wrong → how many of them; None if none was left out, or an earlier release left one out."""


@dataclass(frozen=True, kw_only=True)
class TokensRecord:
    """Where a dataset's tokens are, so that a trainer finds them from the folder."""

    path: str
    """The token file, or the folder of a table, relative to the dataset's folder."""
    fingerprint: str
    """Of some sequences, as `packhorse.wire.tokens_fingerprint` makes it: other tokens of the same lengths have another
    one.
    """
    column: str | None = field(default=None, metadata=LATER)
    """The column of tokens; None in a file without columns."""
    dtype: str | None = field(default=None, metadata=LATER)
    """NumPy's name of the type of a token, such as uint16; None if it is not known."""
    has_loss_mask: bool | None = field(default=None, metadata=LATER)
    """Whether a loss mask lay beside them; None if it is not known."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The input of a dataset."""

    kind: str
    """Its kind: Parquet, Arrow, Megatron, …; for lengths in memory, the name of the Python type."""
    length_column: str | None
    """The column of lengths or tokens that was read; None if there are no columns."""
    rows: int
    """Rows in all files."""
    num_files: int
    """Files that were read."""
    files: tuple[InputRecord, ...]
    """The first of them, in the order that numbers rows; inputs.jsonl names all where there are more."""
    skipped: SkippedRows = SkippedRows()
    """The rows that were left out, each for a reason."""
    left_out: dict[str, int] | None = field(default=None, metadata=LATER)
    """What `packhorse tokenize` left out of the token files → how many rows or turns; None if it says nothing."""
    tokens: TokensRecord | None = field(default=None, metadata=LATER)
    """The input's tokens; None if they are not on a disk, or several files of different folders."""


@dataclass(frozen=True, kw_only=True)
class GroupRecord:
    """The groups of a dataset whose plan is over groups."""

    by: str
    """What says which rows are a group."""
    num_groups: int
    """Groups in the plan."""
    num_dropped: int
    """Groups that were too long for a bin and left out, with all their sequences."""
    most_sequences: int
    """Sequences of the largest group."""
    max_sequences_per_bin: int
    """No bin of the plan has more sequences."""
    ids_ascend: bool
    """Whether ids ascend from group to group, so that no file holds their order."""
    num_dropped_listed: int = field(default=0, metadata=LATER)
    """Groups left out that dropped_groups.npy holds: all, but none of an earlier release or of groups by size."""
    shared_tokens: int | None = field(default=None, metadata=LATER)
    """Tokens without room, because another sequence of their group has them; None if prefixes are not shared."""


@dataclass(frozen=True, kw_only=True)
class ResourceRecord:
    """What sequences take of a bin beside tokens, such as tiles of images."""

    name: str
    """Of the resource."""
    column: str
    """The column of the input that says how much of it each sequence takes."""
    cap: int | None
    """The most that a bin may have; None if there is no limit."""
    total: int
    """The amount of all sequences."""
    most: int
    """The most that one takes, or one group."""
    cost: int = field(default=0, metadata=LATER)
    """What one of it costs where ranks are balanced, in the unit of a topology's `cost_linear`."""


@dataclass(frozen=True, kw_only=True)
class KeyRecord:
    """The keys of a dataset whose sequences have some: names that their owner gave them."""

    column: str
    """The column of the input that they come from."""
    num_keys: int
    """How many there are: one for every row of the input, also of those that are not in the plan."""
    num_bytes: int
    """Their bytes in UTF-8."""
    has_ids: bool = field(default=False, metadata=LATER)
    """Whether key_ids.npy tells the id of each; else it is its entry, counted from 0."""


@dataclass(frozen=True, kw_only=True)
class SequenceFacts:
    """Facts that were counted of a dataset's sequences."""

    num_sequences: int
    """Number of sequences in the plan; each piece of a split one counts."""
    own_tokens: int
    """The sequences' own tokens among them."""
    id_dtype: Literal["uint32", "int64"]
    """Type of ids, in pools.npy and in messages; in a grouped dataset pools.npy holds groups' numbers."""
    start_dtype: Literal["uint32", "int64"] | None = None
    """Type of starts.npy, the first token of each entry; None if all are 0 and there is no such file."""
    ids_sum_a: int = 0
    """Order-independent fingerprint of the ids and first tokens, see `packhorse.wire.ids_sum`."""
    ids_sum_b: int = 0
    """Its second half."""
    over_length: OverLengthLedger
    """What the over-length policy did."""


@dataclass(frozen=True, kw_only=True)
class Facts(SequenceFacts):
    """All facts of a manifest beside the plan."""

    source: str
    """Names of the input, as the user gave them (last components only)."""
    id_column: str | None
    """The column of `source` that ids come from; None if an id is a row number."""
    inputs: Inputs | None = field(default=None, metadata=LATER)
    """The input, file by file; None in a dataset of an earlier release."""
    groups: GroupRecord | None = field(default=None, metadata=LATER)
    """Its groups; None if every sequence is planned by itself."""
    resources: tuple[ResourceRecord, ...] = field(default=(), metadata=LATER)
    """What its sequences take of a bin beside tokens. Its plan is then over classes of sizes, and every sequence is in
    a group, if only its own."""
    rounding_tokens: int = field(default=0, metadata=LATER)
    """By how many tokens these classes are larger than what is in them; no bin has them."""
    keys: KeyRecord | None = field(default=None, metadata=LATER)
    """Its sequences' keys; None if they have ids only."""
    version: int = field(default=1, metadata=LATER)
    """Which version of a growing dataset it is, counted from 1; appending makes the next one."""


@dataclass(frozen=True, kw_only=True)
class Manifest(Facts):
    """The manifest of a prepared folder: facts that were counted, the plan, and the files."""

    options: PlanOptions
    """Options of the plan."""
    algorithm: str
    """The packer that made the plan."""
    num_bins: int
    """Number of bins in an epoch."""
    total_tokens: int
    """Sum of all rooms."""
    total_capacity: int
    """num_bins · max_seq_len."""
    efficiency: float
    """total_tokens / total_capacity."""
    lower_bound: int
    """No plan has fewer bins."""
    num_rooms: int
    """Number of distinct rooms; with resources, of classes of sizes."""
    num_templates: int
    """Number of distinct templates."""
    plan_cut_off: bool
    """Whether a time limit ended planning early: the same input may then give another plan and digest next time."""
    checksums: dict[str, str]
    """File name → SHA-256 of its bytes, in hexadecimal."""
    digest: str
    """Fingerprint of the dataset and its plan."""
    format_version: int = FORMAT_VERSION
    """Version of the folder's layout."""
    epoch_version: int = EPOCH_VERSION
    """Version of the epoch function."""

    @property
    def max_seq_len(self) -> int:
        """A bin's capacity in tokens."""
        return self.options.max_seq_len

    @property
    def pool_shape(self) -> tuple[str, tuple[int]]:
        """Type and shape of pools.npy."""
        if self.groups is None:
            return self.id_dtype, (self.num_sequences,)
        return "uint32" if self.groups.num_groups <= 2**32 else "int64", (self.groups.num_groups,)

    @property
    def shares_prefixes(self) -> bool:
        """Whether sequences of a group share what they begin with."""
        return self.groups is not None and self.groups.shared_tokens is not None

    @property
    def is_grouped(self) -> bool:
        """Whether sequences share a bin by group, as the user asked."""
        return self.groups is not None and not (self.resources and self.groups.most_sequences == 1)

    @property
    def fed_tokens(self) -> int:
        """The sequences' own tokens that bins hold: all, or without each one's last if `extra_tokens` is -1.

        With -1 and `align`, a sequence of one token, which keeps its place, counts as none.
        """
        if self.options.extra_tokens >= 0:
            return self.own_tokens
        return self.total_tokens if self.options.align == 1 else self.own_tokens - self.num_sequences

    @property
    def capacities(self) -> list[int]:
        """Of a bin: tokens, and each resource with a cap."""
        return [self.max_seq_len, *(each.cap for each in self.resources if each.cap is not None)]

    def render(self) -> bytes:
        """Returns the manifest's only valid bytes; they end with a checksum of themselves."""
        content = as_object(self)
        return _render({**content, "checksum": _checksum(content)})

    @classmethod
    def parse(cls, data: bytes, name: str) -> "Manifest":
        """Reads what `render` wrote.

        Args:
            data: the file's bytes.
            name: the file, as messages should call it.

        Raises:
            PreparedDatasetError: the bytes are not exactly a rendered manifest of a known version.
        """
        try:
            content = json.loads(data)
            version = content["format_version"]
            stated = content.pop("checksum", None)
            is_sound = stated == _checksum(content) and _render({**content, "checksum": stated}) == data
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise PreparedDatasetError(f"{name} is not a manifest: {error!r}") from None
        if version != FORMAT_VERSION:
            is_newer = isinstance(version, int) and version > FORMAT_VERSION
            newer = "a newer release wrote it; serve it with that one, or "
            raise PreparedDatasetError(
                f"{name} has format version {version!r}, this release reads {FORMAT_VERSION}: "
                f"{newer if is_newer else ''}prepare the dataset again with this one"
            )
        if not is_sound:
            raise PreparedDatasetError(f"{name} was altered: its content does not match its checksum")
        try:
            check_fields(cls, content)
        except ValueError as error:
            raise PreparedDatasetError(f"{name} {error}: prepare the dataset again with this release") from None
        if content["epoch_version"] != EPOCH_VERSION:
            raise PreparedDatasetError(
                f"{name} was planned for epoch version {content['epoch_version']!r}, this release computes "
                f"{EPOCH_VERSION}: prepare the dataset again"
            )
        content["options"] = PlanOptions(**content["options"])
        content["over_length"] = OverLengthLedger(**content["over_length"])
        if "inputs" in content:
            content["inputs"] = _inputs(content["inputs"])
        if "groups" in content:
            content["groups"] = GroupRecord(**content["groups"])
        content["resources"] = tuple(ResourceRecord(**each) for each in content.get("resources", ()))
        if "keys" in content:
            content["keys"] = KeyRecord(**content["keys"])
        manifest = cls(**content)
        for what, holds in manifest._rules():
            if not holds:
                raise PreparedDatasetError(f"{name} breaks the rule that {what}; prepare the dataset again")
        return manifest

    def _rules(self) -> Iterator[tuple[str, bool]]:
        """Yields what must hold between the fields of any manifest, and whether it does."""
        options, ledger = self.options, self.over_length
        per_bin, is_tail = options.max_sequences_per_bin, options.keep == "tail"
        yield "version is at least 1", self.version >= 1
        yield "max_seq_len is in [1, 2^31)", 1 <= options.max_seq_len < 2**31
        yield "max_sequences_per_bin is at least 1", per_bin is None or per_bin >= 1
        yield "align is in [1, max_seq_len]", 1 <= options.align <= options.max_seq_len
        yield "extra_tokens is in [-1, max_seq_len)", LEAST_EXTRA_TOKENS <= options.extra_tokens < options.max_seq_len
        yield "a sequence can have a token of its own in a bin", options.rooms.longest >= 1
        yield (
            "cost_cap_percent is said where tokens_per_rank is, and only there",
            (options.tokens_per_rank is None) == (options.cost_cap_percent is None),
        )
        yield "max_seq_len is a power of two times tokens_per_rank", _is_context_sound(options)
        yield "only over_length 'truncate' keeps a tail", options.over_length == "truncate" or not is_tail
        yield "num_sequences is in [1, 2^63)", 1 <= self.num_sequences <= _MOST
        yield "num_bins is in [1, num_sequences]", 1 <= self.num_bins <= self.num_sequences
        yield "total_capacity is num_bins · max_seq_len", self.total_capacity == self.num_bins * options.max_seq_len
        yield "total_capacity is below 2^63", self.total_capacity <= _MOST
        yield (
            "total_tokens is in [num_sequences, total_capacity]",
            (self.num_sequences <= self.total_tokens <= self.total_capacity),
        )
        not_own, extra = self.total_tokens - self.own_tokens, options.extra_tokens * self.num_sequences
        most = extra + (options.align - 1 + (extra < 0)) * self.num_sequences  # a sequence of one token keeps it
        yield "own_tokens is total_tokens without extra_tokens and alignment", extra <= not_own <= most
        yield "efficiency is total_tokens / total_capacity", self.efficiency == self.total_tokens / self.total_capacity
        yield "lower_bound is in [1, num_bins]", 1 <= self.lower_bound <= self.num_bins
        yield "num_rooms is in [1, num_sequences]", 1 <= self.num_rooms <= self.num_sequences
        yield "num_templates is in [1, num_bins]", 1 <= self.num_templates <= self.num_bins
        yield "ids_sum_a and ids_sum_b are in [0, 2^64)", min(self.ids_sum_a, self.ids_sum_b) >= 0
        yield "ids_sum_a and ids_sum_b are in [0, 2^64)", max(self.ids_sum_a, self.ids_sum_b) < 2**64
        yield "over_length counts from 0", min(ledger.sequences, ledger.tokens, ledger.pieces) >= 0
        yield "over_length.sequences is below 2^63", ledger.sequences <= _MOST
        yield "over_length.tokens is at most source_tokens", ledger.tokens <= ledger.source_tokens
        yield "over_length.sequences is at most source_tokens", ledger.sequences <= ledger.source_tokens
        if self.inputs is not None:
            yield from _rules_of_inputs(self.inputs)
        if (groups := self.groups) is not None:
            yield "groups has num_groups in [1, num_sequences]", 1 <= groups.num_groups <= self.num_sequences
            yield "groups counts what it dropped from 0", 0 <= groups.num_dropped_listed <= groups.num_dropped
            most, per_bin = groups.most_sequences, groups.max_sequences_per_bin
            yield "groups fit bins", 1 <= most <= per_bin <= self.num_sequences
            yield (
                "groups are neither cut nor counted by sequence",
                (options.over_length != "truncate" and options.max_sequences_per_bin is None)
                and not (options.over_length == "split" and self.is_grouped),
            )
            yield (
                "groups share prefixes without align, extra_tokens and resources",
                not self.shares_prefixes or (options.rooms.is_plain and not self.resources),
            )
            yield "groups count shared tokens from 0", (groups.shared_tokens or 0) >= 0
        yield from self._rules_of_resources()
        if (keys := self.keys) is not None:
            yield "keys have a byte each, and at least one is there", 1 <= keys.num_keys <= keys.num_bytes <= _MOST
        yield "checksums are SHA-256", all(_SHA256.fullmatch(checksum) for checksum in self.checksums.values())
        yield "the digest is four fingerprints", bool(_DIGEST.fullmatch(self.digest))

    def _rules_of_resources(self) -> Iterator[tuple[str, bool]]:
        is_rounded = self.rounding_tokens > 0
        yield "rounding_tokens are of resources", self.rounding_tokens >= 0 and bool(self.resources or not is_rounded)
        yield "over_length.over_cap is of sequences", 0 <= self.over_length.over_cap <= self.over_length.sequences
        yield "sequences with resources are in groups", self.groups is not None or not self.resources
        for each in self.resources:
            yield "caps are in [1, 2^31)", each.cap is None or 1 <= each.cap < 2**31
            yield "a resource costs at least 0", each.cost >= 0
            yield "no sequence takes more than there is", 0 <= each.most <= each.total
            yield "no sequence takes more than a cap", each.cap is None or each.most <= each.cap


def _rules_of_inputs(inputs: Inputs) -> Iterator[tuple[str, bool]]:
    files, skipped, reasons = inputs.num_files, inputs.skipped.rows, inputs.skipped.by_reason
    yield "inputs counts from 0", min(files, skipped, inputs.rows) >= 0
    yield "inputs names the first files", len(inputs.files) == min(files, MOST_LISTED)
    yield "inputs names the first rows skipped", len(inputs.skipped.first) == min(skipped, MOST_LISTED)
    yield "inputs has a reason for each row skipped", reasons is None or 0 < skipped == sum(reasons.values())
    counts = None if inputs.left_out is None else inputs.left_out.values()
    yield "inputs counts what tokenizing left out", counts is None or min(counts, default=0) > 0


def _inputs(content: dict[str, Any]) -> Inputs:
    files = tuple(InputRecord(**file) for file in content["files"])
    skipped = content["skipped"]
    first = tuple(SkippedRow(**row) for row in skipped["first"])
    tokens = content.get("tokens")
    return Inputs(
        **{
            **content,
            "files": files,
            "skipped": SkippedRows(**{**skipped, "first": first}),
            "tokens": None if tokens is None else TokensRecord(**tokens),
        }
    )


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(_render(content)).hexdigest()


def _render(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=True) + "\n").encode()


def _is_context_sound(options: PlanOptions) -> bool:
    try:
        _ = options.context
    except ValueError:
        return False
    return True
