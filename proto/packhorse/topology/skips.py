"""Ranges of positions that a run leaves out, because of a spike in the loss or a takedown.

Owns the ranges, and the arithmetic between positions of the whole epoch and positions of what is left. Leaves the
source without these positions to `packhorse.epoch`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from packhorse.parameters import parameter
from packhorse.topology.checks import checked_integer, quoted


@dataclass(frozen=True, slots=True)
class Skips:
    """Ranges [first, end) of positions of the whole epoch that are left out: ascending, disjoint, not empty.

    The positions that are left, "the rest", are renumbered from 0, so that steps, cursors and streams count them
    without a gap. Those before the first range keep their numbers.

    Example:
        >>> skips = Skips.parse(["1200:1300", "10:12"])
        >>> str(skips), skips.num_skipped, skips.to_whole(9), skips.to_whole(10)
        ('10:12,1200:1300', 102, 9, 12)
    """

    ranges: tuple[tuple[int, int], ...] = ()
    """(first, end) of every range."""

    @classmethod
    def of(cls, ranges: Iterable[Sequence[int]]) -> "Skips":
        """Returns skips of ranges in any order, which may overlap. It sorts them, and merges those that touch.

        Raises:
            ValueError: a range is empty or begins below 0.
        """
        merged: list[tuple[int, int]] = []
        given: list[Any] = [each if hasattr(each, "__len__") else (each,) for each in ranges]  # a number has no len
        if wrong := [each for each in given if len(each) != 2]:
            raise ValueError(parameter("skip") + f" takes pairs (first, end), got {quoted(wrong[0])}")
        checked = [(checked_integer("skip", first, 0), checked_integer("skip", end, 0)) for first, end in given]
        for first, end in sorted(checked):
            if end <= first:
                raise ValueError(
                    parameter("skip") + f" {first}:{end} is empty; a range is FIRST:END, and END is not part of it"
                )
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((first, end))
        return cls(tuple(merged))

    @classmethod
    def parse(cls, texts: Iterable[str]) -> "Skips":
        """Reads texts of one or more ranges `FIRST:END`, separated by commas.

        Raises:
            ValueError: a text is something else.
        """
        given = None if isinstance(texts, str) or not isinstance(texts, Iterable) else tuple(texts)
        if given is None or not all(isinstance(text, str) for text in given):
            raise ValueError(
                parameter("skip") + f" must be a list of texts FIRST:END, e.g. ['1200:1300'], got {quoted(texts)}"
            )
        parts = [part.strip() for text in given for part in text.split(",") if part.strip()]
        ranges = []
        for part in parts:
            first, colon, end = part.partition(":")
            if not colon or not first.strip().isdecimal() or not end.strip().isdecimal():
                raise ValueError(
                    parameter("skip") + f" {part!r} is not FIRST:END, e.g. 1200:1300 for the positions 1200 to 1299"
                )
            ranges.append((int(first), int(end)))
        return cls.of(ranges)

    def __str__(self) -> str:
        """`FIRST:END` of every range, separated by commas, which `parse` reads."""
        return ",".join(f"{first}:{end}" for first, end in self.ranges)

    def __bool__(self) -> bool:
        """Whether anything is skipped."""
        return bool(self.ranges)

    @property
    def num_skipped(self) -> int:
        """Number of positions left out."""
        return sum(end - first for first, end in self.ranges)

    def within(self, num_bins: int) -> "Skips":
        """Returns the part of these ranges that lies in an epoch of `num_bins` bins."""
        return Skips(tuple((first, min(end, num_bins)) for first, end in self.ranges if first < num_bins))

    def plus(self, other: "Skips") -> "Skips":
        """Returns skips of the positions that these or the others leave out."""
        return Skips.of((*self.ranges, *other.ranges)) if other else self

    def minus(self, other: "Skips") -> "Skips":
        """Returns skips of the positions that these leave out and the others do not.

        Compares each range with each other one: there are few.

        Example:
            >>> str(Skips.parse(["10:20"]).minus(Skips.parse(["12:14"])))
            '10:12,14:20'
        """
        kept = []
        for first, end in self.ranges:
            uncut_first = first  # where the part of the range begins that no cut has reached yet
            for cut_first, cut_end in other.ranges:
                if cut_first < end and cut_end > uncut_first:
                    kept.append((uncut_first, max(cut_first, uncut_first)))
                    uncut_first = min(cut_end, end)
            kept.append((uncut_first, end))
        return Skips(tuple((first, end) for first, end in kept if first < end))

    def before(self, position: int) -> "Skips":
        """Returns the ranges that a cursor at `position` of the rest has already passed."""
        return Skips(self.ranges[: bisect_left(self.gaps(), position)])

    def gaps(self) -> list[int]:
        """Returns where each range leaves a gap: the position of the rest that follows the range; ascending."""
        # Positions skipped before each range, and in all.
        num_skipped = accumulate((end - first for first, end in self.ranges), initial=0)
        return [first - num_before for (first, _), num_before in zip(self.ranges, num_skipped, strict=False)]

    def to_whole(self, position: int) -> int:
        """Returns the position of the whole epoch that a `position` of the rest had."""
        passed = self.ranges[: bisect_right(self.gaps(), position)]
        return position + sum(end - first for first, end in passed)
