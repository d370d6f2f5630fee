"""Coarse problems: a few classes of neighbouring lengths in place of many lengths.

Owns the classes and the ways there and back. A problem with few lengths is solved in no time, and says something about
the real one: a plan for lengths rounded up to the longest of their class is a plan for the lengths themselves, and a
bound for lengths rounded down to the shortest is a bound for them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from packhorse.packing.plan import Template, canonical_templates

Pair = tuple[int, int]
"""(length, count)."""


def classes(pairs: Sequence[Pair], most: int) -> list[list[Pair]]:
    """Divides (length, count) pairs by descending length into at most so many classes of neighbours.

    No class costs more than another needs to: the tokens that rounding up adds in one class are limited by the least
    limit that leaves so few classes.
    """
    too_small, enough = -1, pairs[0][0] * sum(count for _, count in pairs)
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        if len(_divided(pairs, middle)) <= most:
            enough = middle
        else:
            too_small = middle
    return _divided(pairs, enough)


def rounded(parts: Sequence[Sequence[Pair]], direction: Literal["up", "down"]) -> list[Pair]:
    """Returns one (length, count) pair for each class: its longest or its shortest length, and all its sequences."""
    index = 0 if direction == "up" else -1
    return [(part[index][0], sum(count for _, count in part)) for part in parts]


def refined(templates: Mapping[Template, int], parts: Sequence[Sequence[Pair]]) -> Counter[Template]:
    """Puts the lengths themselves into a plan for those rounded up, longest first; equal bins stay together."""
    left = {part[0][0]: [list(pair) for pair in reversed(part)] for part in parts}  # the longest at the end
    refined: Counter[Template] = Counter()
    for template, multiplicity in canonical_templates(templates):
        runs = Counter(template)
        while multiplicity:
            times = min(multiplicity, *(left[length][-1][1] // copies for length, copies in runs.items()))
            times = max(times, 1)  # none: a bin of its own, with sequences of two lengths of a class
            content: list[int] = []
            for length, copies in runs.items():
                content += _taken(left[length], copies, times)
            refined[tuple(content)] += times
            multiplicity -= times
    return refined


def _taken(left: list[list[int]], copies: int, times: int) -> list[int]:
    """Takes `copies` sequences for each of `times` equal bins, and returns their lengths."""
    lengths: list[int] = []
    while copies:
        length, count = left[-1]
        taken = min(copies, count // times)
        lengths += [length] * taken
        copies -= taken
        left[-1][1] -= taken * times
        if not left[-1][1]:
            left.pop()
    return lengths


def _divided(pairs: Sequence[Pair], most_added: int) -> list[list[Pair]]:
    """Classes in which rounding up adds at most so many tokens."""
    parts: list[list[Pair]] = []
    added = most_added + 1
    for length, count in pairs:
        if parts:
            added += count * (parts[-1][0][0] - length)
        if added > most_added:
            parts.append([])
            added = 0
        parts[-1].append((length, count))
    return parts
