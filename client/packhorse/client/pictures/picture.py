"""`Picture`: some rows to look at, in a notebook or on a terminal.

Owns how much is shown; leaves drawing to `_svg` and `_text`.
"""

import shutil
from dataclasses import dataclass
from html import escape
from typing import Any

from packhorse.client.pictures import _svg, _text
from packhorse.client.pictures._rows import SeenRow
from packhorse.formats.keys import shown_key
from packhorse.topology.checks import counted

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
            lines.append(_text.draw(self.rows, width))
        for row in self.rows if has_texts else ():
            lines += [_text.draw([row], width), *_sequences(row, width)]
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
