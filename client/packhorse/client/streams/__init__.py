"""Streams: bins as the service sends them, the cursor, and the facts of a dataset. Nothing here needs torch."""

from packhorse.client.costs import cost_linear_of
from packhorse.client.streams.bin_facts import component_names, facts_of_bins
from packhorse.client.streams.blocks import AS_IT_IS, MASKED, BinBlock
from packhorse.client.streams.cursor import Cursor
from packhorse.client.streams.numpy_batches import BatchStream
from packhorse.client.streams.pack_stream import PackStream
from packhorse.client.streams.stream import BinStream
from packhorse.client.transport.locations import SequenceLocation
from packhorse.tokens.pieces import cuts_ends
from packhorse.types import (
    Component,
    DatasetInfo,
    Redaction,
    ResourceInfo,
    Stage,
    StreamHeader,
    Takedown,
    TakenPositions,
)

__all__ = [
    "AS_IT_IS",
    "MASKED",
    "BatchStream",
    "BinBlock",
    "BinStream",
    "Component",
    "Cursor",
    "DatasetInfo",
    "PackStream",
    "Redaction",
    "ResourceInfo",
    "SequenceLocation",
    "Stage",
    "StreamHeader",
    "Takedown",
    "TakenPositions",
    "component_names",
    "cost_linear_of",
    "cuts_ends",
    "facts_of_bins",
]
