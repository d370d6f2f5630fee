"""What PackSequences packs: sequences or, where the request says so, groups of them as one item each.

Owns the way from a request's sequences to items and back; leaves packing to `pack`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.server.base.faults import invalid_field
from packhorse.v1 import packing_pb2 as pb


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """Items of a request. Legend: S sequences, M items."""

    rooms: NDArray[np.int64]
    """Tokens that each takes, all its sequences together: int64 [M]."""
    separate_by: NDArray[np.int64]
    """Each item's number, items with different ones share no bin: int64 [M]; [0] where all may."""
    sequences: NDArray[np.int64]
    """Sequences of the items, item after item, each item's in the request's order: int64 [S]."""
    ends: NDArray[np.int64]
    """Where each item ends in `sequences`: int64 [M]."""

    @classmethod
    def of(cls, request: pb.PackSequencesRequest, rooms: NDArray[np.int64]) -> "Items":
        """Makes items of a request's sequences.

        Args:
            request: its `groups` and `separate_by` count.
            rooms: of every sequence: int64 [S].

        Raises:
            ServiceError: there are not as many numbers as sequences, a group does not fit a bin, is of several kinds,
                or the number of sequences in a bin is limited.
        """
        kinds = _numbers("separate_by", request.separate_by, len(rooms))
        groups = _numbers("groups", request.groups, len(rooms))
        every = np.arange(len(rooms))
        if not len(groups):
            return cls(rooms, kinds, every, every + 1)
        if request.max_sequences_per_bin:
            raise invalid_field(
                "max_sequences_per_bin",
                "max_sequences_per_bin cannot be kept where bins are made of groups: leave it 0",
            )
        order = np.argsort(groups, kind="stable")
        starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
        of_groups = np.add.reduceat(rooms[order], starts)
        if (of_groups > request.max_seq_len).any():
            at = int(np.argmax(of_groups > request.max_seq_len))
            raise invalid_field(
                "groups",
                f"groups: group {groups[order][starts[at]]} takes {of_groups[at]} tokens together, over max_seq_len "
                f"{request.max_seq_len}: raise it, or leave out sequences of the group",
            )
        of_items = kinds[order][starts] if len(kinds) else kinds
        ends = np.append(starts[1:], len(order))
        if len(kinds) and (np.repeat(of_items, ends - starts) != kinds[order]).any():
            at = int(np.argmax(np.repeat(of_items, ends - starts) != kinds[order]))
            raise invalid_field(
                "separate_by",
                f"separate_by has several numbers for group {groups[order][at]}, whose sequences share a bin",
            )
        return cls(of_groups, of_items, order, ends)

    def members(
        self, items: NDArray[np.int64], bin_ends: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the sequences of bins of items, and where each bin ends among them.

        Args:
            items: of all bins, end to end: int64 [M].
            bin_ends: exclusive end of every bin among them: int64 [N].
        """
        sizes = np.diff(self.ends, prepend=0)[items]
        ends = np.concatenate(([0], np.cumsum(sizes)))
        sequences = self.sequences[np.repeat(self.ends[items] - ends[1:], sizes) + np.arange(int(ends[-1]))]
        return sequences, ends[bin_ends]


def _numbers(field: str, given: object, num_sequences: int) -> NDArray[np.int64]:
    """Returns a field's numbers, one for each sequence, or none at all."""
    numbers = np.array(given, dtype=np.int64)
    if len(numbers) not in (0, num_sequences):
        raise invalid_field(field, f"{field} holds {len(numbers)} numbers for {num_sequences} lengths")
    return numbers
