"""Groups, which are sequences that always share a bin: an epoch of groups becomes an epoch of their members.

Owns `Groups`, the table of groups and members, and `GroupedSource`, which replaces each group by its members and
locates members. The source that it wraps knows groups only: its pool has numbers of groups instead of ids, and a
group's length is the sum of its members' rooms. Leaves making the table to `packhorse.prepare`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packhorse.compiling import inlined, kernel_or
from packhorse.epoch.bins import Bins, PoolArray
from packhorse.epoch.sources.source import Locations, Source
from packhorse.topology import RoomRule

_ID, _END, _LENGTH = 0, 1, 1  # columns of `Groups.table`, (id, end), and of `Groups.members`, (id, length)


@dataclass(frozen=True, eq=False, kw_only=True)
class Groups:
    """The groups of a dataset, and their members. Groups are numbered from 0, in the order of the input.

    Shape letters: G groups, n members, k resources.

    Example:
        >>> groups = Groups(  # group 7 is sequences 20 and 21, group 9 is sequence 22
        ...     table=np.array([[7, 2], [9, 3]]),
        ...     members=np.array([[20, 5], [21, 4], [22, 6]]),
        ...     rooms=RoomRule(max_seq_len=16),
        ...     max_sequences_per_bin=3,
        ... )
        >>> groups.members_of(np.array([1, 0]))
        (array([2, 0, 1]), array([1, 2]))
    """

    table: NDArray[np.int64]
    """(id, exclusive end of its members in `members`) of every group: int64 [G, 2]."""
    members: NDArray[np.int64]
    """(id, length in tokens) of every member, group after group: int64 [n, 2]."""
    rooms: RoomRule
    """How a member's room follows from its length."""
    max_sequences_per_bin: int
    """The most members in any bin."""
    resources: NDArray[np.uint32] | None = None
    """Every member's amount of each resource: uint32 [n, k]; None without resources."""
    costs: tuple[int, ...] = ()
    """Cost of one unit of each resource: k numbers."""
    are_named: bool = True
    """Whether bins have `group_ids`."""
    order: NDArray[np.int64] | None = None
    """Indices into `members` by ascending id: int64 [n]; None if `members` already ascend by id. Pieces of a sequence
    keep their order.
    """
    first_tokens: PoolArray | None = None
    """Every member's first token in its sequence: uint32 or int64 [n]; None if each is 0."""
    shares_prefixes: bool = False
    """Whether a member attends to the tokens before its first one, which another member of its group has in the bin."""

    def members_of(self, numbers: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the members of some groups, group after group, and the number of members of each.

        Args:
            numbers: numbers of groups; repeats allowed: int [g].

        Returns:
            Indices into `members`, int64 [members of these groups], and numbers of members, int64 [g].
        """
        numbers = numbers.astype(np.int64)
        begins = _begins_of(self.table, numbers)
        sizes = self.table[numbers, _END] - begins
        before = np.cumsum(sizes) - sizes
        return np.repeat(begins - before, sizes) + np.arange(int(sizes.sum())), sizes

    def find(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Finds the members with some ids, as rows: one for each piece, and one for an id that no member has.

        Returns:
            For each row, its index in `ids`, and its index in `members` or -1: int64 [rows] both.
        """
        order, num_members = self.order, len(self.members)

        def members_by_id(indices: NDArray[np.int64]) -> NDArray[np.int64]:
            """Returns the members at some indices of the order by id."""
            return indices if order is None else order[indices]

        begins = _first_not(lambda indices: self.members[members_by_id(indices), _ID] < ids, num_members, len(ids))
        ends = _first_not(lambda indices: self.members[members_by_id(indices), _ID] <= ids, num_members, len(ids))
        sizes = np.maximum(ends - begins, 1)  # rows of each id
        which = np.repeat(np.arange(len(ids)), sizes)  # [2, 1] -> [0, 0, 1]
        indices = np.arange(len(which)) + (begins - np.cumsum(sizes) + sizes)[which]
        return which, np.where(indices < ends[which], members_by_id(np.minimum(indices, num_members - 1)), -1)

    def groups_of(self, members: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the number of the group of each member, given indices into `members`: int64 [len(members)]."""
        return _first_not(lambda indices: self.table[indices, _END] <= members, len(self.table), len(members))


class GroupedSource:
    """An epoch of groups in which each group is replaced by its members, in their order.

    Example:
        >>> from packhorse.epoch import EpochView, PlanIndex
        >>> plan = PlanIndex.build({(9, 6): 1}, {9: 1, 6: 1}, 16)
        >>> packed = EpochView(plan, np.array([1, 0]), seed=0, epoch=0)  # group 1 has 6 tokens, group 0 has 9
        >>> table, members = np.array([[7, 2], [9, 3]]), np.array([[20, 5], [21, 4], [22, 6]])
        >>> groups = Groups(table=table, members=members, rooms=RoomRule(16), max_sequences_per_bin=3)
        >>> bins = GroupedSource(packed, groups).bins([0])
        >>> bins.ids.tolist(), bins.group_ids.tolist()
        ([20, 21, 22], [7, 7, 9])

    Args:
        source: an epoch whose ids are numbers of groups, and whose lengths are sums of members' rooms.
        groups: the groups.
    """

    def __init__(self, source: Source, groups: Groups) -> None:
        self._source = source
        self._groups = groups
        self.num_bins = source.num_bins
        self.num_bytes = int(getattr(source, "num_bytes", 0))
        self.max_seq_len = source.max_seq_len
        self.max_sequences_per_bin = groups.max_sequences_per_bin

    def bins(self, positions: ArrayLike) -> Bins:
        """Returns the bins at the given positions, in that order; raises a ValueError if one is outside.

        They have group_ids if `Groups.are_named`.
        """
        packed, groups = self._source.bins(positions), self._groups
        bin_ends = np.empty_like(packed.bin_ends)
        num_members = _fill_ends(groups.table, packed.ids, packed.bin_ends, bin_ends)
        ids, group_ids = np.empty((2, num_members), dtype=np.int64)
        lengths = np.empty(num_members, dtype=np.int32)
        rooms = groups.rooms
        _expand(groups.table, groups.members, rooms.align, rooms.extra_tokens, packed.ids, ids, lengths, group_ids)
        first_tokens = groups.first_tokens
        return Bins(
            ids=ids,
            lengths=lengths,
            bin_ends=bin_ends,
            positions=packed.positions,
            first_tokens=None if first_tokens is None else first_tokens[groups.members_of(packed.ids)[0]],
            group_ids=group_ids if groups.are_named else None,
        )

    def costs(self, positions: ArrayLike, cost_linear: int) -> NDArray[np.int64]:
        """Returns the costs of the bins at the given positions: int64 [N].

        A bin costs the sum over its members, each of which is a sequence, and the cost of its resources. If prefixes
        are shared, a member lacks the tokens before its first one, but its token t still costs cost_linear + 2 · t + 1,
        as in the whole sequence.
        """
        bins, groups = self.bins(positions), self._groups
        costs = bins.costs(cost_linear)
        if groups.shares_prefixes and bins.first_tokens is not None:
            # A member of L tokens costs cost_linear · L + L² from token 0 on; from token f on, 2 · f · L more.
            prefix_costs = 2 * bins.first_tokens.astype(np.int64) * bins.lengths
            costs += np.diff(np.concatenate(([0], np.cumsum(prefix_costs)))[bins.bin_ends], prepend=0)
        if groups.resources is None or not any(groups.costs):
            return costs
        members, _ = groups.members_of(self._source.bins(positions).ids)
        member_costs = groups.resources[members].astype(np.int64) @ np.array(groups.costs)
        costs_before = np.concatenate(([0], np.cumsum(member_costs)))
        return costs + np.diff(costs_before[bins.bin_ends], prepend=0)

    def locate(self, ids: ArrayLike) -> Locations:
        """Returns where members are in the epoch."""
        wanted_ids, groups = np.ascontiguousarray(ids, dtype=np.int64), self._groups
        which, found = groups.find(wanted_ids)
        is_there = found >= 0
        members = found[is_there]
        numbers = groups.groups_of(members)
        located = self._source.locate(numbers)  # the groups
        own_index = members - _begins_of(groups.table, numbers)
        own_index += self._members_before(located.positions, located.index_in_bin)
        first_tokens, lengths, positions, index_in_bin = np.full((4, len(which)), -1, dtype=np.int64)
        first_tokens[is_there] = 0 if groups.first_tokens is None else groups.first_tokens[members]
        lengths[is_there] = groups.rooms.room(groups.members[members, _LENGTH])
        positions[is_there] = located.positions
        index_in_bin[is_there] = np.where(located.positions < 0, -1, own_index)
        return Locations(
            ids=wanted_ids[which],
            first_tokens=first_tokens,
            lengths=lengths,
            positions=positions,
            index_in_bin=index_in_bin,
        )

    def _members_before(self, positions: NDArray[np.int64], index_in_bin: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns, for some groups, the number of members in the earlier groups of the same bin: int64 [n].

        Args:
            positions: position of each group's bin: int64 [n]; -1 for a group that is not in the epoch.
            index_in_bin: index of each group among the groups of its bin: int64 [n].
        """
        unique, which = np.unique(positions[positions >= 0], return_inverse=True)
        packed = self._source.bins(unique)
        _, sizes = self._groups.members_of(packed.ids)
        before = np.concatenate(([0], np.cumsum(sizes)))
        firsts = (packed.bin_ends - packed.sizes())[which]  # first group of each group's bin, as an index of `sizes`
        counts = np.zeros(len(positions), dtype=np.int64)
        counts[positions >= 0] = before[firsts + index_in_bin[positions >= 0]] - before[firsts]
        return counts


def _first_not(
    is_before: Callable[[NDArray[np.int64]], NDArray[np.bool_]], size: int, num_wanted: int
) -> NDArray[np.int64]:
    """Returns, for each wanted value, the first index of ascending values that is not before it: int64 [n].

    It is `size` if all are before it. Unlike `np.searchsorted`, it reads only the values that it compares, so a column
    of a memory-mapped table is not copied.

    Args:
        is_before: takes an index for each wanted value, int64 [n]; returns whether the values there are before the
            wanted ones, bool [n].
        size: number of ascending values.
        num_wanted: n, the number of wanted values.
    """
    low = np.zeros(num_wanted, dtype=np.int64)
    high = np.full(num_wanted, size, dtype=np.int64)
    while (is_open := low < high).any():
        middle = (low + high) >> 1
        goes_up = is_open & is_before(np.minimum(middle, size - 1))
        low = np.where(goes_up, middle + 1, low)
        high = np.where(is_open & ~goes_up, middle, high)
    return low


def _begins_of(table: NDArray[np.int64], numbers: NDArray[np.integer]) -> NDArray[np.int64]:
    """Returns the index in `Groups.members` of the first member of some groups, by their numbers: int64 [g]."""
    return np.where(numbers > 0, table[numbers - 1, _END], 0)


@inlined
def _begin_of(table: Any, number: Any) -> Any:
    """Returns the index in `Groups.members` of a group's first member."""
    return table[number - 1, _END] if number else 0


@kernel_or()
def _fill_ends(table: Any, numbers: Any, packed_ends: Any, bin_ends_out: Any) -> int:
    """Writes each bin's exclusive end among the members of all its groups, and returns the number of members.

    Args:
        table: `Groups.table`.
        numbers: numbers of the groups of all bins, end to end.
        packed_ends: exclusive end of each bin in `numbers`: int64 [N].
        bin_ends_out: receives the ends: int64 [N].
    """
    end = 0
    first = 0
    for b in range(len(packed_ends)):
        for i in range(first, packed_ends[b]):
            number = np.int64(numbers[i])
            end += table[number, _END] - _begin_of(table, number)
        first = packed_ends[b]
        bin_ends_out[b] = end
    return end


@kernel_or()
def _expand(
    table: Any,
    members: Any,
    align: Any,
    extra_tokens: Any,
    numbers: Any,
    ids_out: Any,
    lengths_out: Any,
    groups_out: Any,
) -> None:
    """Writes the ids, rooms and groups' ids of the members of some groups, group after group.

    Args:
        table: `Groups.table`.
        members: `Groups.members`.
        align: as in `RoomRule`, whose formula this repeats.
        extra_tokens: as in `RoomRule`.
        numbers: numbers of the groups.
        ids_out: receives ids: int64 [members].
        lengths_out: receives rooms: int32 [members].
        groups_out: receives ids of groups: int64 [members].
    """
    index = 0
    for i in range(len(numbers)):
        number = np.int64(numbers[i])
        for member in range(_begin_of(table, number), table[number, _END]):
            ids_out[index] = members[member, _ID]
            lengths_out[index] = (max(members[member, _LENGTH] + extra_tokens, 1) + align - 1) // align * align
            groups_out[index] = table[number, _ID]
            index += 1
