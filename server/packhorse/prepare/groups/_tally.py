"""The groups of an input, counted while they are read in order, and their tables written.

Owns `GroupTally`: which groups fit a bin, and what the over-length policy does with the others. Leaves facts of the
members that fit to `_member_facts`, messages to `_refusals`, and reading whole groups to `_whole_groups`.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.dataset import (
    GROUPS,
    MEMBERS,
    RESOURCES,
    OverLengthLedger,
    PlanOptions,
    PreparedDataset,
    growing_array,
)
from packhorse.jobs import Progress
from packhorse.parameters import parameter
from packhorse.prepare.counting import LONGEST_SPLIT, exact_sum
from packhorse.prepare.groups._by_room import MostByRoom
from packhorse.prepare.groups._member_facts import MemberFacts
from packhorse.prepare.groups._refusals import refusal_of
from packhorse.prepare.groups._resources import SizeCounts
from packhorse.prepare.groups._whole_groups import WholeGroups, groups_of_version, whole_groups
from packhorse.prepare.groups.grouping import Grouping
from packhorse.prepare.input import Opened, Resource
from packhorse.topology.checks import counted


class _Kept(NamedTuple):
    """Which of some groups fit a bin, and the members of these."""

    is_group_kept: NDArray[np.bool_]
    """Whether each group fits: bool [G]."""
    ends: NDArray[np.int64]
    """Where the members of each group that fits end in members.npy: int64 [kept]."""
    members: NDArray[np.int64]
    """(id, length) of these members: int64 [n, 2]."""


class GroupTally:
    """Counts groups while they are read in order, and notes those that do not fit a bin."""

    def __init__(self, options: PlanOptions, before: PreparedDataset | None, resources: tuple[Resource, ...]) -> None:
        self._options, self._before = options, before
        self.sizes = SizeCounts(resources, options.max_seq_len)
        self.item_word = "group"
        """The word for a group in messages; "sequence" if each row is a group."""
        self.num_groups = 0
        """Number of groups that fit, with those of the version before."""
        self.num_dropped = 0
        """Number of groups of the input that do not fit."""
        self.members = MemberFacts()
        """Facts of the members of all groups that fit."""
        self.most_by_room = MostByRoom()
        """Room of a group → most members in one group."""
        self.ledger = before.manifest.over_length if before else OverLengthLedger()
        self.over_length = [before.over_length()] if before else []
        """(id, length) of the sequences that were split, or whose group was left out: a list of int64 [n, 2]."""
        self._unsplittable = ""
        """Why the first sequence that cannot be split does not fit a bin; empty without any."""
        self.dropped = [np.empty(0, dtype=np.int64) if before is None else before.dropped_groups()]
        """Numbers, as the input gives them, of groups that were left out: a list of int64 [n]."""
        self.group_numbers = [*self.dropped]
        """Numbers, as the input gives them, of all groups, left out or not: a list of int64 [n]."""

    def read(self, opened: Opened, grouping: Grouping, folder: Path, progress: Progress) -> int:
        """Counts the groups of the version before and of the input, and writes the tables of groups and members.

        Args:
            opened: the rows.
            grouping: which of them are a group.
            folder: the folder to write groups.npy and members.npy into, and resources.npy if there are resources.
            progress: shows the rows that were read.

        Returns:
            The number of groups in the version before.

        Raises:
            ValueError: a group does not fit a bin, and the over-length policy does not leave it out.
        """
        with (
            growing_array(folder / GROUPS, "int64", 2) as add_groups,
            growing_array(folder / MEMBERS, "int64", 2) as add_members,
            ExitStack() as files,
            progress.task("gathering groups", opened.num_rows, "sequences") as advance,
        ):
            num_resources = len(self.sizes.resources)
            if num_resources:
                add_amounts = files.enter_context(growing_array(folder / RESOURCES, "uint32", num_resources))
            if grouping.size == 1:
                self.item_word = "sequence"

            def add(rows: WholeGroups) -> None:
                """Counts some groups, and appends those that fit to the tables."""
                kept = self._count(rows)
                add_groups(np.stack((rows.group_numbers[kept.is_group_kept], kept.ends), axis=1))
                add_members(kept.members)
                if num_resources:
                    add_amounts(rows.resources[np.repeat(kept.is_group_kept, rows.sizes)])
                if grouping.size is None:  # else the input gives no numbers
                    self.group_numbers.append(rows.group_numbers)
                    self.dropped.append(rows.group_numbers[~kept.is_group_kept])

            for rows in groups_of_version(self._before):
                add(rows)
            num_before = self.num_groups
            tokens = grouping.tokens()
            for rows in whole_groups(opened.ranges, grouping):
                num_rows = len(rows.lengths)  # before they are split
                if tokens is not None:
                    rows = rows.sharing_prefixes(tokens)
                elif self._options.over_length == "split":
                    rows = self._in_pieces(rows)
                add(rows)
                advance(num_rows)
        self._refuse_unsplittable()
        return num_before

    def _refuse_unsplittable(self) -> None:
        """Raises a ValueError if a sequence that was to be split cannot be."""
        if self._unsplittable:
            raise ValueError(
                self._unsplittable
                + f", and cannot be split (in all: {counted(self.num_dropped, 'such row')}); raise "
                + parameter("max_seq_len")
                + " or the cap, leave such rows out of the input, or choose "
                + parameter("over_length", "drop")
                + ", which also leaves out long text"
            )

    def _in_pieces(self, rows: WholeGroups) -> WholeGroups:
        """Splits the over-long sequences that take nothing of any resource, and adds them to the ledger."""
        piece_tokens = self._options.rooms.longest
        is_split = (rows.lengths > piece_tokens) & ~rows.resources.any(axis=1)
        if not is_split.any():
            return rows
        lengths = rows.lengths[is_split]
        if (longest := int(lengths.max())) > LONGEST_SPLIT:
            at = int(np.argmax(is_split & (rows.lengths == longest)))
            raise ValueError(
                f"sequence {rows.ids[at]} (row {rows.row_number(at)}) has {longest} tokens; sequences of up to "
                f"{LONGEST_SPLIT} can be split: repair the length, or choose " + parameter("over_length", "drop")
            )
        pieces = rows.split(is_split, piece_tokens)
        self.over_length.append(np.stack((rows.ids[is_split], lengths), axis=1))
        self.ledger += OverLengthLedger(
            sequences=len(lengths),
            source_tokens=exact_sum(lengths),
            # Rows that were not split are in both numbers.
            pieces=len(pieces.lengths) - len(rows.lengths) + len(lengths),
        )
        return pieces

    def _count(self, rows: WholeGroups) -> _Kept:
        """Counts some groups; those that do not fit a bin are treated as `over_length` says, and not kept."""
        num_members = rows.sizes
        # Lengths are clipped so that sums do not overflow: a column may hold anything up to 2^63.
        too_long = self._options.rooms.longest_length + 1
        rooms = self._options.rooms.room(np.minimum(rows.lengths, too_long))
        group_rooms = np.add.reduceat(rooms, rows.starts)
        amounts = np.add.reduceat(rows.resources, rows.starts)
        group_sizes = self.sizes.sizes_of(group_rooms, amounts)
        is_kept = np.asarray((group_sizes <= self.sizes.capacities).all(axis=1))
        members, first_tokens = np.stack((rows.ids, rows.lengths), axis=1), rows.first_tokens
        if not is_kept.all():
            self._apply_policy(rows, is_kept, group_sizes)
            self.num_dropped += int((~is_kept).sum())
            is_member_kept = np.repeat(is_kept, num_members)
            members = members[is_member_kept]
            first_tokens = None if first_tokens is None else first_tokens[is_member_kept]
        num_kept = num_members[is_kept]
        ends = self.members.num_members + np.cumsum(num_kept)
        self.num_groups += int(is_kept.sum())
        if self.sizes.resources:
            self.sizes.add(group_sizes[is_kept], amounts[is_kept], num_kept)
        self.most_by_room.put(group_rooms[is_kept], num_kept)
        self.members.add(members, first_tokens, shares_prefixes=rows.prefix_tokens is not None)
        return _Kept(is_kept, ends, members)

    def _apply_policy(self, rows: WholeGroups, is_kept: NDArray[np.bool_], group_sizes: NDArray[np.int64]) -> None:
        """Treats groups that do not fit a bin as `over_length` says.

        "drop" enters them in the ledger; "error" refuses the first; "split" only notes why the first does not fit, and
        `read` refuses at the end, with the number of all of them.

        Args:
            rows: some groups.
            is_kept: whether each fits: bool [G].
            group_sizes: the size of each, tokens and then resources with a cap: int64 [G, d].
        """
        if self._options.over_length == "drop":
            num_members = rows.sizes
            is_out = np.repeat(~is_kept, num_members)  # by row
            lengths = rows.source_lengths
            tokens = exact_sum(lengths[is_out])
            do_tokens_fit = group_sizes[:, 0] <= self._options.max_seq_len  # so a resource does not
            over_cap = int(num_members[~is_kept & do_tokens_fit].sum())
            self.over_length.append(np.stack((rows.ids, lengths), axis=1)[is_out])
            self.ledger += OverLengthLedger(
                sequences=int(is_out.sum()), source_tokens=tokens, tokens=tokens, over_cap=over_cap
            )
            return
        first_over = int(np.argmin(is_kept))
        refusal = refusal_of(
            rows,
            first_over,
            group_sizes[first_over],
            options=self._options,
            sizes=self.sizes,
            item_word=self.item_word,
        )
        if self._options.over_length == "error":
            raise ValueError(refusal.why + "; " + refusal.way_out)
        if not self._unsplittable:
            self._unsplittable = refusal.why
