"""The greedy knapsack: bin after bin, the longest that fit."""

from bisect import bisect_right
from collections import Counter

from packhorse.packing import Template


def greedy_knapsack(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Fills each bin with the longest that fit.

    A bin repeats for as long as every length in it lasts, and each repetition uses one of them up or leaves fewer than
    a bin's worth: at most two templates per length.
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
        repeats: list[tuple[int, int]] = []
        while index >= 0 and size < limit:
            copies = min(room // lengths[index], left[index], limit - size)
            repeats.append((index, copies))
            room -= copies * lengths[index]
            size += copies
            index = longest_at_most(min(index, bisect_right(lengths, room, 0, index)) - 1)
        multiplicity = min(left[i] // copies for i, copies in repeats)
        templates[tuple(lengths[i] for i, copies in repeats for _ in range(copies))] += multiplicity
        for i, copies in repeats:
            left[i] -= multiplicity * copies
            if not left[i]:
                not_empty[i + 1] = i
    return templates
