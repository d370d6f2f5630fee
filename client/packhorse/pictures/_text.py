"""Rows drawn as lines of text, to scale.

Owns the characters. Leaves facts of rows, and which sequences are drawn as one bar, to `_rows`; SVG is in `_svg`.
"""

from collections.abc import Sequence

import numpy as np

from packhorse.pictures._rows import Bar, SeenRow, bars

_NARROWEST_CELLS, _ENOUGH_CELLS = 4, 8
"""Characters below which neighbours are drawn as one bar, and the width at which such a bar ends."""
_LEAST_ROW_CELLS = 8
"""Characters of a row on the narrowest terminals."""


def draw_text(rows: Sequence[SeenRow], width: int) -> str:
    """Draws rows as lines of text: sequences to scale between bars, and padding as dots.

    Lines have at most `width` characters, unless that leaves fewer than 8 for a row. Neighbours that are too short to
    draw apart are counted, as ×3. Below a row whose targets are known, a second line marks them.

    Example:
        >>> from packhorse.pictures._rows import SeenSequence
        >>> row = SeenRow(name="row 0", capacity=8, sequences=(SeenSequence(id=3, room=4), SeenSequence(id=9, room=2)))
        >>> print(draw_text([row], 48))
        row 0  │──── 3 (4) ────│─ 9 ──│·······│  6 of 8
    """
    name_cells = max(len(row.name) for row in rows)
    totals = [f"{row.num_tokens:,} of {row.capacity:,}" for row in rows]
    # Two gaps of two characters, and one character that stays free at the end of the line.
    cells = max(width - name_cells - max(map(len, totals)) - 5, _LEAST_ROW_CELLS)
    lines = []
    for row, total in zip(rows, totals, strict=True):
        lines.append(f"{row.name:<{name_cells}}  {_row(row, cells)}  {total}")
        if row.targets is not None:
            # Begins below what follows the first bar, and ends below the last bar.
            lines.append(" " * (name_cells + 3) + _targets(row, cells - 1).rstrip())
    return "\n".join(line.rstrip() for line in lines)


def _row(row: SeenRow, cells: int) -> str:
    """Draws a row in `cells` characters."""
    scale = (cells - 1) / row.capacity  # the last character is the "│" that closes the row
    parts = []
    for bar in bars(row, _NARROWEST_CELLS / scale, _ENOUGH_CELLS / scale):
        size = round(bar.end * scale) - round(bar.start * scale)
        if size:
            parts.append("│" + _inside(bar, size - 1, scale))
    return "".join([*parts, "│"])


def _inside(bar: Bar, size: int, scale: float) -> str:
    """Draws the inside of a bar in `size` characters; `scale` is characters for a token."""
    if not bar.sequences:
        return "·" * size
    if len(bar.sequences) > 1:
        return _centred((f"×{len(bar.sequences)}",), size, "╌")
    (sequence,) = bar.sequences
    # The characters of its own tokens; what its room has beyond them is drawn as padding.
    own = min(round(sequence.num_tokens * scale), size) if sequence.num_tokens < sequence.room else size
    redaction = f", {sequence.redaction}" if sequence.redaction else ""
    captions = (f" {sequence.id} ({sequence.num_tokens:,}{redaction}) ", f" {sequence.id} ", str(sequence.id))
    return _centred(captions, own, "─") + "·" * (size - own)


def _centred(captions: Sequence[str], size: int, fill: str) -> str:
    """Centres the first caption that fits in `size` characters, filled up on both sides."""
    caption = next((caption for caption in captions if len(caption) <= size), "")
    return caption.center(size, fill)


def _targets(row: SeenRow, cells: int) -> str:
    """Returns a line of `cells` characters that marks where at least half of the tokens are targets."""
    assert row.targets is not None
    begins = np.arange(cells) * row.capacity // cells
    # With fewer tokens than characters, several characters show the same token.
    ends = np.maximum((np.arange(cells) + 1) * row.capacity // cells, begins + 1)
    counts = np.concatenate(([0], np.cumsum(row.targets)))
    is_marked = 2 * (counts[ends] - counts[begins]) >= ends - begins
    return "".join("▔" if marked else " " for marked in is_marked.tolist())
