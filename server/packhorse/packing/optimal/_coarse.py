"""Coarse problems: a few classes of neighbouring lengths in place of many lengths.

A plan for lengths rounded up to the longest of their class is also a plan for the lengths themselves. A bound for
lengths rounded down to the shortest of their class is also a bound for them.

Owns the classes, and turning plans and prices for them into those for the lengths. Leaves solving coarse problems to
`column_generation`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from packhorse.packing.plan import Template, canonical_templates

LengthClass = list[tuple[int, int]]
"""(length, count) of neighbouring lengths, descending."""


def coarse_classes(pairs: Sequence[tuple[int, int]], most_classes: int) -> list[LengthClass]:
    """Divides (length, count) pairs by descending length into at most `most_classes` classes of neighbours.

    Rounding up to the longest of a class adds tokens. A bisection finds the least limit for the tokens added in a class
    under which the classes are few enough.
    """
    longest, _ = pairs[0]
    too_small, enough = -1, longest * sum(count for _, count in pairs)
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        if len(_divided(pairs, middle)) <= most_classes:
            enough = middle
        else:
            too_small = middle
    return _divided(pairs, enough)


def _divided(pairs: Sequence[tuple[int, int]], most_added_tokens: int) -> list[LengthClass]:
    """Returns the largest classes of neighbours for which rounding up adds at most `most_added_tokens` each."""
    classes: list[LengthClass] = []
    longest = added = 0
    for length, count in pairs:
        added += count * (longest - length)
        if not classes or added > most_added_tokens:
            classes.append([])
            longest, added = length, 0
        classes[-1].append((length, count))
    return classes


def rounded(classes: Sequence[LengthClass], direction: Literal["up", "down"]) -> list[tuple[int, int]]:
    """Returns (length, count) of each class: its longest ("up") or shortest ("down") length, all its sequences."""
    target = 0 if direction == "up" else -1  # lengths descend
    return [(members[target][0], sum(count for _, count in members)) for members in classes]


def refined_prices(prices: Mapping[int, int], classes: Sequence[LengthClass]) -> dict[int, int]:
    """Returns prices of the lengths themselves, from prices of the shortest of their class; see `DualCertificate`."""
    prices_of_lengths: dict[int, int] = {}
    for members in classes:
        shortest, _ = members[-1]
        if shortest in prices:
            prices_of_lengths |= {length: prices[shortest] for length, _ in members}
    return prices_of_lengths


def refined(templates: Mapping[Template, int], classes: Sequence[LengthClass]) -> Counter[Template]:
    """Returns a plan of the lengths themselves, from a plan of the lengths rounded up to the longest of their class.

    The longest of a class go first. Bins of a template take equal contents as long as the counts allow.
    """
    left = {length: count for members in classes for length, count in members}
    lengths_of: dict[int, list[int]] = {}  # the longest of a class → all its lengths with sequences left, ascending
    for members in classes:
        longest, _ = members[0]
        lengths_of[longest] = [length for length, _ in reversed(members)]
    plan: Counter[Template] = Counter()
    for template, multiplicity in canonical_templates(templates):
        copies_of = Counter(template)
        while multiplicity:
            times = min(
                multiplicity, *(left[lengths_of[longest][-1]] // copies for longest, copies in copies_of.items())
            )
            times = max(times, 1)  # it is 0 if too few sequences of a length are left: the bin then also gets the next
            content: list[int] = []
            for longest, copies in copies_of.items():
                content += _take(lengths_of[longest], left, copies, times)
            plan[tuple(content)] += times  # descending, as classes are, and as `_take` takes their lengths
            multiplicity -= times
    return plan


def _take(lengths: list[int], left: dict[int, int], copies: int, times: int) -> list[int]:
    """Takes `copies` sequences of a class for each of `times` equal bins; returns the lengths for one bin.

    `lengths` are those of the class with sequences left, ascending; `left` is the number for each. Both are changed.
    """
    content: list[int] = []
    while copies:
        longest = lengths[-1]
        taken = min(copies, left[longest] // times)
        content += [longest] * taken
        copies -= taken
        left[longest] -= taken * times
        if not left[longest]:
            lengths.pop()
    return content
