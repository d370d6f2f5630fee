"""The packer of context plans: bins of parts, each part on as many ranks as its sequences need.

Owns packing equal parts at once, and parts into bins. Leaves what a part may hold, and finding the parts of a
bin again, to `packhorse.topology.ContextRule`.
"""

import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Mapping

from packhorse.packing.bounds import bound_of_pairs
from packhorse.packing.counts import checked_counts
from packhorse.packing.plan import PackingPlan, Template
from packhorse.topology import ContextRule

_Content = tuple[tuple[int, int], ...]
"""(room, copies), descending."""
_Alike = tuple[int, int, int, int, int, int, _Content]
"""Equal parts: (longest room that fits, tokens left, cost left, ranks of each, stamp, number of parts, content)."""


def pack_context(counts: Mapping[int, int], rule: ContextRule) -> PackingPlan:
    """Plans an epoch in which several ranks share each bin.

    Parts of one bin take about as long on each of their ranks, since bins are filled with parts by their cost.

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


def _parts(pairs: list[tuple[int, int]], rule: ContextRule) -> list[_Alike]:
    """Packs (room, count) pairs, by descending room, as `ContextRule.lay_out` packs one sequence after the other.

    A part that takes a sequence is then the best for the next one of the same room, so a room fills all equal parts.
    """
    shortest = pairs[-1][0] if pairs else 0
    left: list[_Alike] = []  # ascending, those that something may still fit into
    closed: list[_Alike] = []
    stamp = 0

    def put(tokens: int, cost: int, ranks: int, num_parts: int, content: _Content) -> None:
        nonlocal stamp
        stamp += 1
        alike = (rule.fits(tokens, cost), tokens, cost, ranks, stamp, num_parts, content)
        if alike[0] < shortest:
            closed.append(alike)
        else:
            insort(left, alike)

    for room, count in pairs:
        own_cost = rule.cost(room)
        while count:
            at = bisect_left(left, (room,))
            if at < len(left):
                _, tokens, cost, ranks, _, num_parts, content = left.pop(at)
            else:
                ranks, num_parts, content = rule.num_ranks(room), count, ()
                tokens, cost = ranks * rule.tokens_per_rank, ranks * rule.cost_per_rank
            copies = max(1, min(tokens // room, cost // own_cost))  # 1 where it alone is over the cap
            num_full, rest = divmod(count, copies)
            if num_full >= num_parts:
                num_full, rest = num_parts, 0
            for num, each in ((num_full, copies), (1 if rest else 0, rest)):
                if num:
                    taken = (*content, (room, each))
                    put(tokens - each * room, cost - each * own_cost, ranks, num, taken)
                    num_parts -= num
                    count -= num * each
            if num_parts and content:
                put(tokens, cost, ranks, num_parts, content)
    return [*closed, *left]


def _bins(parts: list[_Alike], rule: ContextRule) -> Counter[Template]:
    """Fills bins with parts: those on the most ranks first, so that each is aligned, and the costliest of these."""
    bins: Counter[Template] = Counter()
    held: Counter[int] = Counter()
    free = rule.max_context_parallel

    def close() -> None:
        nonlocal free
        if held:
            bins[_template(held)] += 1
        held.clear()
        free = rule.max_context_parallel

    for ranks, num_parts, content in _by_cost(parts):
        while num_parts:
            per_bin = free // ranks
            if free == rule.max_context_parallel and num_parts >= per_bin:
                num_bins, num_parts = divmod(num_parts, per_bin)
                bins[_template({room: copies * per_bin for room, copies in content})] += num_bins
                continue
            num = min(per_bin, num_parts)
            for room, copies in content:
                held[room] += num * copies
            num_parts -= num
            free -= num * ranks
            if not free:
                close()
    close()
    return bins


def _by_cost(parts: list[_Alike]) -> Iterator[tuple[int, int, _Content]]:
    for _, _, _, ranks, _, num_parts, content in sorted(parts, key=lambda part: (-part[3], part[2], part[6])):
        yield ranks, num_parts, content


def _template(held: Mapping[int, int]) -> Template:
    return tuple(room for room in sorted(held, reverse=True) for _ in range(held[room]))
