"""Greedy knapsack: bin after bin, each filled with the longest remaining sequence that still fits.

Owns the packer that LLaMA-Factory's users know. It makes the bins of first-fit-decreasing, by another way.
"""

from bisect import bisect_right
from collections import Counter

from packhorse.packing.plan import Template


def greedy_knapsack(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Packs (length, count) pairs.

    A bin repeats for as long as every length in it lasts, and each repetition uses one of them up or leaves fewer than
    a bin's worth: at most two templates per length.

    Args:
        pairs: (length, count) by descending length, as `checked_counts` returns them.
        capacity: max_seq_len, in tokens.
        limit: the most sequences in a bin.

    Returns:
        Template → multiplicity.
    """
    lengths = [length for length, _ in reversed(pairs)]
    left = [count for _, count in reversed(pairs)]
    not_empty = list(range(len(lengths) + 1))  # [i + 1]: guess at the largest index <= i with sequences left, plus 1

    def longest_at_most(index: int) -> int:
        slot = index + 1
        while not_empty[slot] != slot:
            not_empty[slot] = not_empty[not_empty[slot]]
            slot = not_empty[slot]
        return slot - 1

    templates: Counter[Template] = Counter()
    while (index := longest_at_most(len(lengths) - 1)) >= 0:
        room, size = capacity, 0
        runs: list[tuple[int, int]] = []
        while index >= 0 and size < limit:
            copies = min(room // lengths[index], left[index], limit - size)
            runs.append((index, copies))
            room -= copies * lengths[index]
            size += copies
            index = longest_at_most(min(index, bisect_right(lengths, room, 0, index)) - 1)
        multiplicity = min(left[i] // copies for i, copies in runs)
        templates[tuple(lengths[i] for i, copies in runs for _ in range(copies))] += multiplicity
        for i, copies in runs:
            left[i] -= multiplicity * copies
            if not left[i]:
                not_empty[i + 1] = i
    return templates
