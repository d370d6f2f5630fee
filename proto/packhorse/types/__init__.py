"""What the server tells about datasets and streams, as frozen dataclasses read from protobuf messages.

The classes are in `types/facts`; this package only exports them, and the sentence of `types/skipped`.
"""

from packhorse.types.facts import (
    Component,
    DatasetInfo,
    Fact,
    Redaction,
    ResourceInfo,
    Stage,
    StreamHeader,
    Takedown,
    TakenPositions,
)
from packhorse.types.skipped import skipped_text

__all__ = [
    "Component",
    "DatasetInfo",
    "Fact",
    "Redaction",
    "ResourceInfo",
    "Stage",
    "StreamHeader",
    "Takedown",
    "TakenPositions",
    "skipped_text",
]
