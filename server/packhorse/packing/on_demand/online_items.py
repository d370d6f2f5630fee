"""What online packing takes and gives: items, and finished bins of them.

Leaves packing them to `online`.
"""

from dataclasses import dataclass
from typing import NamedTuple


class OnlineItem(NamedTuple):
    """Sequences that share a bin: one, or a group."""

    ids: tuple[int, ...]
    """Ids of the sequences, in the order in which they came."""
    lengths: tuple[int, ...]
    """Lengths of the sequences, in tokens, as they were given."""
    sizes: tuple[int, ...]
    """What the item takes of each of the packer's `capacities`; the first is its room in tokens."""
    amounts: tuple[tuple[int, ...], ...] = ()
    """What each sequence takes of each of the packer's `caps`; empty without caps."""
    versions: tuple[int, ...] = ()
    """Version of the policy that wrote each sequence; empty if none was given."""


@dataclass(frozen=True, slots=True)
class OnlineBin:
    """One finished bin."""

    items: list[OnlineItem]
    """Items of the bin, by descending room."""

    @property
    def ids(self) -> list[int]:
        """Ids of the bin's sequences, item after item."""
        return [number for item in self.items for number in item.ids]

    @property
    def lengths(self) -> list[int]:
        """Lengths of these sequences, in tokens."""
        return [length for item in self.items for length in item.lengths]
