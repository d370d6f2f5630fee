"""Online packing: sequences arrive one by one or in groups, and full bins leave.

Owns the look-ahead, a bounded number of sequences that are held back, and when a bin leaves it. Leaves what items and
bins are to `online_items`, choosing the items of the bin that leaves to `next_bin`, and packing all that is held, at a
flush, to `best_fit` and `on_demand/sequences`.

An item is a sequence, or a group of sequences that share a bin. In reinforcement learning a sequence has the version of
the policy that wrote it, and `evict` drops those that are too old.

Shape letters: n items held, d budgets.
"""

from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.packing.best_fit import best_fit_decreasing
from packhorse.packing.counts import MAX_SEQ_LEN
from packhorse.packing.on_demand.next_bin import filled_bin, fullest_bin
from packhorse.packing.on_demand.online_items import OnlineBin, OnlineItem
from packhorse.packing.on_demand.sequences import pack_sizes
from packhorse.packing.plan import canonical_templates
from packhorse.parameters import parameter
from packhorse.topology import LEAST_EXTRA_TOKENS, RoomRule, checked_integer

MAX_UNITS = 1 << 17
"""Largest capacity that a search counts in tokens. For larger ones lengths are rounded up to units of several tokens.
This wastes less than a unit for each sequence, and bounds time and memory."""

PATIENCE_LOOKAHEADS = 2
"""Number of bins, in look-aheads, that may leave before a sequence has to. Measured: with less, short sequences are
forced out before the long ones that need them arrive; with more, long ones that nothing fits fill the look-ahead."""

DEFAULT_LOOKAHEAD_SEQUENCES = 1000
"""Most sequences held back by default. `Client.pack_stream` has the same default, but can import nothing from here."""


class _Held(NamedTuple):
    """An item that is held back."""

    item: OnlineItem
    num_left_before: int
    """Bins that had left before it came."""


class OnlinePacker:
    """Packs sequences as they arrive, holding back at most `lookahead_sequences` of them.

    When one more is held, a bin leaves: the longest sequence with which others make an exactly full bin (a subset sum).
    Long ones are tried before short ones, because short ones can fill later gaps. If no bin is exactly full, the
    fullest that was found leaves.

    A sequence is overdue after PATIENCE_LOOKAHEADS · lookahead_sequences bins have left, and the next bin always has
    the oldest overdue one. At most lookahead_sequences are older than a sequence, so each is in one of the
    (PATIENCE_LOOKAHEADS + 1) · lookahead_sequences + 1 bins that follow its arrival.

    With `separate_versions` a bin has sequences of one version, and those of the oldest version leave first.

    Under further budgets (`caps`) there is no such search: the bin begins with the item that takes the largest share of
    a bin, and gets the next largest that fit.

    A group is packed as one sequence with the rooms of its members together; each member counts in the look-ahead. The
    same sequences in the same order give the same bins.

    Example:
        >>> packer = OnlinePacker(10, lookahead_sequences=2)
        >>> [[bin_.ids for bin_ in packer.add(*each)] for each in [(7, 6), (8, 5), (9, 4)]]
        [[], [], [[7, 9]]]
        >>> [bin_.ids for bin_ in packer.add_group([1, 2], [4, 1])], [bin_.ids for bin_ in packer.flush()]
        ([[8, 1, 2]], [])

    Args:
        max_seq_len: a bin's capacity, in tokens.
        lookahead_sequences: the most sequences held back, at least 1. As many as fill several bins pack well.
        max_sequences_per_bin: the most sequences in a bin; None for no limit. With a limit the search may miss the
            fullest bin, because it keeps only one way to reach each sum, and groups are refused.
        align: a sequence's room is a multiple of this many tokens.
        extra_tokens: tokens added to every sequence before rounding; -1 leaves out the last one.
        caps: the cap of each further resource, such as image tiles.
        separate_versions: whether sequences of different versions share no bin.

    Raises:
        ValueError: an option is out of range.
    """

    def __init__(
        self,
        max_seq_len: int,
        *,
        lookahead_sequences: int = DEFAULT_LOOKAHEAD_SEQUENCES,
        max_sequences_per_bin: int | None = None,
        align: int = 1,
        extra_tokens: int = 0,
        caps: Sequence[int] = (),
        separate_versions: bool = False,
    ) -> None:
        self._capacity = checked_integer("max_seq_len", max_seq_len, 1, MAX_SEQ_LEN)
        self._lookahead = checked_integer("lookahead_sequences", lookahead_sequences, 1)
        self._limit = self._capacity
        self._takes_groups = max_sequences_per_bin is None
        if max_sequences_per_bin is not None:
            self._limit = min(self._capacity, checked_integer("max_sequences_per_bin", max_sequences_per_bin, 1))
        self._rule = RoomRule(
            self._capacity,
            align=checked_integer("align", align, 1, self._capacity),
            extra_tokens=checked_integer("extra_tokens", extra_tokens, LEAST_EXTRA_TOKENS, self._capacity - 1),
        )
        self._caps = [checked_integer("every cap", cap, 1, MAX_SEQ_LEN) for cap in caps]
        self._unit = -(-self._capacity // MAX_UNITS)  # in tokens
        self._separate_versions = separate_versions
        self._held: dict[int, _Held] = {}  # arrival number -> item, oldest first
        # Version (0 if items of all versions share bins) -> (-room, arrival number), ascending. No list is empty.
        self._by_version: dict[int, list[tuple[int, int]]] = {}
        self._num_arrived = 0
        self._num_held = 0  # sequences
        self._num_left = 0  # bins that have left, without those of flushes

    def __len__(self) -> int:
        """Number of sequences held back."""
        return self._num_held

    def add(self, sequence_id: int, length: int) -> list[OnlineBin]:
        """Adds one sequence.

        Args:
            sequence_id: any integer, which need not be unique.
            length: in tokens.

        Returns:
            The bins that leave: none until the look-ahead is full, then at most one.

        Raises:
            ValueError: the length is not an integer in [1, max_seq_len], or does not fit with `align` and
                `extra_tokens`.
        """
        return self.add_group([sequence_id], [length])

    def add_group(
        self,
        ids: Sequence[int],
        lengths: Sequence[int],
        amounts: Sequence[Sequence[int]] = (),
        versions: Sequence[int] = (),
    ) -> list[OnlineBin]:
        """Adds sequences that share a bin, next to each other, in this order.

        Args:
            ids: any integers, at least one.
            lengths: in tokens, one for each.
            amounts: what each takes of each of `caps`; empty without caps.
            versions: the version of the policy that wrote each; empty if there are none.

        Returns:
            The bins that leave, until no more than the look-ahead is held.

        Raises:
            ValueError: a length is out of range, they do not fit a bin together, bins have a limit of sequences, or
                versions are separate and these have several.
        """
        return self.add_item(self.item(ids, lengths, amounts, versions))

    def add_item(self, item: OnlineItem) -> list[OnlineBin]:
        """Holds an item, and returns the bins that leave, until no more than the look-ahead is held."""
        self._held[self._num_arrived] = _Held(item, self._num_left)
        insort(self._by_version.setdefault(self._version_of(item), []), (-_room(item), self._num_arrived))
        self._num_arrived += 1
        self._num_held += len(item.ids)
        leaving = []
        while self._num_held > self._lookahead:
            leaving.append(self._take_next_bin())
        return leaving

    def next_bin(self, up_to: int | None = None) -> OnlineBin | None:
        """Makes a bin leave now, even if the look-ahead is not full.

        Args:
            up_to: a version; the bin has the oldest item of this version or an older one. None for any bin.

        Returns:
            The bin; None if nothing, or no such item, is held.
        """
        if up_to is None:
            return self._take_next_bin() if self._held else None
        for arrival, (item, _) in self._held.items():  # oldest arrival first
            if min(item.versions, default=up_to) <= up_to:
                return self._take_next_bin(arrival)
        return None

    def flush(self) -> list[OnlineBin]:
        """Packs all sequences that are held, by best-fit-decreasing; more may be added afterwards."""
        take_all = self._take_all_under_caps if self._caps else self._take_all_by_tokens
        return [bin_ for version in sorted(self._by_version) for bin_ in take_all(version)]

    def evict(self, oldest: int, *, whole_groups: bool) -> list[int]:
        """Drops sequences whose version is older than allowed.

        Args:
            oldest: the oldest version that is kept.
            whole_groups: whether a group is dropped as a whole if one of its sequences is older.

        Returns:
            Ids of the dropped sequences, in the order in which they came.
        """
        stale = [arrival for arrival, (item, _) in self._held.items() if min(item.versions, default=oldest) < oldest]
        ids = []
        for arrival in stale:
            item, num_left_before = self._held[arrival]
            self._by_version[self._version_of(item)].remove((-_room(item), arrival))
            kept, gone = self.without_stale(item, oldest, whole_groups=whole_groups)
            ids += gone
            self._num_held -= len(gone)
            if kept is None:
                del self._held[arrival]
            else:  # under its old arrival number, so that it is overdue when it would have been
                self._held[arrival] = _Held(kept, num_left_before)
                insort(self._by_version.setdefault(self._version_of(kept), []), (-_room(kept), arrival))
        self._by_version = {version: items for version, items in self._by_version.items() if items}
        return ids

    def item(
        self,
        ids: Sequence[int],
        lengths: Sequence[int],
        amounts: Sequence[Sequence[int]] = (),
        versions: Sequence[int] = (),
    ) -> OnlineItem:
        """Returns the item of some sequences without holding it. Arguments and errors are those of `add_group`."""
        room = self.room_of_group(lengths)
        if self._separate_versions and len(set(versions)) != 1:
            raise ValueError(f"its sequences are of versions {sorted(set(versions))}, and a bin has one: give them one")
        together = [sum(column) for column in zip(*amounts, strict=True)] if amounts else []
        self._check_amounts(together)
        # With a limit of sequences the last of `capacities` is this limit, and an item is one: groups were refused.
        num_sequences = [1] if self._is_limited else []
        return OnlineItem(
            ids=tuple(map(int, ids)),
            lengths=tuple(map(int, lengths)),
            sizes=(room, *map(int, together), *num_sequences),
            amounts=tuple(tuple(map(int, of_sequence)) for of_sequence in amounts),
            versions=tuple(map(int, versions)),
        )

    def without(self, item: OnlineItem, gone: Iterable[int]) -> OnlineItem | None:
        """Returns an item without the sequences with the indices `gone`; None if no sequence is left."""
        left = sorted(set(range(len(item.ids))) - set(gone))
        if not left:
            return None
        return self.item(
            [item.ids[at] for at in left],
            [item.lengths[at] for at in left],
            [item.amounts[at] for at in left] if item.amounts else (),
            [item.versions[at] for at in left] if item.versions else (),
        )

    def without_stale(
        self, item: OnlineItem, oldest: int, *, whole_groups: bool
    ) -> tuple[OnlineItem | None, list[int]]:
        """Returns an item without the sequences that `evict` drops (None if it drops all), and the ids of these."""
        stale = [at for at, version in enumerate(item.versions) if version < oldest]
        if stale and whole_groups:
            stale = list(range(len(item.ids)))
        return self.without(item, stale), [item.ids[at] for at in stale]

    def room_of(self, length: int) -> int:
        """Returns the room of a sequence in tokens; raises the errors of `add`."""
        room = int(self._rule.room(checked_integer("length", length, 1, self._rule.longest_length)))
        if room > self._capacity:
            raise ValueError(
                f"length {length} takes {room} tokens with "
                + parameter("extra_tokens")
                + f" {self._rule.extra_tokens} and align {self._rule.align}, more than "
                + parameter("max_seq_len")
                + f" {self._capacity}"
            )
        return room

    def room_of_group(self, lengths: Sequence[int]) -> int:
        """Returns the room of a group in tokens; raises the errors of `add_group`."""
        if len(lengths) > 1 and not self._takes_groups:
            raise ValueError(parameter("max_sequences_per_bin") + " does not go with groups: leave it out")
        room = sum(map(self.room_of, lengths))
        if room > self._capacity:
            raise ValueError(
                f"it takes {room} tokens together, over "
                + parameter("max_seq_len")
                + f" {self._capacity}: raise it, or leave out sequences of the group"
            )
        return room

    @property
    def capacities(self) -> NDArray[np.int64]:
        """A bin's capacity in each budget: tokens, each of `caps`, and sequences if they are limited: int64 [d]."""
        most_sequences = [self._limit] if self._is_limited else []
        return np.array([self._capacity, *self._caps, *most_sequences], dtype=np.int64)

    def _check_amounts(self, amounts: Sequence[int]) -> None:
        """Raises a ValueError if an item's amounts are not one for each cap, within it."""
        if len(amounts) != len(self._caps):
            raise ValueError(f"there are {len(self._caps)} caps, and amounts of {len(amounts)}: give one for each")
        for amount, cap in zip(amounts, self._caps, strict=True):
            if not 0 <= amount <= cap:
                raise ValueError(f"it takes {amount} of a resource of which a bin holds {cap}: raise the cap")

    @property
    def _is_limited(self) -> bool:
        """Whether a bin can reach the limit of sequences before it is full of tokens."""
        return self._limit < self._capacity

    def _version_of(self, item: OnlineItem) -> int:
        """Returns the key in `_by_version` of the items that may share a bin with an item."""
        return item.versions[0] if self._separate_versions else 0

    def _sizes(self, arrivals: Iterable[int]) -> NDArray[np.int64]:
        """Returns the sizes of the items with some arrival numbers: int64 [n, d]."""
        return np.array([self._held[arrival].item.sizes for arrival in arrivals], dtype=np.int64)

    def _take_next_bin(self, wanted_arrival: int | None = None) -> OnlineBin:
        """Removes the next bin from the look-ahead; it has the item with number `wanted_arrival`, if one is given."""
        if wanted_arrival is None:
            version = min(self._by_version)
            arrival = self._oldest_arrival(version)
        else:
            version = self._version_of(self._held[wanted_arrival].item)
            arrival = wanted_arrival
        item, num_left_before = self._held[arrival]
        by_room = self._by_version[version]
        is_overdue = self._num_left - num_left_before >= PATIENCE_LOOKAHEADS * self._lookahead
        is_forced = is_overdue or wanted_arrival is not None
        forced = bisect_left(by_room, (-_room(item), arrival)) if is_forced else -1  # its index in `by_room`
        if self._caps:
            sizes = self._sizes(arrival for _, arrival in by_room)
            return self._take_chosen(version, filled_bin(sizes, self.capacities, forced))
        rooms = -np.array([negative_room for negative_room, _ in by_room], dtype=np.int64)  # [n], descending
        capacity = self._capacity // self._unit
        units = np.minimum(-(-rooms // self._unit), capacity)  # the longest, rounded up, would exceed the capacity
        return self._take_chosen(version, fullest_bin(units, capacity, self._limit, forced).tolist())

    def _oldest_arrival(self, version: int) -> int:
        """Returns the least arrival number of the items under a key of `_by_version`."""
        if len(self._by_version) == 1:
            return next(iter(self._held))  # without a look at every item
        return min(arrival for _, arrival in self._by_version[version])

    def _take_chosen(self, version: int, chosen: list[int]) -> OnlineBin:
        """Removes the items with the given indices in `_by_version[version]`, ascending, and returns their bin.

        It counts as a bin that has left.
        """
        by_room = self._by_version[version]
        arrivals = [arrival for _, arrival in map(by_room.__getitem__, chosen)]
        for index in reversed(chosen):
            del by_room[index]
        if not by_room:
            del self._by_version[version]
        self._num_left += 1
        return self._take_arrivals(arrivals)

    def _take_all_by_tokens(self, version: int) -> list[OnlineBin]:
        """Removes all items of a version, packed; items of equal room go into bins in the order in which they came."""
        arrivals_of_room: defaultdict[int, deque[int]] = defaultdict(deque)
        for arrival in sorted(arrival for _, arrival in self._by_version.pop(version)):
            arrivals_of_room[_room(self._held[arrival].item)].append(arrival)
        pairs = sorted(((room, len(queue)) for room, queue in arrivals_of_room.items()), reverse=True)
        templates = canonical_templates(best_fit_decreasing(pairs, self._capacity, self._limit))
        return [
            self._take_arrivals(arrivals_of_room[room].popleft() for room in template)
            for template, multiplicity in templates
            for _ in range(multiplicity)
        ]

    def _take_all_under_caps(self, version: int) -> list[OnlineBin]:
        """Removes all items of a version, packed under several budgets."""
        arrivals = sorted(arrival for _, arrival in self._by_version.pop(version))
        bins = pack_sizes(self._sizes(arrivals), self.capacities).bins()
        return [self._take_arrivals(arrivals[index] for index in indices) for indices in bins]

    def _take_arrivals(self, arrivals: Iterable[int]) -> OnlineBin:
        """Removes the items with some arrival numbers from `_held` only, and returns their bin."""
        items = [self._held.pop(arrival).item for arrival in arrivals]
        self._num_held -= sum(len(item.ids) for item in items)
        return OnlineBin(items)


def _room(item: OnlineItem) -> int:
    """Returns the room of an item in tokens."""
    return item.sizes[0]
