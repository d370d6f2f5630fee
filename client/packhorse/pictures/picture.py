"""`Picture`: rows to look at, in a notebook or on a terminal; and making one of a batch.

Owns how much is shown, and reading a batch; leaves drawing as text to `_text`, drawing SVG to `_svg`, and bins of a
server to `pictures/bins`. This module does not import torch; it reads a batch's tensors by their own methods.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from packhorse.client.batches.summary import cursor_texts, fullness_text
from packhorse.pictures import _svg
from packhorse.pictures._rows import SeenRow, SeenSequence
from packhorse.pictures._text import draw_text

FIRST_TOKENS = 24
"""Number of tokens that are shown of a sequence's beginning."""
_MOST_ROWS = 16
"""Rows of a batch that are drawn; the others are counted."""
_NAMED_SEQUENCES = 12
"""Sequences of a row whose beginnings are listed."""
_MOST_LETTERS = 80
"""Letters of a sequence's beginning that are shown."""
_IGNORED = -100
"""The label of a token that is no target. It equals IGNORE_INDEX of `packhorse.client.batches`, which would import
torch."""


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
        if self.rows and not has_texts:
            lines.append(draw_text(self.rows, width))
        for row in self.rows if has_texts else ():
            lines += [draw_text([row], width), *_sequences(row, width)]
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
        """Returns the rows as JSON values."""
        return {"title": self.title, "num_rows": self.num_rows, "rows": [row.facts() for row in self.rows]}

    def _repr_html_(self) -> str:
        return self.html()

    def __repr__(self) -> str:
        return self.text()


def _sequences(row: SeenRow, width: int) -> list[str]:
    """Returns a line for each of a row's first sequences, with its beginning."""
    lines = []
    for sequence in row.sequences[:_NAMED_SEQUENCES]:
        line = f"    {sequence.title}, {sequence.tokens:,} tokens: {sequence.beginning}"
        lines.append(line if len(line) <= width else line[: width - 1] + "…")
    if len(row.sequences) > _NAMED_SEQUENCES:
        lines.append(f"    … and {len(row.sequences) - _NAMED_SEQUENCES:,} more sequences")
    return lines


def draw_batch(batch: Mapping[str, Any], *, decode: Callable[[list[int]], str] | None = None) -> Picture:
    """Draws a batch: its sequences to scale, padding, targets and the mask.

    A batch that is the last value of a notebook's cell shows the same picture by itself.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> from packhorse.pictures import draw_batch
        >>> batch = next(iter(PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1)))
        >>> print(draw_batch(batch).text(width=60))
        batch, epoch 0, next position 1
        1 row of 8 tokens: 2 sequences, 8 tokens (100.00 % full)
        row 0  │───────── 0 (5) ──────────│──── 1 (3) ────│  8 of 8
                      ▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔      ▔▔▔▔▔▔▔▔▔▔

    Args:
        batch: a batch with the keys of a PackedBatch, and so without a preset.
        decode: function from tokens to text, e.g. `tokenizer.decode`; None for no text.

    Raises:
        ValueError: the batch has no layout.
    """
    layout = batch.get("layout")
    if layout is None:
        raise ValueError(
            "this batch carries no 'layout', which says where sequences lie; draw a batch made without a preset"
        )
    tokens, labels, ids = (_host(batch[name]) if name in batch else None for name in ("input_ids", "labels", "ids"))
    rows, groups = [], layout.group_ids
    row_starts = [0, *layout.row_ends.tolist()]
    for row in range(min(layout.num_rows, _MOST_ROWS)):
        sequences = []
        for i in range(row_starts[row], row_starts[row + 1]):
            start, length = int(layout.starts[i]), int(layout.lengths[i])
            first = () if tokens is None else tokens.ravel()[start : start + min(length, FIRST_TOKENS)].tolist()
            sequences.append(
                SeenSequence(
                    id=i if ids is None else int(ids[i]),
                    room=int(layout.rooms[i]),
                    length=length,
                    group=None if groups is None or groups[i] < 0 else int(groups[i]),
                    text=shortened(decode, first),
                )
            )
        targets = None if labels is None else labels[row] != _IGNORED
        rows.append(SeenRow(name=f"row {row}", capacity=layout.row_tokens, sequences=tuple(sequences), targets=targets))
    return Picture(
        title=", ".join(["batch", *cursor_texts(batch)]),
        rows=tuple(rows),
        num_rows=layout.num_rows,
        summary=fullness_text(layout.num_rows, layout.row_tokens, layout.num_sequences, layout.num_tokens),
    )


def shortened(decode: Callable[[list[int]], str] | None, tokens: Sequence[int]) -> str:
    """Returns the text of tokens, shortened to one line; empty without a decoder."""
    if decode is None or not len(tokens):
        return ""
    text = " ".join(decode(list(tokens)).split())
    return text if len(text) <= _MOST_LETTERS else text[: _MOST_LETTERS - 1] + "…"


def _host(tensor: Any) -> np.ndarray[Any, Any]:
    return tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)
