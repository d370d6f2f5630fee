"""The manifest of a prepared folder: facts, the plan's options with their defaults, and checksums.

Owns the rules that the fields keep, the one way to write a manifest as JSON, and the refusal of any other bytes. The
facts are in `facts`, the options in `plan_options`. Comparing a manifest with the files beside it is in `load`, and
comparing JSON with dataclasses in `_fields`.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from packhorse.dataset._fields import as_object, check_fields
from packhorse.dataset.errors import PreparedDatasetError
from packhorse.dataset.facts import (
    MOST_LISTED,
    Facts,
    GroupRecord,
    InputRecord,
    Inputs,
    KeyRecord,
    OverLengthLedger,
    ResourceRecord,
    SkippedRow,
    SkippedRows,
    TokensRecord,
)
from packhorse.dataset.plan_options import PlanOptions
from packhorse.topology import LEAST_EXTRA_TOKENS

FORMAT_VERSION = 1
"""Version of the folder's layout."""

EPOCH_VERSION = 1
"""Version of the epoch function. The same plan under another version gives other bins, so the digest covers it."""

MOST_MANIFEST_BYTES = 1 << 20
"""The most bytes of a manifest; a larger file is refused."""

_DIGEST = re.compile("[0-9a-f]{16}(-[0-9a-f]{16}){3}")
_SHA256 = re.compile("[0-9a-f]{64}")
_MOST_INT64 = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Manifest(Facts):
    """The manifest of a prepared folder: the facts of `Facts`, the plan, and checksums of the files."""

    options: PlanOptions
    """Options of the plan."""
    algorithm: str
    """The packer that made the plan."""
    num_bins: int
    """Number of bins in an epoch."""
    total_tokens: int
    """Sum of all sequences' rooms, in tokens."""
    total_capacity: int
    """num_bins · max_seq_len, in tokens."""
    efficiency: float
    """total_tokens / total_capacity."""
    lower_bound: int
    """A number of bins that no plan of these sequences can go below."""
    num_rooms: int
    """Number of distinct rooms; with resources, of classes of sizes."""
    num_templates: int
    """Number of distinct templates."""
    plan_cut_off: bool
    """Whether a time limit ended planning early: the same input may then give another plan and digest next time."""
    checksums: dict[str, str]
    """File name → SHA-256 of the file's bytes, in hexadecimal."""
    digest: str
    """Fingerprint of the dataset and its plan, see `digest`."""
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
        """Type and shape of pools.npy, which holds ids or, with groups, numbers of groups."""
        if self.groups is None:
            return self.id_dtype, (self.num_sequences,)
        return "uint32" if self.groups.num_groups <= 2**32 else "int64", (self.groups.num_groups,)

    @property
    def shares_prefixes(self) -> bool:
        """Whether tokens that sequences of a group have in common at their beginning take room only once."""
        return self.groups is not None and self.groups.shared_tokens is not None

    @property
    def is_grouped(self) -> bool:
        """Whether the user asked for groups.

        With resources there are always groups; if each has one sequence, nobody asked, or the files would be the same.
        """
        return self.groups is not None and not (self.resources and self.groups.most_sequences == 1)

    @property
    def fed_tokens(self) -> int:
        """The sequences' own tokens that bins hold: all, or without each sequence's last token if `extra_tokens` is -1.

        With -1 and `align`, the number is too low by one for each sequence of one token, which keeps its token.
        """
        if self.options.extra_tokens >= 0:
            return self.own_tokens
        # Without alignment a room is just what the sequence feeds.
        return self.total_tokens if self.options.align == 1 else self.own_tokens - self.num_sequences

    @property
    def capacities(self) -> list[int]:
        """A bin's capacities: max_seq_len, then the cap of each resource that has one."""
        return [self.max_seq_len, *(resource.cap for resource in self.resources if resource.cap is not None)]

    def render(self) -> bytes:
        """Returns the manifest's only valid bytes; the last field is a checksum of the others."""
        content = as_object(self)
        return _render({**content, "checksum": _checksum(content)})

    @classmethod
    def parse(cls, data: bytes, name: str) -> "Manifest":
        """Reads what `render` wrote, and checks it from outside in: version, checksum, fields, rules.

        Args:
            data: the file's bytes.
            name: the file's name for messages.

        Raises:
            PreparedDatasetError: the bytes are not exactly a rendered manifest of a known version.
        """
        content = _sound_content(data, name)
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
            content["inputs"] = _inputs_from(content["inputs"])
        if "groups" in content:
            content["groups"] = GroupRecord(**content["groups"])
        content["resources"] = tuple(ResourceRecord(**record) for record in content.get("resources", ()))
        if "keys" in content:
            content["keys"] = KeyRecord(**content["keys"])
        manifest = cls(**content)
        for what, holds in manifest._rules():
            if not holds:
                raise PreparedDatasetError(f"{name} breaks the rule that {what}; prepare the dataset again")
        return manifest

    def _rules(self) -> Iterator[tuple[str, bool]]:
        """Yields each rule about the fields of any manifest, in words, and whether this manifest keeps it."""
        options, ledger, most_per_bin = self.options, self.over_length, self.options.max_sequences_per_bin
        yield "version is at least 1", self.version >= 1
        yield "max_seq_len is in [1, 2^31)", 1 <= options.max_seq_len < 2**31
        yield "max_sequences_per_bin is at least 1", most_per_bin is None or most_per_bin >= 1
        yield "align is in [1, max_seq_len]", 1 <= options.align <= options.max_seq_len
        yield "extra_tokens is in [-1, max_seq_len)", LEAST_EXTRA_TOKENS <= options.extra_tokens < options.max_seq_len
        yield "a sequence can have a token of its own in a bin", options.rooms.longest >= 1
        yield (
            "cost_cap_percent is said where tokens_per_rank is, and only there",
            (options.tokens_per_rank is None) == (options.cost_cap_percent is None),
        )
        yield "max_seq_len is a power of two times tokens_per_rank", _has_sound_context(options)
        yield "only over_length 'truncate' keeps a tail", options.keep == "head" or options.over_length == "truncate"
        yield "num_sequences is in [1, 2^63)", 1 <= self.num_sequences <= _MOST_INT64
        yield "num_bins is in [1, num_sequences]", 1 <= self.num_bins <= self.num_sequences
        yield "total_capacity is num_bins · max_seq_len", self.total_capacity == self.num_bins * options.max_seq_len
        yield "total_capacity is below 2^63", self.total_capacity <= _MOST_INT64
        yield (
            "total_tokens is in [num_sequences, total_capacity]",
            (self.num_sequences <= self.total_tokens <= self.total_capacity),
        )
        least_added = options.extra_tokens * self.num_sequences
        # Alignment adds up to align - 1 tokens to each; with extra_tokens -1, a sequence of one token keeps its token.
        most_kept = 1 if options.extra_tokens < 0 else 0
        most_added = least_added + (options.align - 1 + most_kept) * self.num_sequences
        yield (
            "own_tokens is total_tokens without extra_tokens and alignment",
            least_added <= self.total_tokens - self.own_tokens <= most_added,
        )
        yield "efficiency is total_tokens / total_capacity", self.efficiency == self.total_tokens / self.total_capacity
        yield "lower_bound is in [1, num_bins]", 1 <= self.lower_bound <= self.num_bins
        yield "num_rooms is in [1, num_sequences]", 1 <= self.num_rooms <= self.num_sequences
        yield "num_templates is in [1, num_bins]", 1 <= self.num_templates <= self.num_bins
        sums = (self.ids_sum_a, self.ids_sum_b)
        yield "ids_sum_a and ids_sum_b are in [0, 2^64)", min(sums) >= 0 and max(sums) < 2**64
        yield "over_length counts from 0", min(ledger.sequences, ledger.tokens, ledger.pieces) >= 0
        yield "over_length.sequences is below 2^63", ledger.sequences <= _MOST_INT64
        yield "over_length.tokens is at most source_tokens", ledger.tokens <= ledger.source_tokens
        yield "over_length.sequences is at most source_tokens", ledger.sequences <= ledger.source_tokens
        if self.inputs is not None:
            yield from _rules_of_inputs(self.inputs)
        if self.groups is not None:
            yield from self._rules_of_groups(self.groups)
        yield from self._rules_of_resources()
        if (keys := self.keys) is not None:
            yield (
                "keys have a byte each, and at least one is there",
                1 <= keys.num_keys <= keys.num_bytes <= _MOST_INT64,
            )
        yield "checksums are SHA-256", all(_SHA256.fullmatch(checksum) for checksum in self.checksums.values())
        yield "the digest is four fingerprints", bool(_DIGEST.fullmatch(self.digest))

    def _rules_of_groups(self, groups: GroupRecord) -> Iterator[tuple[str, bool]]:
        """Yields the rules about the field `groups`."""
        options = self.options
        yield "groups has num_groups in [1, num_sequences]", 1 <= groups.num_groups <= self.num_sequences
        yield "groups counts what it dropped from 0", 0 <= groups.num_dropped_listed <= groups.num_dropped
        yield "groups fit bins", 1 <= groups.most_sequences <= groups.max_sequences_per_bin <= self.num_sequences
        is_cut = options.over_length == "truncate" or (options.over_length == "split" and self.is_grouped)
        yield "groups are neither cut nor counted by sequence", not is_cut and options.max_sequences_per_bin is None
        yield (
            "groups share prefixes without align, extra_tokens and resources",
            not self.shares_prefixes or (options.rooms.is_plain and not self.resources),
        )
        yield "groups count shared tokens from 0", (groups.shared_tokens or 0) >= 0

    def _rules_of_resources(self) -> Iterator[tuple[str, bool]]:
        """Yields the rules about resources and their classes."""
        is_rounded = self.rounding_tokens > 0
        yield "rounding_tokens are of resources", self.rounding_tokens >= 0 and bool(self.resources or not is_rounded)
        yield "over_length.over_cap is of sequences", 0 <= self.over_length.over_cap <= self.over_length.sequences
        yield "sequences with resources are in groups", self.groups is not None or not self.resources
        for resource in self.resources:
            yield "caps are in [1, 2^31)", resource.cap is None or 1 <= resource.cap < 2**31
            yield "a resource costs at least 0", resource.cost >= 0
            yield "no sequence takes more than there is", 0 <= resource.most <= resource.total
            yield "no sequence takes more than a cap", resource.cap is None or resource.most <= resource.cap


def _sound_content(data: bytes, name: str) -> dict[str, Any]:
    """Returns the fields of a manifest of a known version whose checksum is right; for the arguments, see `parse`."""
    try:
        content: dict[str, Any] = json.loads(data)
        version = content["format_version"]
        stated = content.pop("checksum", None)
        is_sound = stated == _checksum(content) and _render({**content, "checksum": stated}) == data
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise PreparedDatasetError(f"{name} is not a manifest: {error!r}") from None
    if version != FORMAT_VERSION:  # said first: another version's checksum may be made in another way
        is_newer = isinstance(version, int) and version > FORMAT_VERSION
        newer = "a newer release wrote it; serve it with that one, or "
        raise PreparedDatasetError(
            f"{name} has format version {version!r}, this release reads {FORMAT_VERSION}: "
            f"{newer if is_newer else ''}prepare the dataset again with this one"
        )
    if not is_sound:
        raise PreparedDatasetError(f"{name} was altered: its content does not match its checksum")
    return content


def _rules_of_inputs(inputs: Inputs) -> Iterator[tuple[str, bool]]:
    """Yields the rules about the field `inputs`, as `Manifest._rules` does."""
    files, skipped, reasons = inputs.num_files, inputs.skipped.rows, inputs.skipped.by_reason
    yield "inputs counts from 0", min(files, skipped, inputs.rows) >= 0
    yield "inputs names the first files", len(inputs.files) == min(files, MOST_LISTED)
    yield "inputs names the first rows skipped", len(inputs.skipped.first) == min(skipped, MOST_LISTED)
    yield "inputs has a reason for each row skipped", reasons is None or 0 < skipped == sum(reasons.values())
    if inputs.left_out is not None:  # reason → how many; a reason without any is not listed
        yield "inputs counts what tokenizing left out", min(inputs.left_out.values(), default=0) > 0


def _inputs_from(content: dict[str, Any]) -> Inputs:
    """Returns the field `inputs` with its nested JSON objects turned into their dataclasses."""
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


def _has_sound_context(options: PlanOptions) -> bool:
    """Returns whether the options about context parallelism are right, or none is given."""
    try:
        _ = options.context  # raises the error
    except ValueError:
        return False
    return True
