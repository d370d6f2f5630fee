"""Facts of a dataset, as its manifest records them: sequences, groups, resources, keys and inputs.

Owns the fields. Leaves the plan's options, and writing and checking all of it as one file, to `manifest`.
"""

from dataclasses import dataclass, field, fields
from typing import Literal

from packhorse.dataset._fields import LATER


@dataclass(frozen=True, kw_only=True)
class OverLengthLedger:
    """Counts of the sequences that were too long, and of what the over-length policy did to them."""

    sequences: int = 0
    """Sequences that were too long."""
    source_tokens: int = 0
    """Tokens of these sequences in the input."""
    tokens: int = 0
    """Tokens of these sequences that the policy left out of the plan."""
    pieces: int = 0
    """Pieces that these sequences were split into; 0 under every other policy."""
    over_cap: int = field(default=0, metadata=LATER)
    """Sequences among them that fit max_seq_len, but take more of a resource than its cap, alone or as a group."""

    def __add__(self, other: "OverLengthLedger") -> "OverLengthLedger":
        """Returns the sums of two ledgers."""
        return OverLengthLedger(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )


MOST_LISTED = 100
"""The most files, and the most skipped rows, that a manifest names. If there are more, a file beside it names all."""


@dataclass(frozen=True, kw_only=True)
class InputRecord:
    """A file that was read."""

    name: str
    """The file's path, relative to the folder that holds all of the input's files."""
    size_bytes: int
    """The file's size."""
    modified_ns: int
    """Time when the file was last written to, in nanoseconds since 1970."""
    rows: int
    """Rows in the file."""
    etag: str | None = field(default=None, metadata=LATER)
    """An object store's name for this version of the file, its ETag or generation; None for a file on disk."""


@dataclass(frozen=True, kw_only=True)
class SkippedRow:
    """A row that was left out because something is wrong with it."""

    file: str
    """The row's file, as in `InputRecord.name`."""
    row: int
    """The row's number in the file, 0-based."""
    reason: str
    """What is wrong with the row, in words."""


@dataclass(frozen=True, kw_only=True)
class SkippedRows:
    """The rows that were left out because something is wrong with them."""

    rows: int = 0
    """Number of rows left out."""
    first: tuple[SkippedRow, ...] = ()
    """The first rows left out, at most `MOST_LISTED`; if there are more, skipped.jsonl names all."""
    by_reason: dict[str, int] | None = field(default=None, metadata=LATER)
    """Reason → number of rows; None if no row was left out, or if an earlier release counted them."""


@dataclass(frozen=True, kw_only=True)
class TokensRecord:
    """Where a dataset's tokens are, so that a trainer finds them from the folder."""

    path: str
    """The token file, or the folder of a table, relative to the dataset's folder."""
    fingerprint: str
    """Fingerprint of some sequences' tokens, see `packhorse.wire.tokens_fingerprint`. It shows that a token file has
    other tokens, even if the lengths are the same.
    """
    column: str | None = field(default=None, metadata=LATER)
    """The column of tokens; None in a file without columns."""
    dtype: str | None = field(default=None, metadata=LATER)
    """NumPy's name for the type of a token, such as uint16; None if it is not known."""
    has_loss_mask: bool | None = field(default=None, metadata=LATER)
    """Whether there was a loss mask beside the tokens; None if it is not known."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The input of a dataset."""

    kind: str
    """The input's kind: Parquet, Arrow, Megatron, …; for lengths in memory, the name of the Python type."""
    length_column: str | None
    """The column of lengths or tokens that was read; None if there are no columns."""
    rows: int
    """Rows in all files."""
    num_files: int
    """Number of files that were read."""
    files: tuple[InputRecord, ...]
    """The first files, at most `MOST_LISTED`, in the order of their rows' numbers; if there are more, inputs.jsonl
    names all."""
    skipped: SkippedRows = SkippedRows()
    """The rows that were left out, each for a reason."""
    left_out: dict[str, int] | None = field(default=None, metadata=LATER)
    """What `packhorse tokenize` left out of the token files → number of rows or turns; None if it recorded nothing."""
    tokens: TokensRecord | None = field(default=None, metadata=LATER)
    """Path and facts of the input's tokens; None if they are not on a disk, or in files of different folders."""


@dataclass(frozen=True, kw_only=True)
class GroupRecord:
    """Facts about groups, in a dataset whose plan packs groups."""

    by: str
    """How rows form groups, in words: "column 'doc'", "every 2 rows" or "groups"."""
    num_groups: int
    """Number of groups in the plan."""
    num_dropped: int
    """Number of groups that were too long for a bin and left out, with all their sequences."""
    most_sequences: int
    """Number of sequences in the largest group."""
    max_sequences_per_bin: int
    """An upper bound of the sequences in any bin."""
    ids_ascend: bool
    """Whether ids ascend from group to group, so that member_order.npy is not needed."""
    num_dropped_listed: int = field(default=0, metadata=LATER)
    """Number of groups in dropped_groups.npy: all that were left out, except by an earlier release or of groups by
    size."""
    shared_tokens: int | None = field(default=None, metadata=LATER)
    """Tokens that take no room, because another sequence of their group has them; None if prefixes are not shared."""


@dataclass(frozen=True, kw_only=True)
class ResourceRecord:
    """Facts about a resource: something besides tokens that sequences take of a bin, such as tiles of images."""

    name: str
    """The resource's name."""
    column: str
    """The column of the input that holds each sequence's amount."""
    cap: int | None
    """The most that a bin may have; None if there is no limit."""
    total: int
    """The sum of all sequences' amounts."""
    most: int
    """The largest amount of one sequence, or of one group."""
    cost: int = field(default=0, metadata=LATER)
    """Cost of one unit when ranks are balanced, in the unit of a topology's `cost_linear`."""


@dataclass(frozen=True, kw_only=True)
class KeyRecord:
    """Facts about keys, the names that the owner of the sequences gave them."""

    column: str
    """The column of the input that the keys come from."""
    num_keys: int
    """Number of keys: one for every row of the input, including rows that are not in the plan."""
    num_bytes: int
    """Bytes of all keys in UTF-8."""
    has_ids: bool = field(default=False, metadata=LATER)
    """Whether key_ids.npy holds each key's id; if not, a key's id is its index in the table, from 0."""


@dataclass(frozen=True, kw_only=True)
class SequenceFacts:
    """Facts that were counted while a dataset's sequences were read."""

    num_sequences: int
    """Number of sequences in the plan; each piece of a split one counts."""
    own_tokens: int
    """Tokens of these sequences, without `extra_tokens` and `align`."""
    id_dtype: Literal["uint32", "int64"]
    """Type of ids, in pools.npy and in messages; in a grouped dataset pools.npy holds groups' numbers."""
    start_dtype: Literal["uint32", "int64"] | None = None
    """Type of starts.npy, the first token of each entry; None if all are 0 and there is no such file."""
    ids_sum_a: int = 0
    """First half of an order-independent fingerprint of all ids and first tokens, see `packhorse.wire.ids_sum`."""
    ids_sum_b: int = 0
    """Second half of that fingerprint."""
    over_length: OverLengthLedger
    """Counts of the sequences that were too long."""


@dataclass(frozen=True, kw_only=True)
class Facts(SequenceFacts):
    """All facts of a manifest except those of the plan."""

    source: str
    """Names of the input, as the user gave them (last components of paths only)."""
    id_column: str | None
    """The column of `source` that ids come from; None if an id is a row number."""
    inputs: Inputs | None = field(default=None, metadata=LATER)
    """The input, file by file; None in a dataset of an earlier release."""
    groups: GroupRecord | None = field(default=None, metadata=LATER)
    """The groups; None if every sequence is planned by itself."""
    resources: tuple[ResourceRecord, ...] = field(default=(), metadata=LATER)
    """The resources; empty without any. With resources the plan is over classes of sizes, and every sequence is in a
    group, even if it is the only one there."""
    rounding_tokens: int = field(default=0, metadata=LATER)
    """Tokens by which classes of sizes are larger than the groups in them, summed over all groups. No bin contains
    them."""
    keys: KeyRecord | None = field(default=None, metadata=LATER)
    """The sequences' keys; None if they have ids only."""
    version: int = field(default=1, metadata=LATER)
    """Version of a growing dataset, counted from 1; appending makes the next one."""
