"""The items of a PackSequences request, each a sequence or a group of sequences that share a bin.

Owns making items of a request's sequences, and sequences of the items again. Leaves packing items to `pack`.

Legend: S sequences, M items, N bins, d budgets (tokens, then resources).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packhorse.server.base.faults import invalid_field
from packhorse.v1 import packing_pb2 as pb


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """The items of a request, each a sequence or a group."""

    sizes: NDArray[np.int64]
    """Amount that each item takes of tokens, and of each resource of the request's budgets: int64 [M, d]."""
    separate_by: NDArray[np.int64]
    """Each item's kind; items of different kinds share no bin: int64 [M], or [0] if all may."""
    sequences: NDArray[np.int64]
    """Sequences of the items, item after item, each item's in the request's order: int64 [S]."""
    ends: NDArray[np.int64]
    """Exclusive end of each item in `sequences`: int64 [M]."""

    @classmethod
    def of(cls, request: pb.PackSequencesRequest, sizes: NDArray[np.int64], capacities: NDArray[np.int64]) -> "Items":
        """Makes items of a request's sequences, of sizes int64 [S, d], by its `groups` and `separate_by`.

        Raises:
            ServiceError: a field has fewer or more numbers than there are sequences, an item does not fit a bin, a
                group is of several kinds, or there are groups and a limit of sequences in a bin.
        """
        kinds = _numbers("separate_by", request.separate_by, len(sizes))
        groups = _numbers("groups", request.groups, len(sizes))
        if not len(groups):
            indices = np.arange(len(sizes))
            _check_caps(request, sizes, capacities, indices, "sequence")
            return cls(sizes, kinds, sequences=indices, ends=indices + 1)
        if request.max_sequences_per_bin:
            raise invalid_field(
                "max_sequences_per_bin",
                "max_sequences_per_bin does not go with groups: leave it 0",
            )
        return cls._of_groups(request, sizes, capacities, kinds, groups)

    @classmethod
    def _of_groups(
        cls,
        request: pb.PackSequencesRequest,
        sizes: NDArray[np.int64],
        capacities: NDArray[np.int64],
        kinds: NDArray[np.int64],
        groups: NDArray[np.int64],
    ) -> "Items":
        """Does the work of `of` for groups: `kinds` and `groups` have a number for each sequence."""
        order = np.argsort(groups, kind="stable")
        # [0, 0, 5] -> groups begin at [0, 2]. No group is -1 (they are uint32), so the first one begins at 0.
        starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
        group_sizes = np.add.reduceat(sizes[order], starts)
        is_too_long = group_sizes[:, 0] > request.max_seq_len
        if is_too_long.any():
            index = int(np.argmax(is_too_long))
            raise invalid_field(
                "groups",
                f"groups: group {groups[order][starts[index]]} takes {group_sizes[index, 0]} tokens together, over "
                f"max_seq_len {request.max_seq_len}: raise it, or leave out sequences of the group",
            )
        _check_caps(request, group_sizes, capacities, groups[order][starts], "group")
        ends = np.append(starts[1:], len(order))
        if not len(kinds):
            return cls(group_sizes, kinds, order, ends)
        group_kinds = kinds[order][starts]
        differs = np.repeat(group_kinds, ends - starts) != kinds[order]
        if differs.any():
            raise invalid_field(
                "separate_by",
                f"separate_by has several numbers for group {groups[order][np.argmax(differs)]}, whose sequences share "
                "a bin",
            )
        return cls(group_sizes, group_kinds, order, ends)

    def members(
        self, items: NDArray[np.int64], bin_ends: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns bins of sequences for bins of items: the sequences, int64 [S], and where each bin ends, int64 [N].

        Args:
            items: items of all bins, end to end: int64 [M].
            bin_ends: exclusive end of every bin in `items`: int64 [N].
        """
        if len(self.ends) == len(self.sequences):  # each item is a sequence
            return self.sequences[items], bin_ends
        sizes = np.diff(self.ends, prepend=0)[items]
        ends = np.concatenate(([0], np.cumsum(sizes)))
        # An item ends at `self.ends` in the old order, and at `ends[1:]` in the new one. Its sequences move as far.
        sequences = self.sequences[np.repeat(self.ends[items] - ends[1:], sizes) + np.arange(int(ends[-1]))]
        return sequences, ends[bin_ends]


def _numbers(field: str, values: object, num_sequences: int) -> NDArray[np.int64]:
    """Returns a field's numbers, one for each sequence, or none at all."""
    numbers = np.array(values, dtype=np.int64)
    if len(numbers) not in (0, num_sequences):
        raise invalid_field(field, f"{field} holds {len(numbers)} numbers for {num_sequences} lengths")
    return numbers


def _check_caps(
    request: pb.PackSequencesRequest,
    sizes: NDArray[np.int64],
    capacities: NDArray[np.int64],
    names: NDArray[np.int64],
    item: str,
) -> None:
    """Refuses an item that takes more of a resource than a bin holds. `names` are the items' numbers in the error."""
    over = sizes[:, 1:] > capacities[1:]
    if over.any():
        index, budget = np.argwhere(over)[0].tolist()
        raise invalid_field(
            "budgets",
            f"budgets: {item} {names[index]} takes {sizes[index, 1 + budget]} of {request.budgets[budget].name!r}, "
            f"over its cap of {capacities[1 + budget]}: raise the cap, or leave it out",
        )
