"""The packer for bins that several ranks share: sequences go into parts, and parts into bins.

A part is computed by as many ranks as its sequences need. Owns packing all sequences of a length at once, by the same
rule by which `packhorse.topology.ContextRule` lays out one bin. Leaves what a part may hold, and finding the parts of a
bin again, to `packhorse.topology.ContextRule`.
"""

import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from packhorse.packing.bounds import bound_of_pairs
from packhorse.packing.counts import checked_counts
from packhorse.packing.plan import PackingPlan, Template
from packhorse.topology import ContextRule

_Content = tuple[tuple[int, int], ...]
"""What a part holds: (room in tokens, number of sequences) by descending room."""


class _EqualParts(NamedTuple):
    """Parts with equal contents. They are ordered by their fields, of which the first four may be equal."""

    longest_fitting: int
    """The longest room that still fits each part."""
    tokens: int
    """Tokens that each part has left."""
    cost: int
    """Cost that each part has left."""
    num_ranks: int
    """Ranks of each part."""
    stamp: int
    """Counted up with every change, so it is distinct and orders parts by age."""
    num_parts: int
    """Number of these parts."""
    content: _Content
    """Content of each part."""


def pack_context(counts: Mapping[int, int], rule: ContextRule) -> PackingPlan:
    """Plans an epoch in which several ranks share each bin.

    Bins are filled with parts in the order of their cost, so the ranks of a bin have about the same work.

    Example:
        >>> plan = pack_context({12: 2, 7: 2, 5: 2, 4: 2}, ContextRule(tokens_per_rank=8, max_context_parallel=4))
        >>> sorted(plan.templates.items(), reverse=True)
        [((12, 12, 4, 4), 1), ((7, 7, 5, 5), 1)]

    Args:
        counts: room in tokens → number of sequences.
        rule: how ranks share bins.

    Raises:
        ValueError: a room exceeds the rule's max_seq_len, or a count is negative.
    """
    begin = time.perf_counter()
    pairs, limit = checked_counts(counts, rule.max_seq_len, None)
    return PackingPlan(
        templates=_bins(_parts(pairs, rule), rule),
        max_seq_len=rule.max_seq_len,
        lower_bound=bound_of_pairs(pairs, rule.max_seq_len, limit),
        algorithm="context",
        seconds=time.perf_counter() - begin,
    )


def _parts(pairs: list[tuple[int, int]], rule: ContextRule) -> list[_EqualParts]:
    """Packs (room, count) pairs by descending room into parts, the same ones as `ContextRule.lay_out`.

    `lay_out` packs one sequence after another. But a part that took a sequence is also the best fit for the next one of
    the same room, so here all sequences of a room go into all equal parts at once.
    """
    shortest = pairs[-1][0] if pairs else 0
    open_parts: list[_EqualParts] = []  # ascending; parts that the shortest room still fits
    closed_parts: list[_EqualParts] = []
    stamp = 0

    def put_back(tokens: int, cost: int, ranks: int, num_parts: int, content: _Content) -> None:
        """Adds equal parts to `open_parts` or `closed_parts`; each has `tokens` and `cost` left."""
        nonlocal stamp
        stamp += 1
        parts = _EqualParts(rule.fits(tokens, cost), tokens, cost, ranks, stamp, num_parts, content)
        if parts.longest_fitting < shortest:
            closed_parts.append(parts)
        else:
            insort(open_parts, parts)

    for room, count in pairs:
        own_cost = rule.cost(room)
        while count:
            best = bisect_left(open_parts, (room,))  # the least `longest_fitting` of at least `room`
            if best < len(open_parts):
                _, tokens, cost, ranks, _, num_parts, content = open_parts.pop(best)
            else:
                ranks, num_parts, content = rule.num_ranks(room), count, ()
                tokens, cost = ranks * rule.tokens_per_rank, ranks * rule.cost_per_rank
            copies = max(1, min(tokens // room, cost // own_cost))  # 1 if a single sequence is over the cap
            num_full, rest = divmod(count, copies)
            if num_full >= num_parts:
                num_full, rest = num_parts, 0
            # Parts that take as many sequences as they can, and one part that takes the rest.
            for num_equal, taken in ((num_full, copies), (1 if rest else 0, rest)):
                if num_equal:
                    filled = (*content, (room, taken))
                    put_back(tokens - taken * room, cost - taken * own_cost, ranks, num_equal, filled)
                    num_parts -= num_equal
                    count -= num_equal * taken
            if num_parts and content:  # parts that took none; new ones without a content are not needed
                put_back(tokens, cost, ranks, num_parts, content)
    return [*closed_parts, *open_parts]


def _bins(parts: list[_EqualParts], rule: ContextRule) -> Counter[Template]:
    """Fills bins with parts, those on the most ranks first, so that each begins at a multiple of its ranks."""
    bins: Counter[Template] = Counter()
    held: Counter[int] = Counter()  # room → number of sequences in the bin that is being filled
    free_ranks = rule.max_context_parallel  # of this bin

    def close() -> None:
        """Counts the bin that is being filled, and begins an empty one."""
        nonlocal free_ranks
        if held:
            bins[_template(held)] += 1
        held.clear()
        free_ranks = rule.max_context_parallel

    for ranks, num_parts, content in _by_cost(parts):
        while num_parts:
            per_bin = free_ranks // ranks
            if free_ranks == rule.max_context_parallel and num_parts >= per_bin:  # whole bins of these parts
                num_bins, num_parts = divmod(num_parts, per_bin)
                bins[_template({room: copies * per_bin for room, copies in content})] += num_bins
                continue
            num_added = min(per_bin, num_parts)
            for room, copies in content:
                held[room] += num_added * copies
            num_parts -= num_added
            free_ranks -= num_added * ranks
            if not free_ranks:
                close()
    close()
    return bins


def _by_cost(parts: list[_EqualParts]) -> Iterator[tuple[int, int, _Content]]:
    """Yields (ranks of each part, number of parts, content): most ranks first, and the costliest first among equals."""
    # The costliest part has the least cost left.
    for equal in sorted(parts, key=lambda equal: (-equal.num_ranks, equal.cost, equal.content)):
        yield equal.num_ranks, equal.num_parts, equal.content


def _template(held: Mapping[int, int]) -> Template:
    """Returns the template of a bin, from room → number of sequences."""
    return tuple(room for room in sorted(held, reverse=True) for _ in range(held[room]))
