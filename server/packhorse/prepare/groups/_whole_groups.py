"""Rows that are nothing but whole groups: `WholeGroups`, and reading an input so that no group is cut in two.

Leaves the rule by which rows form groups to `grouping`, and which groups fit a bin to `_tally`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import PreparedDataset
from packhorse.parameters import parameter
from packhorse.prepare.groups.grouping import Grouping
from packhorse.prepare.input import Batch, RowRange, cut_rows
from packhorse.wire.prefixes import by_prefix


@dataclass(frozen=True, slots=True, eq=False)
class WholeGroups:
    """Consecutive rows that are whole groups: n rows or, after `split`, pieces of rows, in G groups."""

    group_numbers: NDArray[np.int64]
    """Number of each group, as its column or file says: int64 [G]."""
    starts: NDArray[np.int64]
    """Index of the first row of each group in the fields below: int64 [G]."""
    lengths: NDArray[np.int64]
    """Length of each row in tokens: int64 [n]."""
    ids: NDArray[np.int64]
    """Id of each row: int64 [n]."""
    first_row: int
    """Number of the first of these rows, counted over all files."""
    resources: NDArray[np.int64]
    """Amount of each of k resources that each row takes: int64 [n, k]."""
    prefix_tokens: NDArray[np.int64] | None = None
    """Tokens of each row that another row of its group holds, so that `lengths` leaves them out: int64 [n]; None if
    rows share no prefixes."""
    piece_starts: NDArray[np.int64] | None = None
    """Number of each piece's first token in its sequence: int64 [n]; None if no row was split."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of rows in each group: int64 [G]."""
        return np.diff(np.append(self.starts, len(self.lengths)))

    @property
    def first_tokens(self) -> NDArray[np.int64] | None:
        """Number of the first token that each row keeps of its sequence: int64 [n]; None if each is 0."""
        return self.piece_starts if self.prefix_tokens is None else self.prefix_tokens

    @property
    def source_lengths(self) -> NDArray[np.int64]:
        """Tokens of each row in the input, including the prefix that another row of its group holds: int64 [n]."""
        return self.lengths if self.prefix_tokens is None else self.lengths + self.prefix_tokens

    def row_number(self, index: int) -> int:
        """Returns the number of a row in the input, over all files; a piece has the number of its sequence's row."""
        num_before = index if self.piece_starts is None else int((self.piece_starts[:index] == 0).sum())
        return self.first_row + num_before

    def sharing_prefixes(self, tokens: Callable[[int], NDArray[np.integer]]) -> "WholeGroups":
        """Returns the rows without prefixes that are in another row of the group too; one row keeps each prefix.

        A row keeps at least its last token.

        Args:
            tokens: a function from an id to its tokens.

        Raises:
            ValueError: a row has another number of tokens than its length; the message names it.
        """
        prefix_tokens = np.zeros(len(self.ids), dtype=np.int64)
        for begin, end in pairwise([*self.starts.tolist(), len(self.ids)]):
            tokens_of_rows = [tokens(sequence_id) for sequence_id in self.ids[begin:end].tolist()]
            for at, tokens_of_row in enumerate(tokens_of_rows, begin):
                if len(tokens_of_row) != self.lengths[at]:
                    raise ValueError(
                        parameter("share_prefixes")
                        + f" has {len(tokens_of_row)} tokens for sequence {self.ids[at]} (row {self.row_number(at)}), "
                        f"whose length is {self.lengths[at]}: give the tokens that the lengths are of"
                    )
            if end - begin > 1:
                # For each row in this order, how many of its first tokens the one before keeps for it.
                order, shared = by_prefix(tokens_of_rows)
                prefix_tokens[begin + order] = np.clip(shared, 0, np.maximum(self.lengths[begin + order] - 1, 0))
        return replace(self, lengths=self.lengths - prefix_tokens, prefix_tokens=prefix_tokens)

    def split(self, is_split: NDArray[np.bool_], piece_tokens: int) -> "WholeGroups":
        """Returns the rows with some split into pieces of `piece_tokens` tokens, of which the last may be shorter.

        Each row must be a group of its own; each piece becomes one too.

        Args:
            is_split: whether each row is split: bool [n].
            piece_tokens: the most tokens of a piece.
        """
        num_pieces = np.where(is_split, -(-self.lengths // piece_tokens), 1)
        row_of_piece = np.repeat(np.arange(len(num_pieces)), num_pieces)
        pieces = np.arange(len(row_of_piece))
        # Of 3 and 1 pieces: rows [0, 0, 0, 1], first pieces [0, 3], so pieces begin at piece_tokens · [0, 1, 2, 0].
        first_piece_of_row = np.cumsum(num_pieces) - num_pieces
        piece_starts = piece_tokens * (pieces - first_piece_of_row[row_of_piece])
        most_tokens = np.where(is_split, piece_tokens, self.lengths)[row_of_piece]
        return WholeGroups(
            group_numbers=self.group_numbers[row_of_piece],
            starts=pieces,
            lengths=np.minimum(most_tokens, self.lengths[row_of_piece] - piece_starts),
            ids=self.ids[row_of_piece],
            first_row=self.first_row,
            resources=self.resources[row_of_piece],
            piece_starts=piece_starts,
        )


class _PendingRows:
    """Rows that were read, the last of which may be part of a group that goes on: n rows."""

    def __init__(self, num_resources: int) -> None:
        self.group_numbers = np.empty(0, dtype=np.int64)
        """Group number of each row: int64 [n]."""
        self._lengths = self._ids = self.group_numbers
        self._resources = np.empty((0, num_resources), dtype=np.int64)
        self._first_row = 0
        """Number of the first of these rows, counted over all files."""

    def add(self, batch: Batch, group_numbers: NDArray[np.int64]) -> None:
        """Adds a batch of m rows with their group numbers: int64 [m]."""
        no_resources = np.empty((len(batch.lengths), 0), dtype=np.int64)
        self.group_numbers = np.concatenate((self.group_numbers, group_numbers))
        self._lengths = np.concatenate((self._lengths, batch.lengths))
        self._ids = np.concatenate((self._ids, batch.ids))
        self._resources = np.concatenate(
            (self._resources, no_resources if batch.resources is None else batch.resources)
        )

    def take(self, starts: NDArray[np.int64], end: int) -> WholeGroups:
        """Removes the first `end` rows, and returns them as groups, which begin at `starts`: int64 [G]."""
        rows = WholeGroups(
            group_numbers=self.group_numbers[starts],
            starts=starts,
            lengths=self._lengths[:end],
            ids=self._ids[:end],
            first_row=self._first_row,
            resources=self._resources[:end],
        )
        self.group_numbers, self._resources = self.group_numbers[end:], self._resources[end:]
        self._lengths, self._ids = self._lengths[end:], self._ids[end:]
        self._first_row += end
        return rows


def whole_groups(ranges: Sequence[RowRange], grouping: Grouping) -> Iterator[WholeGroups]:
    """Yields all rows in order, as whole groups.

    The last group of a batch may go on in the next batch, so its rows are held back until then.
    """
    pending = _PendingRows(len(ranges[0].columns.resources) if ranges else 0)
    # When appending, rows are numbered after those of the version before, but `grouping.ids` begins with this input.
    num_rows_before = ranges[0].first_index if ranges and grouping.ids is not None else 0
    for row_range in ranges:
        for batch in row_range.batches():
            batch_row = row_range.first_index + batch.first_row - row_range.first_row - num_rows_before
            pending.add(batch, _group_numbers(batch, batch_row, grouping, row_range))
            # Where another group begins: numbers [4, 4, 7, 7, 7, 9] -> [2, 5]. The last group is held back.
            group_edges = np.flatnonzero(pending.group_numbers[1:] != pending.group_numbers[:-1]) + 1
            if len(group_edges):
                yield pending.take(np.concatenate(([0], group_edges[:-1])), int(group_edges[-1]))
    if len(pending.group_numbers):
        yield pending.take(np.zeros(1, dtype=np.int64), len(pending.group_numbers))


def groups_of_version(before: PreparedDataset | None) -> Iterator[WholeGroups]:
    """Yields the groups of an earlier version from its tables, in their order; none if there is no such version."""
    if before is None or before.groups is None:
        return
    groups = before.groups
    begin = 0  # of the next groups' members
    for first_group, num_groups in cut_rows(len(groups.table)):
        group_numbers, ends = np.array(groups.table[first_group : first_group + num_groups]).T
        their_members = slice(begin, int(ends[-1]))
        ids, lengths = np.array(groups.members[their_members]).T
        resources = np.empty((len(ids), 0), dtype=np.int64)
        if groups.resources is not None:
            resources = groups.resources[their_members].astype(np.int64)
        first_tokens = None if groups.first_tokens is None else groups.first_tokens[their_members].astype(np.int64)
        yield WholeGroups(
            group_numbers=group_numbers,
            starts=np.concatenate(([0], ends[:-1] - begin)),
            lengths=lengths,
            ids=ids,
            first_row=0,  # its rows are not of this input
            resources=resources,
            prefix_tokens=first_tokens if before.manifest.shares_prefixes else None,
            piece_starts=None if before.manifest.shares_prefixes else first_tokens,
        )
        begin = their_members.stop


def _group_numbers(batch: Batch, batch_row: int, grouping: Grouping, row_range: RowRange) -> NDArray[np.int64]:
    """Returns the group number of each row of a batch: int64 [n].

    Args:
        batch: the rows.
        batch_row: number of the batch's first row, as the grouping counts.
        grouping: the rule.
        row_range: the range of the batch, for messages.
    """
    num_rows = len(batch.lengths)
    if grouping.size is not None:
        return np.arange(batch_row, batch_row + num_rows, dtype=np.int64) // grouping.size
    numbers = batch.groups
    if grouping.ids is not None:
        numbers = grouping.ids[batch_row : batch_row + num_rows].astype(np.int64)
    assert numbers is not None  # the reader was asked for the column
    is_negative = numbers < 0
    if is_negative.any():
        at = int(np.argmax(is_negative))
        raise ValueError(
            f"{row_range.where}: row {batch.first_row + at} is of group {numbers[at]}; groups are integers from 0 on, "
            "and every row is of one: number them, for example by `pandas.factorize`"
        )
    return numbers
