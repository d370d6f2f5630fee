"""How a bin is laid out over the ranks that share it: a long sequence gets many ranks, a short one gets one.

Owns `ContextRule`, which turns the rooms of a bin into parts, and the rooms of an optimizer step into what each rank
computes. The result depends on rooms only, so the planner, every rank and an audit compute the same layout, and
no layout has to be sent. Leaves which tokens of a part each of its ranks computes to `packhorse.parallel`.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from math import isqrt
from typing import NamedTuple

from packhorse.parameters import parameter
from packhorse.topology.checks import checked_integer
from packhorse.topology.topology import DEFAULT_COST_LINEAR, cost_of

DEFAULT_COST_CAP_PERCENT = 300
"""Default of `ContextRule.cost_cap_percent`, which explains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextPart:
    """Sequences that some ranks of a context-parallel group compute together, while no other part uses these ranks."""

    first_rank: int
    """First rank of the part, counted within its context-parallel group; a multiple of `num_ranks`."""
    num_ranks: int
    """Number of consecutive ranks of the part, a power of two."""
    indices: tuple[int, ...]
    """Indices of the part's sequences in the list of rooms that was laid out, ascending."""


@dataclass(frozen=True, slots=True)
class ContextRule:
    """How the sequences of a bin share the ranks of a context-parallel group.

    A bin has room for `tokens_per_rank` tokens on each of these ranks. It is laid out by best-fit-decreasing: each
    sequence, longest first, joins the part that it fills best. If it fits no part, it begins a new one on the fewest
    ranks that hold its tokens and keep its cost within the cap; on all ranks, if even these exceed the cap.

    The planner packs the whole dataset by the same steps and then puts whole parts into bins. Best fit depends only on
    the parts that are there, so laying out one bin finds its planned parts again. A bin that was planned in another
    way, or halved, may need more ranks than there are. Then the whole bin is one part.

    Example:
        >>> rule = ContextRule(tokens_per_rank=8, max_context_parallel=4)
        >>> [(part.first_rank, part.num_ranks, part.indices) for part in rule.lay_out([12, 7, 5, 4])]
        [(0, 2, (0, 3)), (2, 1, (1,)), (3, 1, (2,))]

    Raises:
        ValueError: a number is out of range; the message names it.
    """

    tokens_per_rank: int
    """Tokens that each rank computes in a micro-step; at least 1."""
    max_context_parallel: int
    """Ranks of a context-parallel group, which share a bin; a power of two."""
    cost_cap_percent: int = DEFAULT_COST_CAP_PERCENT
    """The most that a part may cost on each of its ranks, in percent of a rank full of short sequences; at least
    100."""
    cost_linear: int = DEFAULT_COST_LINEAR
    """Cost of a token without attention, as in `Topology`; at least 1."""

    def __post_init__(self) -> None:
        """Checks every number."""
        checked_integer("tokens_per_rank", self.tokens_per_rank, 1)
        checked_integer("cost_cap_percent", self.cost_cap_percent, 100)
        checked_integer("cost_linear", self.cost_linear, 1)
        ranks = checked_integer("max_context_parallel", self.max_context_parallel, 1)
        if ranks & (ranks - 1):
            raise ValueError(f"max_context_parallel must be a power of two, got {ranks}")

    def __str__(self) -> str:
        """The rule in one line."""
        return (
            f"{self.max_context_parallel} ranks with {self.tokens_per_rank:,} tokens each share a bin, cost cap "
            f"{self.cost_cap_percent} %"
        )

    @property
    def max_seq_len(self) -> int:
        """A bin's capacity in tokens."""
        return self.tokens_per_rank * self.max_context_parallel

    @property
    def cost_per_rank(self) -> int:
        """The most that a part may cost on each of its ranks: the cap in units of `cost_of`."""
        return self.cost_linear * self.tokens_per_rank * self.cost_cap_percent // 100

    def of_loader(self, rank: int, num_ranks: int) -> tuple[int, int]:
        """Returns (rank, world_size) for a rank's loader: its context-parallel group's number, and how many there are.

        Ranks that share bins load the same ones.

        Example:
            >>> ContextRule(8192, 4).of_loader(5, 8)
            (1, 2)

        Raises:
            ValueError: the number of ranks is not a multiple of `max_context_parallel`.
        """
        if num_ranks < 1 or num_ranks % self.max_context_parallel:
            raise ValueError(
                f"{num_ranks} ranks are not a multiple of max_context_parallel {self.max_context_parallel}; "
                "start a multiple, or prepare with another " + parameter("tokens_per_rank")
            )
        return rank // self.max_context_parallel, num_ranks // self.max_context_parallel

    def cost(self, room: int) -> int:
        """Returns the cost of a sequence, in units of `cost_of`."""
        return int(cost_of(room, self.cost_linear))

    def num_ranks(self, room: int) -> int:
        """Returns the number of ranks of a part that a sequence begins."""
        ranks, cost, cap = 1, self.cost(room), self.cost_per_rank
        while ranks < self.max_context_parallel and (room > ranks * self.tokens_per_rank or cost > ranks * cap):
            ranks *= 2
        return ranks

    def fits(self, tokens: int, cost: int) -> int:
        """Returns the longest room that fits a part with `tokens` and, under the cap, `cost` left; 0 if none fits."""
        if cost <= 0:
            return 0
        # The largest L with L² + cost_linear · L ≤ cost.
        return min(tokens, (isqrt(self.cost_linear**2 + 4 * cost) - self.cost_linear) // 2)

    def lay_out(self, rooms: Sequence[int]) -> list[ContextPart]:
        """Returns the parts of a bin, by first rank; ranks after the last part have nothing to compute.

        Args:
            rooms: rooms of the bin's sequences, in tokens, in any order; their sum is at most `max_seq_len`.

        Raises:
            ValueError: the sum is larger.
        """
        if sum(rooms) > self.max_seq_len:
            raise ValueError(f"a bin of {sum(rooms)} tokens does not fit {self.max_seq_len}, the room of a bin")
        parts = self._parts(rooms)
        if sum(part.num_ranks for part in parts) > self.max_context_parallel:
            parts = [_Part(self.max_context_parallel, sum(map(self.cost, rooms)), _longest_first(rooms))]
        return _side_by_side(parts)

    def deal(self, rooms: Sequence[int]) -> list[list[ContextPart]]:
        """Returns what each rank computes in an optimizer step, for ranks that only wait for all others at its end.

        A sequence gets the fewest ranks that hold it, or more if these would need more than the mean rank's time.
        Sequences on many ranks come first. Each goes to the aligned block of ranks, as in a buddy allocator, that has
        the least to do so far. Until then all ranks of the block have the same amount of work, so none of them waits
        for another. All ranks compute their common parts in the same order, so they cannot deadlock.

        Example:
            >>> rule = ContextRule(tokens_per_rank=8, max_context_parallel=4)
            >>> [[part.indices for part in parts] for parts in rule.deal([12, 4, 8, 3, 3, 2])]
            [[(0,), (4,)], [(0,), (5,)], [(2,), (1,)], [(2,), (3,)]]

        Args:
            rooms: rooms of all sequences of the optimizer step, in tokens; each at most `max_seq_len`.

        Returns:
            For each of `max_context_parallel` ranks, its parts in the order of computing. A rank may have no part, if
            there are few sequences.

        Raises:
            ValueError: a room is over `max_seq_len`.
        """
        self._check(rooms)
        costs = [self.cost(room) for room in rooms]
        mean_cost = sum(costs) / self.max_context_parallel
        num_ranks = self.max_context_parallel
        blocks = [(0.0, 0)]  # a heap of the blocks of `num_ranks` ranks: (cost so far on each rank, first rank)
        parts_of_block: dict[tuple[int, int], list[_DealtPart]] = {}  # key: (number of ranks, first rank)
        for index in _longest_first(rooms):  # so the number of ranks never grows, and blocks are only ever halved
            room, cost = rooms[index], costs[index]
            while num_ranks > 1 and 2 * room <= num_ranks * self.tokens_per_rank and 2 * cost <= num_ranks * mean_cost:
                num_ranks //= 2
                blocks = [(load, first + half) for load, first in blocks for half in (0, num_ranks)]
                heapify(blocks)
            load, first_rank = blocks[0]
            heapreplace(blocks, (load + cost / num_ranks, first_rank))
            parts = parts_of_block.setdefault((num_ranks, first_rank), [])
            part = next((part for part in parts if room <= part.tokens_left), None)
            if part is None:
                part = _DealtPart(num_ranks * self.tokens_per_rank)
                parts.append(part)
            part.tokens_left -= room
            part.indices.append(index)
        parts_of_rank: list[list[ContextPart]] = [[] for _ in range(self.max_context_parallel)]
        for (block_ranks, first_rank), parts in parts_of_block.items():
            for part in parts:
                common = ContextPart(first_rank=first_rank, num_ranks=block_ranks, indices=tuple(sorted(part.indices)))
                for rank in range(first_rank, first_rank + block_ranks):
                    parts_of_rank[rank].append(common)
        return parts_of_rank

    def tile(self, rooms: Sequence[int]) -> list[list[ContextPart]]:
        """Returns micro-steps in which every rank has a part, for trainers in which no rank may be idle.

        Parts of a micro-step cost about the same. If the last micro-step has ranks left, its costliest parts get them.

        Example:
            >>> rule = ContextRule(tokens_per_rank=8, max_context_parallel=4)
            >>> [[(part.num_ranks, part.indices) for part in parts] for parts in rule.tile([12, 7, 5, 4, 7, 7])]
            [[(2, (0, 3)), (1, (5,)), (1, (4,))], [(2, (1,)), (2, (2,))]]

        Args:
            rooms: rooms of all sequences, in tokens; each at most `max_seq_len`.

        Returns:
            For each micro-step, its parts by first rank.

        Raises:
            ValueError: a room is over `max_seq_len`.
        """
        steps: list[list[_Part]] = []
        free_ranks = 0  # of the last step
        for part in sorted(self._parts(rooms), reverse=True):  # by number of ranks, then by cost
            if not free_ranks:
                steps.append([])
                free_ranks = self.max_context_parallel
            steps[-1].append(part)
            free_ranks -= part.num_ranks
        while free_ranks:  # a multiple of the smallest part's number of ranks, so some part can always be doubled
            last_step = steps[-1]
            costliest = max(
                (index for index, part in enumerate(last_step) if part.num_ranks <= free_ranks),
                key=lambda index: last_step[index].cost / last_step[index].num_ranks,
            )
            part = last_step[costliest]
            free_ranks -= part.num_ranks
            last_step[costliest] = part._replace(num_ranks=2 * part.num_ranks)
        return [_side_by_side(sorted(step, reverse=True)) for step in steps]

    def _parts(self, rooms: Sequence[int]) -> "list[_Part]":
        """Packs sequences into any number of parts, by descending number of ranks."""
        self._check(rooms)
        ranks_of_part: list[int] = []  # how many ranks each part has
        indices_of_part: list[list[int]] = []  # its sequences
        # What each part has left, ascending: (longest room that fits, tokens, cost, number of ranks, index of part).
        left: list[tuple[int, int, int, int, int]] = []
        for index in _longest_first(rooms):
            room = rooms[index]
            best = bisect_left(left, (room,))
            if best == len(left):  # no part has room: a new one
                ranks, part = self.num_ranks(room), len(indices_of_part)
                tokens, cost = ranks * self.tokens_per_rank, ranks * self.cost_per_rank
                ranks_of_part.append(ranks)
                indices_of_part.append([])
            else:
                _, tokens, cost, ranks, part = left.pop(best)
            indices_of_part[part].append(index)
            tokens, cost = tokens - room, cost - self.cost(room)
            insort(left, (self.fits(tokens, cost), tokens, cost, ranks, part))
        return [
            _Part(ranks, sum(self.cost(rooms[index]) for index in indices), indices)
            for ranks, indices in zip(ranks_of_part, indices_of_part, strict=True)
        ]

    def _check(self, rooms: Sequence[int]) -> None:
        """Raises a ValueError if a room is over `max_seq_len`."""
        if max(rooms, default=0) > self.max_seq_len:
            raise ValueError(f"a sequence of {max(rooms)} tokens does not fit {self.max_seq_len}, the room of a bin")


class _Part(NamedTuple):
    """Sequences that some ranks compute together, before it is known which ranks; ordered by its fields."""

    num_ranks: int
    """Number of these ranks."""
    cost: int
    """Sum of the sequences' costs."""
    indices: list[int]
    """Indices of the sequences, by descending room."""


@dataclass(slots=True)
class _DealtPart:
    """Sequences that a block of ranks computes together, while `deal` may still add some."""

    tokens_left: int
    indices: list[int] = field(default_factory=list)


def _longest_first(rooms: Sequence[int]) -> list[int]:
    """Returns the indices of rooms by descending room; equal rooms stay in their order."""
    return sorted(range(len(rooms)), key=rooms.__getitem__, reverse=True)


def _side_by_side(parts: list[_Part]) -> list[ContextPart]:
    """Gives parts their ranks, from rank 0 on without gaps; the parts come by descending number of ranks.

    These numbers are powers of two, so each part begins at a multiple of its number of ranks.
    """
    placed, first_rank = [], 0
    for part in parts:
        placed.append(ContextPart(first_rank=first_rank, num_ranks=part.num_ranks, indices=tuple(sorted(part.indices))))
        first_rank += part.num_ranks
    return placed
