"""Groups of rows: which rows are a group, and reading rows so that no group is cut in two.

Owns `Grouping`, what a user says of groups, and `WholeGroups`, rows with nothing but whole groups. Leaves counting
groups, and their tables, to `_groups`.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import PreparedDataset
from packhorse.formats.file_stamp import FileStamp
from packhorse.formats.files import as_path
from packhorse.formats.megatron import MegatronTokens, megatron_paths
from packhorse.formats.object_store import without_secrets
from packhorse.parameters import parameter
from packhorse.prepare.input import InputFile, RowRange, cut, load_npy
from packhorse.topology import checked_integer
from packhorse.wire.prefixes import by_prefix

INPUT = "input"
"""The value of `share_prefixes` that stands for the input's own tokens."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Grouping:
    """The rule by which rows form groups. Give one of `column`, `size` and `numbers`.

    A group's sequences always share a bin, in their order. A group that does not fit a bin is refused, or left out as a
    whole if over_length is "drop"; nothing cuts a group. Memory holds 8 bytes for each group and, if ids do not ascend,
    17 for each sequence.

    Raises:
        ValueError: none or several are given, or one is invalid.
    """

    column: str | None = None
    """The integer column of group numbers, from 0. Rows with equal numbers are a group, and must follow each other."""
    size: int | None = None
    """Rows in a group, which are consecutive and counted from the first row: 2 for pairs."""
    numbers: Any = None
    """The group number of each row, for token files, which have no columns: the path or URL of a .npy file. For lengths
    in memory: an array.
    """
    share_prefixes: Any = None
    """Tokens of the sequences: "input" for those of the input, the path of a Megatron file, or in memory anything that
    gives a row of tokens for an id. What sequences of a group begin with then takes room once, and trainers need
    `shared_prefix="tree"`. None: each sequence takes the room of all of its tokens.
    """
    ids: NDArray[np.integer] | None = field(init=False, default=None)
    """The content of `numbers`; a file is mapped: integers [rows]."""
    file: InputFile | None = field(init=False, default=None)
    """The file of `numbers`; None for an array."""

    def __post_init__(self) -> None:
        """Checks the fields, and sets `ids` and `file` from `numbers`."""
        given = {"group_column": self.column, "group_size": self.size, "groups": self.numbers}
        names = [name for name, value in given.items() if value is not None]
        if len(names) != 1:
            said = f"{' and '.join(names)} both say" if names else "nothing says"
            raise ValueError(f"{said} which rows are a group: give one of {', '.join(given)}")
        if not isinstance(self.column, str | None):
            raise ValueError(parameter("group_column") + f" must be a column's name, got {self.column!r:.60}")
        if self.size is not None:
            checked_integer("group_size", self.size, 1)
        if self.numbers is None:
            return
        path = as_path(self.numbers) if isinstance(self.numbers, str | os.PathLike) else None
        stamp = FileStamp.of(path) if path else None
        ids = load_npy(path) if path else np.asarray(self.numbers)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            where = without_secrets(path) if path else "groups"
            raise ValueError(
                f"{where} must be one integer for each row, got {ids.dtype} of shape {list(ids.shape)}: number them"
            )
        object.__setattr__(self, "ids", ids)
        if path and stamp:
            object.__setattr__(self, "file", InputFile(path=path, stamp=stamp, num_rows=len(ids)))

    def with_tokens_of(self, sources: Sequence[str]) -> "Grouping":
        """Returns the grouping with the input's path as `share_prefixes`, if that is "input".

        Args:
            sources: paths of the input; empty for lengths in memory.

        Raises:
            ValueError: `share_prefixes` is "input", and there is not exactly one source.
        """
        if not isinstance(self.share_prefixes, str) or self.share_prefixes != INPUT:  # an array cannot be compared
            return self
        if len(sources) != 1:
            raise ValueError(
                parameter("share_prefixes", INPUT)
                + f" needs one Megatron file as input, and there are {len(sources)}: name the file of all tokens"
            )
        return replace(self, share_prefixes=sources[0])

    def tokens(self) -> Callable[[int], NDArray[np.integer]] | None:
        """Opens `share_prefixes`, and returns a function from an id to its tokens; None if prefixes are not shared."""
        given = self.share_prefixes
        if given is None:
            return None
        if not isinstance(given, str | os.PathLike):
            return lambda number: np.asarray(given[number])
        reader = MegatronTokens(given)
        return reader.read

    def check_rows(self, num_rows: int) -> None:
        """Refuses an input whose number of rows does not fit the groups; raises a ValueError."""
        if self.ids is not None and len(self.ids) != num_rows:
            raise ValueError(
                parameter("groups") + f" has {len(self.ids):,} entries for {num_rows:,} rows: give one for each row"
            )
        if self.size is not None and num_rows % self.size:
            raise ValueError(
                f"{num_rows:,} rows are not a multiple of "
                + parameter("group_size")
                + f" {self.size}: {num_rows % self.size} are left over"
            )

    @property
    def files(self) -> list[InputFile]:
        """The files of groups and of tokens, if any."""
        files = [self.file] if self.file else []
        if isinstance(self.share_prefixes, str | os.PathLike):
            paths = map(str, megatron_paths(self.share_prefixes))
            files += [InputFile(path=path, stamp=FileStamp.of(path), num_rows=0) for path in paths]
        return files

    @property
    def said(self) -> str:
        """The rule in words, for the manifest, as in `GroupRecord.by`."""
        by = f"every {self.size} rows" if self.size else f"column {self.column!r}" if self.column else "groups"
        return by if self.share_prefixes is None else f"{by}, sharing prefixes"


@dataclass(frozen=True, slots=True, eq=False)
class WholeGroups:
    """Consecutive rows that are whole groups: n rows or, after `cut`, pieces of rows, in G groups."""

    keys: NDArray[np.int64]
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
            keys=self.keys[of_row],
            starts=starts,
            lengths=np.minimum(lengths, self.lengths[of_row] - first_tokens),
            ids=self.ids[of_row],
            first=self.first,
            resources=self.resources[of_row],
            first_tokens=first_tokens,
        )


def whole_groups(ranges: Sequence[RowRange], grouping: Grouping) -> Iterator[WholeGroups]:
    """Yields all rows in order, as whole groups.

    The last group of a batch may go on in the next batch, so its rows are held back until then.
    """
    none = np.empty(0, dtype=np.int64)
    keys, lengths, ids, first = none, none, none, 0
    amounts = np.empty((0, len(ranges[0].columns.resources) if ranges else 0), dtype=np.int64)
    # `grouping.ids` begins with the first row of this input, whose number is not 0 when appending.
    begin = ranges[0].first_index if ranges and grouping.ids is not None else 0
    for each in ranges:
        for batch in each.batches():
            row = each.first_index + batch.first_row - each.first_row - begin
            keys = np.concatenate((keys, _keys(batch.groups, row, len(batch.lengths), grouping, batch.first_row, each)))
            lengths = np.concatenate((lengths, batch.lengths))
            ids = np.concatenate((ids, batch.ids))
            none_of_any = np.empty((len(batch.lengths), 0), dtype=np.int64)
            amounts = np.concatenate((amounts, none_of_any if batch.resources is None else batch.resources))
            edges = np.flatnonzero(keys[1:] != keys[:-1]) + 1
            if not len(edges):
                continue
            end = int(edges[-1])
            starts = np.concatenate(([0], edges[:-1]))
            yield WholeGroups(keys[starts], starts, lengths[:end], ids[:end], first, amounts[:end])
            keys, lengths, ids, first, amounts = keys[end:], lengths[end:], ids[end:], first + end, amounts[end:]
    if len(keys):
        yield WholeGroups(keys[:1], np.zeros(1, dtype=np.int64), lengths, ids, first, amounts)


def groups_of_version(before: PreparedDataset | None) -> Iterator[WholeGroups]:
    """Yields the groups of an earlier version from its tables, in their order; none if there is no such version."""
    groups = before.groups if before else None
    if groups is None:
        return
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
        shares = before is not None and before.manifest.shares_prefixes
        yield WholeGroups(table[:, 0], starts, members[:, 1], members[:, 0], 0, amounts, first_tokens, shares)


def _keys(
    held: NDArray[np.int64] | None, row: int, num: int, grouping: Grouping, file_row: int, each: RowRange
) -> NDArray[np.int64]:
    """Returns the group number of each row of a batch: int64 [num].

    Args:
        held: the batch's column of groups; None without one.
        row: number of the batch's first row, as the grouping counts.
        num: rows in the batch.
        grouping: the rule.
        file_row: number of the first row in its file, for messages.
        each: the range of the batch, for messages.
    """
    if grouping.size is not None:
        return np.arange(row, row + num, dtype=np.int64) // grouping.size
    keys = held if grouping.ids is None else grouping.ids[row : row + num].astype(np.int64)
    assert keys is not None  # the reader was asked for the column
    if (keys < 0).any():
        at = int(np.argmax(keys < 0))
        raise ValueError(
            f"{each.where}: row {file_row + at} is of group {keys[at]}; groups are integers from 0 on, and every row "
            "is of one: number them, for example by `pandas.factorize`"
        )
    return keys
