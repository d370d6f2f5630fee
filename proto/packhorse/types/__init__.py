"""What the server tells about datasets and streams, as frozen dataclasses read from protobuf messages.

This package only exports: the classes are in `types/facts`, their base in `types/_fact`, and `skipped_text` in
`types/skipped`.
"""

from packhorse.types._fact import Fact
from packhorse.types.facts import (
    Component,
    DatasetInfo,
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
