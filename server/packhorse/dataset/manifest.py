"""The manifest: what a prepared folder says of itself.

Owns its fields, its one rendering as JSON and the refusal of any other; leaves the files beside it to `layout`.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from packhorse.dataset.errors import PreparedDatasetError

FORMAT_VERSION = 1
"""Version of the folder's layout."""

EPOCH_VERSION = 1
"""Version of the epoch function: the same plan under another version gives other bins, hence another digest."""

OverLength = Literal["error", "drop", "truncate", "split"]
"""What is done with sequences that are too long for a bin."""

Keep = Literal["head", "tail"]
"""Which end of a truncated sequence stays in the plan."""


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """What shaped the plan, besides the counts."""

    max_seq_len: int
    """A bin's capacity in tokens."""
    algorithm: str = "auto"
    """The packer asked for."""
    max_sequences_per_bin: int | None = None
    """The most sequences in a bin; None for no limit."""
    over_length: OverLength = "error"
    """What is done with sequences longer than `longest`."""
    keep: Keep = "head"
    """Which end of a truncated sequence stays in the plan."""
    align: int = 1
    """A sequence's place in its bin is rounded up to a multiple of so many tokens."""
    extra_tokens: int = 0
    """Tokens kept free for each sequence beside its own, before rounding (BOS, EOS)."""

    @property
    def longest(self) -> int:
        """The most tokens of its own that a sequence can have in a bin; below 1 where nothing fits."""
        return self.max_seq_len // self.align * self.align - self.extra_tokens


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


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Facts about a prepared dataset."""

    options: PrepareOptions
    """What shaped the plan."""
    algorithm: str
    """The packer that made the plan."""
    n_sequences: int
    """Number of sequences in the plan; each piece of a split one counts."""
    n_bins: int
    """Number of bins in an epoch."""
    total_tokens: int
    """Sum of all planned lengths, `align` and `extra_tokens` included."""
    total_capacity: int
    """n_bins · max_seq_len."""
    efficiency: float
    """total_tokens / total_capacity."""
    lower_bound: int
    """No plan has fewer bins."""
    distinct_lengths: int
    """Number of distinct lengths."""
    distinct_templates: int
    """Number of distinct templates."""
    id_dtype: Literal["uint32", "int64"]
    """How pools.npy stores ids."""
    start_dtype: Literal["uint32", "int64"] | None = None
    """How starts.npy stores each entry's first token; None where every one is 0 and there is no such file."""
    ids_sum_a: int
    """Order-independent fingerprint of the ids and starts, see `packhorse.dataset.ids_sum`."""
    ids_sum_b: int
    """Its second half."""
    over_length: OverLengthLedger
    """What the over-length policy did."""
    source: str
    """What was read, as the user named it (last component only)."""
    checksums: dict[str, str] = field(default_factory=dict)
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

    def render(self) -> bytes:
        """Returns the manifest's only valid bytes; they end with a checksum of themselves."""
        content = asdict(self)
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
        except (ValueError, TypeError, KeyError) as error:
            raise PreparedDatasetError(f"{name} is not a manifest: {error!r}") from None
        if version != FORMAT_VERSION:
            raise PreparedDatasetError(
                f"{name} has format version {version!r}, this release reads {FORMAT_VERSION}: prepare the dataset again"
            )
        stated = content.pop("checksum", None)
        if stated != _checksum(content) or _render({**content, "checksum": stated}) != data:
            raise PreparedDatasetError(f"{name} was altered: its content does not match its checksum")
        unknown = set(content) ^ {f.name for f in fields(cls)}
        if unknown:
            raise PreparedDatasetError(f"{name} has unknown or missing fields: {', '.join(sorted(unknown))}")
        if content["epoch_version"] != EPOCH_VERSION:
            raise PreparedDatasetError(
                f"{name} was planned for epoch version {content['epoch_version']!r}, this release computes "
                f"{EPOCH_VERSION}: prepare the dataset again"
            )
        content["options"] = PrepareOptions(**content["options"])
        content["over_length"] = OverLengthLedger(**content["over_length"])
        return cls(**content)


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(_render(content)).hexdigest()


def _render(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=True) + "\n").encode()
