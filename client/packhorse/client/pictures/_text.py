"""Rows as lines of text, to scale, for a terminal.

Owns how they look; works without colours.
"""

from collections.abc import Sequence

import numpy as np

from packhorse.client.pictures._rows import SeenRow, Stretch, stretches

_LEAST_CELLS, _TOGETHER_CELLS = 4, 8


def draw(rows: Sequence[SeenRow], width: int) -> str:
    """Returns the lines of some rows, at most `width` characters each: sequences between bars, padding as dots.

    Example:
        >>> from packhorse.client.pictures._rows import SeenSequence
        >>> row = SeenRow(name="row 0", capacity=8, sequences=(SeenSequence(id=3, room=4), SeenSequence(id=9, room=2)))
        >>> print(draw([row], 48))
        row 0  │──── 3 (4) ────│─ 9 ──│·······│  6 of 8
    """
    names = max(len(row.name) for row in rows)
    numbers = [f"{row.num_tokens:,} of {row.capacity:,}" for row in rows]
    cells = max(width - names - max(map(len, numbers)) - 5, 8)
    lines = []
    for row, number in zip(rows, numbers, strict=True):
        lines.append(f"{row.name:<{names}}  {_bar(row, cells)}  {number}")
        if row.targets is not None:
            lines.append(" " * (names + 3) + _lane(row, cells - 1).rstrip())
    return "\n".join(line.rstrip() for line in lines)


def _bar(row: SeenRow, cells: int) -> str:
    scale = (cells - 1) / row.capacity
    parts = []
    for stretch in stretches(row, _LEAST_CELLS / scale, _TOGETHER_CELLS / scale):
        size = round(stretch.end * scale) - round(stretch.start * scale)
        if size:
            parts.append("│" + _inside(stretch, size - 1, scale))
    return "".join([*parts, "│"])


def _inside(stretch: Stretch, size: int, scale: float) -> str:
    if not stretch.sequences:
        return "·" * size
    if len(stretch.sequences) > 1:
        return _centred((f"×{len(stretch.sequences)}",), size, "╌")
    (sequence,) = stretch.sequences
    own = min(round(sequence.tokens * scale), size) if sequence.tokens < sequence.room else size
    redaction = f", {sequence.redaction}" if sequence.redaction else ""
    captions = (f" {sequence.id} ({sequence.tokens:,}{redaction}) ", f" {sequence.id} ", str(sequence.id))
    return _centred(captions, own, "─") + "·" * (size - own)


def _centred(captions: Sequence[str], size: int, fill: str) -> str:
    caption = next((caption for caption in captions if len(caption) <= size), "")
    return caption.center(size, fill)


def _lane(row: SeenRow, cells: int) -> str:
    """A line below tokens that are predicted: in cells of which half or more are."""
    assert row.targets is not None
    begins = np.arange(cells) * row.capacity // cells
    ends = np.maximum((np.arange(cells) + 1) * row.capacity // cells, begins + 1)
    counts = np.concatenate(([0], np.cumsum(row.targets)))
    return "".join("▔" if on else " " for on in (2 * (counts[ends] - counts[begins]) >= ends - begins).tolist())
