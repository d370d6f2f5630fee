"""`Picture`: some rows to look at, in a notebook or on a terminal.

Owns how much is shown; and drawing as text; leaves SVG to `_svg`.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from packhorse.client.pictures import _svg
from packhorse.client.pictures._rows import SeenRow, Stretch, stretches
from packhorse.formats.keys import shown_key
from packhorse.topology.choices import counted

MOST_ROWS = 16
"""Rows in a picture; the others are counted."""

_NAMED_SEQUENCES = 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Picture:
    """Rows as coloured segments to scale, with padding, targets and mask.

    A notebook shows an SVG. `print` shows lines of text, as wide as the terminal.

    Example:
        >>> from packhorse.client import connect
        >>> from packhorse.client.pictures import draw_bins
        >>> with connect("embedded:datasets") as client:
        ...     picture = draw_bins(client, "corpus", seed=1)
        >>> print(picture.text(width=60))
        corpus, epoch 0, seed 1
        2 rows of 8 tokens: 4 sequences, 16 tokens (100.00 % full)
        position 0  │──────── 3 (5) ────────│─── 2 (3) ───│  8 of 8
        position 1  │──────── 0 (5) ────────│─── 1 (3) ───│  8 of 8
    """

    title: str
    """What is shown."""
    rows: tuple[SeenRow, ...]
    """At most `MOST_ROWS` of them."""
    num_rows: int
    """Rows that there are."""
    summary: str
    """Numbers of all rows."""

    def text(self, width: int | None = None) -> str:
        """Returns the picture as lines of text.

        Args:
            width: characters in a line; None for the terminal's.
        """
        width = width or shutil.get_terminal_size().columns
        lines = [self.title, self.summary]
        has_texts = any(sequence.text or sequence.first_tokens for row in self.rows for sequence in row.sequences)
        if self.rows and not has_texts:
            lines.append(draw_text(self.rows, width))
        for row in self.rows if has_texts else ():
            lines += [draw_text([row], width), *_sequences(row, width)]
        if self.num_rows > len(self.rows):
            lines.append(f"… and {self.num_rows - len(self.rows):,} more rows")
        return "\n".join(lines)

    def html(self) -> str:
        """Returns the picture as HTML: an inline SVG, without scripts or styles of the page."""
        rest = self.num_rows - len(self.rows)
        more = f'<div style="opacity:.65">… and {rest:,} more rows</div>' if rest else ""
        return (
            '<div style="font-family:system-ui,sans-serif;font-size:12px;line-height:1.5">'
            f'<div><strong>{escape(self.title)}</strong></div><div style="opacity:.75;margin-bottom:6px">'
            f"{escape(self.summary)}</div>{_svg.draw(self.rows) if self.rows else ''}{more}</div>"
        )

    def page(self) -> str:
        """Returns the picture as an HTML page of its own, on light or dark as the reader has chosen."""
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
            f'<title>{escape(self.title)}</title></head><body style="margin:24px;color-scheme:light dark">'
            f"{self.html()}</body></html>\n"
        )

    def facts(self) -> dict[str, Any]:
        """Returns what is shown, for JSON."""
        return {"title": self.title, "num_rows": self.num_rows, "rows": [row.facts() for row in self.rows]}

    def _repr_html_(self) -> str:
        return self.html()

    def __repr__(self) -> str:
        return self.text()


def fullness_of(num_rows: int, capacity: int, num_sequences: int, num_tokens: int) -> str:
    """Returns the numbers of some rows as a phrase.

    Example:
        >>> fullness_of(8, 2048, 41, 16301)
        '8 rows of 2,048 tokens: 41 sequences, 16,301 tokens (99.49 % full)'
    """
    share = 100 * num_tokens / max(num_rows * capacity, 1)
    return (
        f"{counted(num_rows, 'row')} of {capacity:,} tokens: {counted(num_sequences, 'sequence')}, "
        f"{counted(num_tokens, 'token')} ({share:.2f} % full)"
    )


def _sequences(row: SeenRow, width: int) -> list[str]:
    """A line for each of a row's first sequences: what it begins with, and where it comes from."""
    lines = []
    for sequence in row.sequences[:_NAMED_SEQUENCES]:
        begins = repr(sequence.text) if sequence.text else " ".join(map(str, sequence.first_tokens))
        piece = f" from token {sequence.first_token:,}" if sequence.first_token else ""
        piece += "" if sequence.group is None else f" of group {sequence.group}"
        key = f" {shown_key(sequence.key)}" if sequence.key else ""
        line = f"    id {sequence.id}{key}{piece}, {sequence.tokens:,} tokens: {begins}"
        lines.append(line if len(line) <= width else line[: width - 1] + "…")
    if len(row.sequences) > _NAMED_SEQUENCES:
        lines.append(f"    … and {len(row.sequences) - _NAMED_SEQUENCES:,} more sequences")
    return lines


_LEAST_CELLS, _TOGETHER_CELLS = 4, 8


def draw_text(rows: Sequence[SeenRow], width: int) -> str:
    """Returns the lines of some rows, at most `width` characters each: sequences between bars, padding as dots.

    Example:
        >>> from packhorse.client.pictures._rows import SeenSequence
        >>> row = SeenRow(name="row 0", capacity=8, sequences=(SeenSequence(id=3, room=4), SeenSequence(id=9, room=2)))
        >>> print(draw_text([row], 48))
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
