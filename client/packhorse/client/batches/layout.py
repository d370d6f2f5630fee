"""The layout of a batch: where its sequences lie in rows. Every mask is made from it.

Owns offsets in host memory, and everything that follows only from them (`cu_seqlens`, `sequence_ids`). Leaves tokens to
`_content`, inputs of attention kernels to `masks`, and how a layout is pickled to `saved`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from packhorse.client.batches.saved import reduced


class OverfullRowError(ValueError):
    """The sequences of a row have more tokens than the row."""

    def __init__(self, row: int, filled: int, row_tokens: int) -> None:
        super().__init__(f"row {row} holds {filled} tokens, more than its {row_tokens}")
        self.row = row
        self.filled = filled


@dataclass(eq=False, repr=False)  # not frozen: Lightning walks through batches, and refuses dataclasses that are
class PackLayout:
    """Where sequences lie in rows. It comes from the plan, so no code scans tokens or waits for a device.

    Legend: B rows, L tokens in a row, T = B·L tokens of all rows end to end, n sequences.

    Each sequence has a room: its own tokens and, if the plan has `align` or `extra_tokens`, perhaps padding after them.
    Rooms follow one another from a row's beginning, and padding fills the rest of the row. An extent is a room or the
    rest of a row; so extents cover all T tokens. Do not write to the arrays.

    Example:
        >>> layout = PackLayout.of_rows(rooms=[2, 1, 3], row_ends=[2, 3], row_tokens=4)  # rows of 2 + 1 and 3 tokens
        >>> layout.cu_seqlens.tolist(), layout.sequence_ids().tolist()
        ([0, 2, 3, 6], [[0, 0, 1, 2], [0, 0, 0, 1]])
    """

    num_rows: int
    """B."""
    row_tokens: int
    """L."""
    starts: NDArray[np.int64]
    """Index among the T tokens of every sequence's first token: int64 [n], ascending."""
    lengths: NDArray[np.int64]
    """Tokens of every sequence: int64 [n]."""
    rooms: NDArray[np.int64]
    """Tokens of every room, at least its sequence's: int64 [n]."""
    row_ends: NDArray[np.int64]
    """Exclusive end of every row in `starts`, `lengths` and `rooms`: int64 [B]; row 0 holds sequences [0, row_ends[0]).
    """
    extent_starts: NDArray[np.int64]
    """Index among the T tokens of every extent: a row's rooms, then its rest, row after row: int64 [n + B]."""
    extent_lengths: NDArray[np.int64]
    """Tokens of every extent, 0 for the rest of a full row: int64 [n + B]."""
    group_ids: NDArray[np.int64] | None = None
    """The group of every sequence, -1 for a sequence without one: int64 [n]; None without groups. A group's sequences
    are next to each other in one row, in their order."""
    shared_prefix: bool = False
    """Whether each group's first sequence is a prefix that the others see; see `prefixes`."""

    @classmethod
    def of_rows(
        cls,
        rooms: Sequence[int] | NDArray[np.integer],
        row_ends: Sequence[int] | NDArray[np.integer],
        row_tokens: int,
        *,
        lengths: Sequence[int] | NDArray[np.integer] | None = None,
        group_ids: NDArray[np.int64] | None = None,
        shared_prefix: bool = False,
    ) -> Self:
        """Lays sequences into rows, each row from its beginning.

        Args:
            rooms: tokens of every room, row after row: integers [n].
            row_ends: exclusive end of every row in `rooms`, ascending to n: integers [B].
            row_tokens: tokens in a row, L.
            lengths: tokens of every sequence, at most its room: integers [n]; None if every room is full.
            group_ids: the group of every sequence: int64 [n]; None without groups.
            shared_prefix: whether each group's first sequence is a prefix that the others see.

        Raises:
            OverfullRowError: a row holds more than `row_tokens`.
        """
        # The comments' example: rooms [2, 1, 3] and row_ends [2, 3] of rows of 4 tokens.
        room_tokens = np.asarray(rooms, dtype=np.int64)
        ends = np.asarray(row_ends, dtype=np.int64)
        rests = ends + np.arange(len(ends))  # index among the extents of each row's rest: [2, 4]
        is_room = np.ones(len(room_tokens) + len(ends), dtype=np.bool_)
        is_room[rests] = False
        extent_lengths = np.zeros(len(is_room), dtype=np.int64)
        extent_lengths[is_room] = room_tokens  # [2, 1, 0, 3, 0]; the rests come below
        filled = extent_lengths.cumsum()[rests]
        filled[1:] -= filled[:-1].copy()  # tokens of each row's rooms: [3, 3]; np.diff takes several µs longer
        if (filled > row_tokens).any():
            row = int((filled > row_tokens).argmax())
            raise OverfullRowError(row, int(filled[row]), row_tokens)
        extent_lengths[rests] = row_tokens - filled  # [2, 1, 1, 3, 1]
        extent_starts = extent_lengths.cumsum() - extent_lengths
        return cls(
            num_rows=len(ends),
            row_tokens=row_tokens,
            starts=extent_starts[is_room],
            lengths=room_tokens if lengths is None else np.asarray(lengths, dtype=np.int64),
            rooms=room_tokens,
            row_ends=ends,
            extent_starts=extent_starts,
            extent_lengths=extent_lengths,
            group_ids=group_ids,
            shared_prefix=shared_prefix,
        )

    @classmethod
    def of_cu_seqlens(cls, cu_seqlens: NDArray[np.integer] | torch.Tensor) -> Self:
        """Returns the layout of sequences that fill one row without padding, given their offsets.

        Args:
            cu_seqlens: offsets, ascending from 0: integers [n + 1], in host memory.

        Raises:
            ValueError: they are not ascending from 0, or are on a device, which would have to wait while they are read.
        """
        if isinstance(cu_seqlens, torch.Tensor):
            if cu_seqlens.device.type != "cpu":
                raise ValueError(
                    f"cu_seqlens are on {cu_seqlens.device}, and reading them there would stall it; pass the batch's "
                    "layout, or offsets in host memory"
                )
            cu_seqlens = cu_seqlens.numpy()
        offsets = cu_seqlens.astype(np.int64)
        if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or (np.diff(offsets) < 0).any():
            raise ValueError("cu_seqlens must be a 1-D array of ascending offsets that begins with 0")
        return cls.of_rows(rooms=np.diff(offsets), row_ends=np.array([len(offsets) - 1]), row_tokens=int(offsets[-1]))

    def flattened(self, total_multiple_of: int = 1) -> "PackLayout":
        """Returns the same sequences end to end in one row; padding only makes its length a multiple.

        Without any sequence the row is only padding, since no kernel takes an empty row.

        Args:
            total_multiple_of: the row has a multiple of this many tokens, at least one of them.
        """
        offsets = self.cu_seqlens.astype(np.int64)
        num_padding = -self.num_tokens % total_multiple_of if self.num_tokens else total_multiple_of
        flat = PackLayout(
            num_rows=1,
            row_tokens=self.num_tokens + num_padding,
            starts=offsets[:-1],
            lengths=self.lengths,
            rooms=self.lengths,
            row_ends=np.array([self.num_sequences]),
            extent_starts=offsets,
            extent_lengths=np.append(self.lengths, num_padding),
            group_ids=self.group_ids,
            shared_prefix=self.shared_prefix,
        )
        # Cached properties, whose values are known here.
        flat.cu_seqlens, flat.num_tokens, flat.max_seqlen = self.cu_seqlens, self.num_tokens, self.max_seqlen
        flat.extent_labels = np.arange(self.num_sequences + 1, dtype=np.int32)
        flat.padding_ranges = [(self.num_tokens, self.num_tokens + num_padding)] if num_padding else []
        return flat

    def split(self, num_rows: int) -> "list[PackLayout]":
        """Cuts the layout into layouts of `num_rows` rows each; the last one has the rows that are left.

        Arrays are computed once and sliced, so many layouts cost little more than one.

        Example:
            >>> layout = PackLayout.of_rows(rooms=[2, 1, 3], row_ends=[2, 3], row_tokens=4)
            >>> [each.starts.tolist() for each in layout.split(1)]
            [[0, 2], [0]]

        Args:
            num_rows: rows of each layout, at least 1.
        """
        # First row and first sequence of each layout, and the end of the last one; then their sizes. A layout's
        # first extent is first sequence + first row, since every sequence has a room and every row a rest.
        rows = np.append(np.arange(0, self.num_rows, num_rows), self.num_rows)
        sequences = np.concatenate(([0], self.row_ends))[rows]
        sequence_counts, row_counts = np.diff(sequences), np.diff(rows)
        tokens_before = rows[:-1] * self.row_tokens
        starts = self.starts - tokens_before.repeat(sequence_counts)
        extent_starts = self.extent_starts - tokens_before.repeat(sequence_counts + row_counts)
        row_ends = self.row_ends - sequences[:-1].repeat(row_counts)
        has_padded_rooms = self._has_padded_rooms
        lengths = self.lengths.tolist()
        rests = self.row_ends + np.arange(self.num_rows)  # index among the extents of each row's rest
        rest_starts, rest_ends = extent_starts[rests], extent_starts[rests] + self.extent_lengths[rests]
        rest_ranges = list(zip(rest_starts.tolist(), rest_ends.tolist(), strict=True))

        layouts = []
        for (first, last), (row, end_row) in zip(pairwise(sequences.tolist()), pairwise(rows.tolist()), strict=True):
            own_sequences, own_rows = slice(first, last), slice(row, end_row)
            own_extents = slice(first + row, last + end_row)
            rooms = self.rooms[own_sequences]
            layout = PackLayout(
                num_rows=end_row - row,
                row_tokens=self.row_tokens,
                starts=starts[own_sequences],
                lengths=rooms if self.lengths is self.rooms else self.lengths[own_sequences],  # see _has_padded_rooms
                rooms=rooms,
                row_ends=row_ends[own_rows],
                extent_starts=extent_starts[own_extents],
                extent_lengths=self.extent_lengths[own_extents],
                group_ids=None if self.group_ids is None else self.group_ids[own_sequences],
                shared_prefix=self.shared_prefix,
            )
            # Cached properties, whose values follow from those of this layout.
            layout.cu_seqlens = self.cu_seqlens[first : last + 1] - self.cu_seqlens[first]
            layout.num_tokens = int(layout.cu_seqlens[-1])
            layout.max_seqlen = max(lengths[own_sequences], default=0)
            layout.extent_labels = self.extent_labels[own_extents]
            if not has_padded_rooms:
                layout.padding_ranges = [(start, end) for start, end in rest_ranges[own_rows] if start < end]
            layouts.append(layout)
        return layouts

    @property
    def num_sequences(self) -> int:
        """Number of sequences in all rows, n."""
        return len(self.lengths)

    @cached_property
    def num_tokens(self) -> int:
        """Number of tokens of all sequences, without padding."""
        return int(self.lengths.sum())

    # `flattened` and `split` set several of these cached properties themselves, from those of the whole layout.

    @cached_property
    def max_seqlen(self) -> int:
        """Length of the longest sequence in tokens; 0 without any sequence."""
        return int(self.lengths.max(initial=0))

    @cached_property
    def cu_seqlens(self) -> NDArray[np.int32]:
        """Offsets of the sequences if their tokens are laid end to end without padding: int32 [n + 1]."""
        offsets = np.empty(self.num_sequences + 1, dtype=np.int32)
        offsets[0] = 0
        offsets[1:] = self.lengths.cumsum()
        return offsets

    @cached_property
    def cu_seqlens_padded(self) -> NDArray[np.int32]:
        """Offsets of the sequences among all T tokens, with padding: int32 [n + 1], the last one T.

        Sequence i and its padding fill [cu_seqlens_padded[i], cu_seqlens_padded[i + 1]).
        """
        return np.append(self.starts, self.num_rows * self.row_tokens).astype(np.int32)

    @cached_property
    def prefixes(self) -> NDArray[np.int64]:
        """Index of the sequence that each sequence sees as its prefix: int64 [n], -1 for none.

        With `shared_prefix`, all sequences of a group but the first see the first.
        """
        groups = self.group_ids
        if not self.shared_prefix or groups is None or not self.num_sequences:
            return np.full(self.num_sequences, -1, dtype=np.int64)
        # A sequence without a group counts as one of its own. A row's first sequence always begins a group.
        # In one row, groups [7, 7, -1, -1, 9] begin at the sequences [0, 2, 3, 4].
        begins_group = np.ones(self.num_sequences, dtype=np.bool_)
        begins_group[1:] = (groups[1:] != groups[:-1]) | (groups[1:] < 0)
        begins_group[self.row_ends[self.row_ends < self.num_sequences]] = True
        first_of_group = np.maximum.accumulate(np.where(begins_group, np.arange(self.num_sequences), 0))
        return np.where(begins_group, -1, first_of_group)

    @cached_property
    def segments(self) -> NDArray[np.int32]:
        """Offsets of the segments, the ranges of tokens that attend only to themselves: int32 [number of segments + 1].

        A segment is a sequence, the padding after it in its room, or the rest of a row. The offsets ascend strictly
        from 0 to T, and no segment is in two rows.
        """
        starts = self.extent_starts[self.extent_lengths > 0]
        if self._has_padded_rooms:
            starts = np.concatenate((starts, (self.starts + self.lengths)[self._is_padded_room]))
            starts.sort()
        return np.append(starts, self.num_rows * self.row_tokens).astype(np.int32)

    @cached_property
    def extent_labels(self) -> NDArray[np.int32]:
        """Number of every extent in its row: 0, 1, 2, … for rooms, then the rest of the row: int32 [n + B]."""
        ends = self.row_ends + np.arange(1, self.num_rows + 1)  # of each row's extents, among all
        firsts = np.zeros(self.num_rows, dtype=np.int32)
        firsts[1:] = ends[:-1]
        labels = np.arange(len(self.extent_starts), dtype=np.int32)
        labels -= firsts.repeat(ends - firsts)
        return labels

    @cached_property
    def padding_ranges(self) -> list[tuple[int, int]]:
        """Half-open ranges of the T tokens that are padding, in rooms or after them: ascending, none of them empty."""
        # Range i is from the end of sequence i − 1 (or token 0) to the start of sequence i (or the last row's end).
        begins, ends = np.zeros((2, len(self.starts) + 1), dtype=np.int64)
        np.add(self.starts, self.lengths, out=begins[1:])
        ends[:-1] = self.starts
        ends[-1] = self.num_rows * self.row_tokens
        is_padding = begins < ends
        return list(zip(begins[is_padding].tolist(), ends[is_padding].tolist(), strict=True))

    def sequence_ids(self) -> NDArray[np.int32]:
        """Returns a label for every token, different for each segment of a row: int32 [B, L].

        The sequences of a row have 0, 1, 2, …; the rest of the row has the next number, and padding inside rooms the
        numbers after that.
        """
        labels = self.extent_labels.repeat(self.extent_lengths)
        if self._has_padded_rooms:
            self._label_padding_in_rooms(labels)
        return labels.reshape(self.num_rows, self.row_tokens)

    def _label_padding_in_rooms(self, labels: NDArray[np.int32]) -> None:
        """Writes the label of each padded room's padding, the numbers after those of its row's extents: int32 [T]."""
        padded = np.flatnonzero(self._is_padded_room)  # indices of the sequences whose rooms are padded
        rows = np.searchsorted(self.row_ends, padded, side="right")  # the row of each
        num_padded_before_row = np.searchsorted(padded, np.concatenate(([0], self.row_ends[:-1])))
        num_sequences_of_row = np.diff(self.row_ends, prepend=0)
        numbers = num_sequences_of_row[rows] + 1 + np.arange(len(padded)) - num_padded_before_row[rows]
        starts, ends = (self.starts + self.lengths)[padded], (self.starts + self.rooms)[padded]
        for start, end, number in zip(starts.tolist(), ends.tolist(), numbers.tolist(), strict=True):
            labels[start:end] = number

    @property
    def _has_padded_rooms(self) -> bool:
        """Whether any room holds padding. If every room is full, `lengths` and `rooms` are mostly one array."""
        return self.lengths is not self.rooms and bool(self._is_padded_room.any())

    @cached_property
    def _is_padded_room(self) -> NDArray[np.bool_]:
        """Whether each room holds padding: bool [n]."""
        return self.lengths < self.rooms

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PackLayout):
            return NotImplemented
        return all(np.array_equal(getattr(self, each.name), getattr(other, each.name)) for each in fields(self))

    def __repr__(self) -> str:
        return (
            f"<PackLayout of {self.num_rows:,} rows of {self.row_tokens:,} tokens: {self.num_sequences:,} sequences, "
            f"{self.num_tokens:,} tokens>"
        )

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return reduced(self)


LayoutLike = PackLayout | Mapping[str, Any] | NDArray[np.integer] | torch.Tensor
"""A layout; a batch, which carries one as `layout`; or `cu_seqlens` in host memory, of sequences that fill one row."""


def as_layout(where: LayoutLike) -> PackLayout:
    """Returns the layout of a batch or of offsets.

    Example:
        >>> as_layout(np.array([0, 2, 5])).lengths.tolist()
        [2, 3]

    Args:
        where: a layout; a batch, which carries one as `layout`; or `cu_seqlens` of sequences that fill one row.

    Raises:
        ValueError: the batch has no layout, or the offsets do not ascend from 0 or are not in host memory.
    """
    if isinstance(where, PackLayout):
        return where
    if isinstance(where, Mapping):
        if not isinstance(where.get("layout"), PackLayout):
            raise ValueError(
                "this batch carries no 'layout': pass a batch of PackedDataset or BatchAssembler, a PackLayout or "
                "cu_seqlens"
            )
        layout: PackLayout = where["layout"]
        return layout
    if not hasattr(where, "dtype"):
        raise ValueError(
            f"an object of type {type(where).__name__} has no layout: pass a batch of PackedDataset or BatchAssembler, "
            "a PackLayout or cu_seqlens"
        )
    return PackLayout.of_cu_seqlens(where)
