"""`Picture`: rows to look at, in a notebook or on a terminal.

Leaves drawing as text to `_text`, drawing SVG to `_svg`, and which rows are shown to `pictures/batches`,
`pictures/bins` and `explained_step`.
"""

import shutil
from dataclasses import dataclass
from html import escape
from typing import Any

from packhorse.pictures import _svg
from packhorse.pictures._rows import SeenRow
from packhorse.pictures._text import draw_text

_NAMED_SEQUENCES = 12
"""Sequences of a row whose beginnings are listed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Picture:
    """Rows as coloured bars to scale, with padding, targets and mask.

    A notebook shows an SVG. `print` shows lines of text, as wide as the terminal.

    Example:
        >>> from packhorse.client import connect
        >>> from packhorse.pictures import draw_bins
        >>> with connect("embedded:datasets") as client:
        ...     picture = draw_bins(client, "corpus", seed=1)
        >>> print(picture.text(width=60))
        corpus, epoch 0, seed 1
        2 rows of 8 tokens: 4 sequences, 16 tokens (100.00 % full)
        position 0  │──────── 3 (5) ────────│─── 2 (3) ───│  8 of 8
        position 1  │──────── 0 (5) ────────│─── 1 (3) ───│  8 of 8
    """

    title: str
    """Title, in one line."""
    rows: tuple[SeenRow, ...]
    """The rows that are drawn; at most 16 of a batch."""
    num_rows: int
    """Number of all rows, drawn or not."""
    summary: str
    """How full all rows are, in one line."""

    def text(self, width: int | None = None) -> str:
        """Returns the picture as lines of text.

        Args:
            width: characters in a line; None for the terminal's.
        """
        width = width or shutil.get_terminal_size().columns
        lines = [self.title, self.summary]
        has_texts = any(sequence.text or sequence.first_tokens for row in self.rows for sequence in row.sequences)
        if has_texts:
            for row in self.rows:
                lines += [draw_text([row], width), *_sequence_lines(row, width)]
        elif self.rows:
            lines.append(draw_text(self.rows, width))
        if self.num_rows > len(self.rows):
            lines.append(f"… and {self.num_rows - len(self.rows):,} more rows")
        return "\n".join(lines)

    def html(self) -> str:
        """Returns the picture as HTML to put into a page: an inline SVG, without scripts or style sheets."""
        rest = self.num_rows - len(self.rows)
        more = f'<div style="opacity:.65">… and {rest:,} more rows</div>' if rest else ""
        return (
            '<div style="font-family:system-ui,sans-serif;font-size:12px;line-height:1.5">'
            f'<div><strong>{escape(self.title)}</strong></div><div style="opacity:.75;margin-bottom:6px">'
            f"{escape(self.summary)}</div>{_svg.draw(self.rows) if self.rows else ''}{more}</div>"
        )

    def page(self) -> str:
        """Returns the picture as a whole HTML page, light or dark as the browser prefers."""
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
            f'<title>{escape(self.title)}</title></head><body style="margin:24px;color-scheme:light dark">'
            f"{self.html()}</body></html>\n"
        )

    def facts(self) -> dict[str, Any]:
        """Returns the title, the number of all rows, and the rows that are drawn, as JSON values."""
        return {"title": self.title, "num_rows": self.num_rows, "rows": [row.facts() for row in self.rows]}

    def _repr_html_(self) -> str:
        return self.html()

    def __repr__(self) -> str:
        return self.text()


def _sequence_lines(row: SeenRow, width: int) -> list[str]:
    """Returns a line for each of a row's first sequences, with its beginning, and one that counts the others."""
    lines = []
    for sequence in row.sequences[:_NAMED_SEQUENCES]:
        line = f"    {sequence.title}, {sequence.num_tokens:,} tokens: {sequence.beginning}"
        lines.append(line if len(line) <= width else line[: width - 1] + "…")
    if len(row.sequences) > _NAMED_SEQUENCES:
        lines.append(f"    … and {len(row.sequences) - _NAMED_SEQUENCES:,} more sequences")
    return lines
