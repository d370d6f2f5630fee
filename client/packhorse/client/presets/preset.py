"""What a preset is.

Owns the declaration that every preset makes; leaves each training stack's keys to a file of its own and their names to
`registry`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from packhorse.client.batch import PackedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """The keys, shapes and conventions of one training stack."""

    name: str
    """What `PackedDataset(preset=…)` takes."""
    consumer: str
    """Who reads these batches, and which versions it was checked against."""
    shift_labels: bool
    """Whether `labels[t]` is the token after `t`; False where the model shifts them itself."""
    flatten: bool
    """Whether all sequences of a batch come end to end in one row, without padding."""
    padding: str
    """The rule for padding, in words."""
    convert: Callable[[PackedBatch], dict[str, Any]]
    """Turns a batch, assembled with `shift_labels` and `flatten` as declared, into the consumer's keys."""
