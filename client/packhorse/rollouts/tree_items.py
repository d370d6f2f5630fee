"""Which rollouts are planned as one item, so that they share a row and their common prefix is computed once.

Owns the items that go to the planner: groups, and halves of groups that are too large. Leaves the order of prefixes to
`packhorse.wire.prefixes`, and placing items in bins to the service's planner.

Legend: R rollouts in the order of their prefixes (in which rollouts with a common prefix are neighbours), c amounts
that a bin limits (distinct tokens, trained tokens, resources). A node is a token of the tree of prefixes: see
`PrefixTree` in `prefix_tree`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Self

import numpy as np
from numpy.typing import NDArray

from packhorse.topology import cost_of
from packhorse.wire.prefixes import by_prefix

Span = tuple[int, int]
"""An item: the rollouts [begin, end) in the order of prefixes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedPrefixes:
    """Rollouts in groups, each group in the order of its prefixes, with sums that give what any `Span` takes.

    Example:
        >>> rows = [np.array([1, 2, 3]), np.array([1, 2, 4])]
        >>> shared = SharedPrefixes.of(rows, np.array([2, 2]), None, np.ones((2, 1), dtype=np.int64))
        >>> shared.groups, shared.amounts((0, 2)).tolist()
        ([(0, 2)], [5, 2])
    """

    order: NDArray[np.int64]
    """The rollouts' indices, group after group: int64 [R]."""
    groups: list[Span]
    """Each group, as a range of `order`."""
    up_to: NDArray[np.int64]
    """Prefix sums over `order` of lengths, squared lengths and the other c - 1 amounts: int64 [R + 1, c + 1]."""
    shared_up_to: NDArray[np.int64]
    """Prefix sums of the nodes that each rollout shares with the one before it in its group, and of their squares:
    int64 [R + 1, 2]."""

    @classmethod
    def of(
        cls,
        rows: Sequence[NDArray[np.integer]],
        query_lengths: NDArray[np.int64],
        group_of: NDArray[np.int64] | None,
        other_amounts: NDArray[np.int64],
        kinds: NDArray[np.int64] | None = None,
    ) -> Self:
        """Groups rollouts.

        Args:
            rows: tokens of every rollout: R arrays of integers [length].
            query_lengths: tokens of each rollout's query: int64 [R].
            group_of: number of each rollout's group: int64 [R]. With None, neighbours are in a group if the whole query
                of one begins the other, such as answers to a query and the turns of a conversation.
            other_amounts: what each rollout takes besides tokens: int64 [R, c - 1].
            kinds: a number for each rollout; rollouts with different numbers are never in a group: int64 [R]. None if
                all may be.
        """
        same = np.zeros(len(rows), dtype=np.int64)  # what is not given does not separate rollouts
        kinds_and_groups = np.stack((same if kinds is None else kinds, same if group_of is None else group_of))
        order, shared = by_prefix(rows)
        if group_of is not None or kinds is not None:
            order, shared = _by_group(order, shared, kinds_and_groups)
        queries = query_lengths[order] if group_of is None else None
        begins = _begins_of_groups(kinds_and_groups[:, order], shared, queries)
        shared[begins] = 0  # a group's first rollout shares nothing with the group before
        lengths = np.array([len(rows[index]) for index in order.tolist()], dtype=np.int64)
        starts = np.flatnonzero(begins)
        return cls(
            order=order,
            groups=list(zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True)),
            up_to=_sums_up_to(np.column_stack((lengths, lengths**2, other_amounts[order]))),
            shared_up_to=_sums_up_to(np.column_stack((shared, shared**2))),
        )

    def amounts(self, span: Span) -> NDArray[np.int64]:
        """Returns what an item takes: distinct tokens, and then each other amount: int64 [c]."""
        return np.delete(self._sums(*span), 1)  # without the cost of attention

    def cost(self, span: Span, cost_linear: int) -> int:
        """Returns what an item costs: for each distinct token `cost_linear`, and 2 · depth + 1 for its attention.

        Over the L tokens of one sequence, Σ (2 · depth + 1) = L², so an item of one sequence costs what `cost_of` says.
        In a tree this sum is the sequences' L² less the squares of the nodes that each shares with the one before it.
        """
        num_tokens, attended = self._sums(*span)[:2].tolist()
        # `cost_of` has L² for the attention of one sequence; the tree's own sum takes its place.
        return int(cost_of(num_tokens, cost_linear) - num_tokens**2 + attended)

    def halved(self, span: Span) -> list[Span]:
        """Cuts an item of two rollouts or more in two.

        The cut is where (distinct tokens of the larger half) + (distinct tokens of both) is least: the halves are
        about even, and share little with each other.
        """
        begin, end = span
        cuts = np.arange(begin + 1, end)
        num_tokens, shared = self.up_to[:, 0], self.shared_up_to[:, 0]
        # What the first rollout of a half shares with the one before it is not in the half, so it does not count.
        left_tokens = num_tokens[cuts] - num_tokens[begin] - (shared[cuts] - shared[begin + 1])
        right_tokens = num_tokens[end] - num_tokens[cuts] - (shared[end] - shared[cuts + 1])
        cut = int(cuts[np.argmin(np.maximum(left_tokens, right_tokens) + left_tokens + right_tokens)])
        return [(begin, cut), (cut, end)]

    def _sums(self, begin: int, end: int) -> NDArray[np.int64]:
        """Returns an item's distinct tokens, the sum of their 2 · depth + 1, and each other amount: int64 [c + 1]."""
        sums = self.up_to[end] - self.up_to[begin]
        # From the second rollout on, what is shared with the one before is there already.
        sums[:2] -= self.shared_up_to[end] - self.shared_up_to[begin + 1]
        return sums


def _by_group(
    order: NDArray[np.int64], shared: NDArray[np.int64], kinds_and_groups: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sorts rollouts by kind, then group; within these the order of prefixes stays.

    Two rollouts that become neighbours share as little as any neighbours between them did.

    Args:
        order: rollouts in the order of prefixes: int64 [R].
        shared: nodes that each shares with the one before it: int64 [R].
        kinds_and_groups: kind and group of each rollout: int64 [2, R].

    Returns:
        `order` and `shared` of the new order.
    """
    kinds, groups = kinds_and_groups[:, order]
    places = np.lexsort((np.arange(len(order)), groups, kinds))  # the last key sorts first
    return order[places], _least_between(shared, places)


def _begins_of_groups(
    kinds_and_groups: NDArray[np.int64], shared: NDArray[np.int64], query_lengths: NDArray[np.int64] | None
) -> NDArray[np.bool_]:
    """Returns whether a group begins with each rollout: bool [R].

    All arguments are in the order of the rollouts. A group begins where kind or group changes; and, if
    `query_lengths` are given, where two neighbours do not share the whole query of one of them.
    """
    begins = np.ones(len(shared), dtype=np.bool_)
    begins[1:] = (np.diff(kinds_and_groups) != 0).any(axis=0)
    if query_lengths is not None:
        shorter_query = np.minimum(query_lengths[1:], query_lengths[:-1])
        begins[1:] |= shared[1:] + 1 < shorter_query  # + 1: rows that share k tokens share k - 1 nodes
    return begins


def _sums_up_to(columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the prefix sums of each column, from a row of zeros: int64 [R + 1, columns]."""
    return np.concatenate((np.zeros((1, columns.shape[1]), dtype=np.int64), np.cumsum(columns, axis=0)))


def _least_between(shared: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the nodes that the rollout at each place shares with the one at the place before: int64 [R].

    Args:
        shared: nodes that each rollout shares with the one before it, in the order of prefixes: int64 [R].
        places: indices into that order: int64 [R]. They ascend within a group; where they descend, the next group
            begins and the result is 0.
    """
    least = np.zeros(len(places), dtype=np.int64)
    ascending = np.flatnonzero(np.diff(places) > 0) + 1
    if len(ascending):
        # From a to b > a the least of shared[a + 1], …, shared[b]. `reduceat` also reduces between these ranges: [::2].
        bounds = np.column_stack((places[ascending - 1] + 1, places[ascending] + 1)).ravel()
        least[ascending] = np.minimum.reduceat(np.append(shared, 0), bounds)[::2]
    return least


def items_that_fit(prefixes: SharedPrefixes, capacities: NDArray[np.int64], min_items: int) -> list[Span]:
    """Returns the groups as items, in order; those that are too large for a pack are cut.

    Args:
        prefixes: the rollouts.
        capacities: what a pack holds of each amount: int64 [c]; each rollout by itself fits.
        min_items: the number of packs in a step: the largest items are cut until there are so many, or until each has
            one rollout.
    """
    items: list[Span] = []
    unchecked = list(prefixes.groups)
    while unchecked:
        span = unchecked.pop()
        if (prefixes.amounts(span) <= capacities).all():
            items.append(span)
        else:
            unchecked += prefixes.halved(span)
    return sorted(_at_least(min_items, items, prefixes))


def _at_least(min_items: int, items: list[Span], prefixes: SharedPrefixes) -> list[Span]:
    """Halves the item with the most distinct tokens until there are `min_items`, or all have one rollout."""
    largest = [(-int(prefixes.amounts(span)[0]), span) for span in items]  # a heap: most distinct tokens first
    heapify(largest)
    single: list[Span] = []  # items of one rollout, which cannot be cut
    while largest and len(largest) + len(single) < min_items:
        _, (begin, end) = heappop(largest)
        if end - begin == 1:
            single.append((begin, end))
            continue
        for half in prefixes.halved((begin, end)):
            heappush(largest, (-int(prefixes.amounts(half)[0]), half))
    return single + [span for _, span in largest]


def finer_items(
    prefixes: SharedPrefixes, items: list[Span], costs: NDArray[np.int64], max_cost: float
) -> list[Span] | None:
    """Returns the items, of which those that cost more than `max_cost` are halved; None if no item can be halved."""
    finer: list[Span] = []
    for cost, (begin, end) in zip(costs.tolist(), items, strict=True):
        is_halved = cost > max_cost and end - begin > 1
        finer += prefixes.halved((begin, end)) if is_halved else [(begin, end)]
    return finer if len(finer) > len(items) else None
