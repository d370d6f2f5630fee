"""Each fact that crosses the wire: one class, read from its message by the names of the fields."""

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
    skipped_text,
)

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
