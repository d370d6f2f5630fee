"""Coarse problems: a few classes of neighbouring lengths in place of many lengths.

A plan for lengths rounded up to the longest of their class is also a plan for the lengths themselves. A bound for
lengths rounded down to the shortest of their class is also a bound for them.

Owns the classes, and turning a plan of them into one of the lengths. Leaves solving coarse problems to
`column_generation`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from packhorse.packing.plan import Template, canonical_templates


def coarse_classes(pairs: Sequence[tuple[int, int]], most: int) -> list[list[tuple[int, int]]]:
    """Divides (length, count) pairs by descending length into at most `most` classes of neighbours.

    Rounding up to the longest of a class adds tokens. A bisection finds the least limit of added tokens in a class that
    gives at most `most` classes.
    """
    too_small, enough = -1, pairs[0][0] * sum(count for _, count in pairs)
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        if len(_divided(pairs, middle)) <= most:
            enough = middle
        else:
            too_small = middle
    return _divided(pairs, enough)


def rounded(parts: Sequence[Sequence[tuple[int, int]]], direction: Literal["up", "down"]) -> list[tuple[int, int]]:
    """Returns (length, count) of each class: its longest ("up") or shortest ("down") length, all its sequences."""
    index = 0 if direction == "up" else -1
    return [(part[index][0], sum(count for _, count in part)) for part in parts]


def refined(templates: Mapping[Template, int], parts: Sequence[Sequence[tuple[int, int]]]) -> Counter[Template]:
    """Returns a plan of the lengths themselves, from a plan of the lengths rounded up to the longest of their class.

    The longest of a class go first. Bins of a template take equal contents as long as the counts allow.
    """
    left = {part[0][0]: [list(pair) for pair in reversed(part)] for part in parts}  # the longest at the end
    refined: Counter[Template] = Counter()
    for template, multiplicity in canonical_templates(templates):
        copies_of = Counter(template)
        while multiplicity:
            times = min(multiplicity, *(left[length][-1][1] // copies for length, copies in copies_of.items()))
            times = max(times, 1)  # 0 if a length's rest is too small for a bin, which then gets two lengths of a class
            content: list[int] = []
            for length, copies in copies_of.items():
                content += _taken(left[length], copies, times)
            refined[tuple(content)] += times
            multiplicity -= times
    return refined


def _taken(left: list[list[int]], copies: int, times: int) -> list[int]:
    """Takes `copies` sequences for each of `times` equal bins off `left`; returns the lengths for one bin.

    `left` has [length, count] of a class by ascending length.
    """
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


def _divided(pairs: Sequence[tuple[int, int]], most_added: int) -> list[list[tuple[int, int]]]:
    """Returns the largest classes of neighbours for which rounding up adds at most `most_added` tokens each."""
    parts: list[list[tuple[int, int]]] = []
    added = most_added + 1
    for length, count in pairs:
        if parts:
            added += count * (parts[-1][0][0] - length)
        if added > most_added:
            parts.append([])
            added = 0
        parts[-1].append((length, count))
    return parts
