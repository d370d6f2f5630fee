"""The greedy knapsack: fills one bin after the other, each with the longest sequences that fit."""

from bisect import bisect_right
from collections import Counter

from packhorse.packing import Template


def greedy_knapsack(pairs: list[tuple[int, int]], capacity: int, limit: int) -> Counter[Template]:
    """Fills one bin after the other, each with the longest sequences that fit.

    For the arguments, see `REFERENCE_PACKERS`.

    A template is used as many times as all of its lengths allow. Then one of its lengths is used up, or has fewer
    sequences left than the template takes. So there are at most two templates for each distinct length.
    """
    lengths = [length for length, _ in reversed(pairs)]
    left = [count for _, count in reversed(pairs)]
    parents = list(range(len(lengths) + 1))  # see longest_at_most

    def longest_at_most(index: int) -> int:
        """Returns the largest index, at most this one, of a length with sequences left; -1 if there is none.

        This is a union-find search. Length i has slot i + 1, which is its own parent if sequences of the length are
        left; otherwise its parent is a smaller slot. Slot 0 means that there is none. Paths are halved on the way.
        """
        slot = index + 1
        while parents[slot] != slot:
            parents[slot] = parents[parents[slot]]
            slot = parents[slot]
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
            index = longest_at_most(bisect_right(lengths, room, 0, index) - 1)  # a shorter length that still fits
        multiplicity = min(left[i] // copies for i, copies in repeats)
        templates[tuple(lengths[i] for i, copies in repeats for _ in range(copies))] += multiplicity
        for i, copies in repeats:
            left[i] -= multiplicity * copies
            if not left[i]:
                parents[i + 1] = i  # the slot of the next shorter length
    return templates
