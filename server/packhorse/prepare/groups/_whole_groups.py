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
from packhorse.prepare.input import Batch, RowRange, cut
from packhorse.wire.prefixes import by_prefix


@dataclass(frozen=True, slots=True, eq=False)
class WholeGroups:
    """Consecutive rows that are whole groups: n rows or, after `cut`, pieces of rows, in G groups."""

    numbers: NDArray[np.int64]
    """Number of each group, as its column or file says: int64 [G]."""
    starts: NDArray[np.int64]
    """Index of the first row of each group in the fields below: int64 [G]."""
    lengths: NDArray[np.int64]
    """Length of each row in tokens: int64 [n]."""
    ids: NDArray[np.int64]
    """Id of each row: int64 [n]."""
    first: int
    """Number of the first of these rows, counted over all files."""
    resources: NDArray[np.int64]
    """Amount of each of k resources that each row takes: int64 [n, k]."""
    first_tokens: NDArray[np.int64] | None = None
    """The first token of each row in its sequence: int64 [n]; None if each is 0."""
    shares_prefixes: bool = False
    """Whether a row's tokens before its first are in another row of its group. If not, a row whose first token is not 0
    is a later piece of a sequence."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of rows in each group: int64 [G]."""
        return np.diff(np.append(self.starts, len(self.lengths)))

    @property
    def source_lengths(self) -> NDArray[np.int64]:
        """Tokens of each row in the input, including the prefix that another row of its group holds: int64 [n]."""
        if self.first_tokens is None or not self.shares_prefixes:
            return self.lengths
        return self.lengths + self.first_tokens

    def row(self, index: int) -> int:
        """Returns the number of a row in the input, over all files; a piece has the number of its sequence's row."""
        if self.first_tokens is None or self.shares_prefixes:
            return self.first + index
        return self.first + int((self.first_tokens[:index] == 0).sum())

    def sharing_prefixes(self, tokens: Callable[[int], NDArray[np.integer]]) -> "WholeGroups":
        """Returns the rows without prefixes that are in another row of the group too; one row keeps each prefix.

        A row keeps at least its last token.

        Args:
            tokens: a function from an id to its tokens.

        Raises:
            ValueError: a row has another number of tokens than its length; the message names it.
        """
        first_tokens = np.zeros(len(self.ids), dtype=np.int64)
        for begin, end in pairwise([*self.starts.tolist(), len(self.ids)]):
            rows = [tokens(number) for number in self.ids[begin:end].tolist()]
            for at, row in enumerate(rows, begin):
                if len(row) != self.lengths[at]:
                    raise ValueError(
                        parameter("share_prefixes")
                        + f" has {len(row)} tokens for sequence {self.ids[at]} (row {self.row(at)}), whose length is "
                        f"{self.lengths[at]}: give the tokens that the lengths are of"
                    )
            if end - begin > 1:
                order, shared = by_prefix(rows)
                first_tokens[begin + order] = np.clip(shared, 0, np.maximum(self.lengths[begin + order] - 1, 0))
        return replace(self, lengths=self.lengths - first_tokens, first_tokens=first_tokens, shares_prefixes=True)

    def cut(self, is_cut: NDArray[np.bool_], longest: int) -> "WholeGroups":
        """Returns the rows with some cut into pieces of `longest` tokens, of which the last may be shorter.

        Each row must be a group of its own; each piece becomes one too.

        Args:
            is_cut: whether each row is cut: bool [n].
            longest: the most tokens of a piece.
        """
        num_pieces = np.where(is_cut, -(-self.lengths // longest), 1)
        of_row = np.repeat(np.arange(len(num_pieces)), num_pieces)
        starts = np.arange(len(of_row))
        first_tokens = longest * (starts - (np.cumsum(num_pieces) - num_pieces)[of_row])
        lengths = np.where(is_cut, longest, self.lengths)[of_row]
        return WholeGroups(
            numbers=self.numbers[of_row],
            starts=starts,
            lengths=np.minimum(lengths, self.lengths[of_row] - first_tokens),
            ids=self.ids[of_row],
            first=self.first,
            resources=self.resources[of_row],
            first_tokens=first_tokens,
        )


class _Held:
    """Rows that were read, the last of which may be part of a group that goes on: n rows."""

    def __init__(self, num_resources: int) -> None:
        self.numbers = np.empty(0, dtype=np.int64)
        """Group number of each row: int64 [n]."""
        self._lengths = self._ids = self.numbers
        self._resources = np.empty((0, num_resources), dtype=np.int64)
        self._first = 0
        """Number of the first of these rows, counted over all files."""

    def add(self, batch: Batch, numbers: NDArray[np.int64]) -> None:
        """Adds a batch of m rows with their group numbers: int64 [m]."""
        no_resources = np.empty((len(batch.lengths), 0), dtype=np.int64)
        self.numbers = np.concatenate((self.numbers, numbers))
        self._lengths = np.concatenate((self._lengths, batch.lengths))
        self._ids = np.concatenate((self._ids, batch.ids))
        self._resources = np.concatenate(
            (self._resources, no_resources if batch.resources is None else batch.resources)
        )

    def taken(self, starts: NDArray[np.int64], end: int) -> WholeGroups:
        """Takes the first `end` rows away as groups, which begin at `starts`: int64 [G]."""
        rows = WholeGroups(
            numbers=self.numbers[starts],
            starts=starts,
            lengths=self._lengths[:end],
            ids=self._ids[:end],
            first=self._first,
            resources=self._resources[:end],
        )
        self.numbers, self._lengths, self._ids = self.numbers[end:], self._lengths[end:], self._ids[end:]
        self._resources, self._first = self._resources[end:], self._first + end
        return rows


def whole_groups(ranges: Sequence[RowRange], grouping: Grouping) -> Iterator[WholeGroups]:
    """Yields all rows in order, as whole groups.

    The last group of a batch may go on in the next batch, so its rows are held back until then.
    """
    held = _Held(len(ranges[0].columns.resources) if ranges else 0)
    # `grouping.ids` begins with the first row of this input, whose number is not 0 when appending.
    begin = ranges[0].first_index if ranges and grouping.ids is not None else 0
    for each in ranges:
        for batch in each.batches():
            row = each.first_index + batch.first_row - each.first_row - begin
            held.add(batch, _group_numbers(batch, row, grouping, each))
            edges = np.flatnonzero(held.numbers[1:] != held.numbers[:-1]) + 1
            if len(edges):
                yield held.taken(np.concatenate(([0], edges[:-1])), int(edges[-1]))
    if len(held.numbers):
        yield held.taken(np.zeros(1, dtype=np.int64), len(held.numbers))


def groups_of_version(before: PreparedDataset | None) -> Iterator[WholeGroups]:
    """Yields the groups of an earlier version from its tables, in their order; none if there is no such version."""
    if before is None or before.groups is None:
        return
    groups = before.groups
    for first, size in cut(len(groups.table)):
        table = np.array(groups.table[first : first + size])
        begin = int(groups.table[first - 1, 1]) if first else 0
        some = slice(begin, int(table[-1, 1]))
        members = np.array(groups.members[some])
        starts = np.concatenate(([0], table[:-1, 1] - begin))
        amounts = np.empty((len(members), 0), dtype=np.int64)
        if groups.resources is not None:
            amounts = groups.resources[some].astype(np.int64)
        first_tokens = None if groups.first_tokens is None else groups.first_tokens[some].astype(np.int64)
        yield WholeGroups(
            numbers=table[:, 0],
            starts=starts,
            lengths=members[:, 1],
            ids=members[:, 0],
            first=0,  # its rows are not of this input
            resources=amounts,
            first_tokens=first_tokens,
            shares_prefixes=before.manifest.shares_prefixes,
        )


def _group_numbers(batch: Batch, row: int, grouping: Grouping, each: RowRange) -> NDArray[np.int64]:
    """Returns the group number of each row of a batch: int64 [n].

    Args:
        batch: the rows.
        row: number of the batch's first row, as the grouping counts.
        grouping: the rule.
        each: the range of the batch, for messages.
    """
    num_rows = len(batch.lengths)
    if grouping.size is not None:
        return np.arange(row, row + num_rows, dtype=np.int64) // grouping.size
    numbers = batch.groups if grouping.ids is None else grouping.ids[row : row + num_rows].astype(np.int64)
    assert numbers is not None  # the reader was asked for the column
    if (numbers < 0).any():
        at = int(np.argmax(numbers < 0))
        raise ValueError(
            f"{each.where}: row {batch.first_row + at} is of group {numbers[at]}; groups are integers from 0 on, and "
            "every row is of one: number them, for example by `pandas.factorize`"
        )
    return numbers
