"""Each fact that crosses the wire: one class, read from its message by the names of the fields."""

from packhorse.types.dataset import Component, DatasetInfo, Stage, StreamHeader
from packhorse.types.fact import Fact
from packhorse.types.takedown import Redaction, Takedown, TakenPositions

__all__ = [
    "Component",
    "DatasetInfo",
    "Fact",
    "Redaction",
    "Stage",
    "StreamHeader",
    "Takedown",
    "TakenPositions",
]
