"""Draws padding.svg, the picture of the landing page: a batch padded, and the same sequences packed.

`python deploy/docs/padding.py` writes padding.svg from padding.json. With `--measure` it measures the lengths first.
Owns which sequences are shown and how; leaves packing to `packhorse.packing`.
"""

import json
import math
import sys
from dataclasses import dataclass
from html import escape
from itertools import islice
from pathlib import Path

import numpy as np

from packhorse.packing import pack_sequences

FOLDER = Path(__file__).parent
LENGTHS, PICTURE = FOLDER / "padding.json", FOLDER / "padding.svg"
EVERY = 50
"""One document of so many is measured, all over the corpus."""
MAX_SEQ_LEN = 2048
PACKED_ROWS = 6
SEED = 5
"""Of the rows that are shown. Padded, they are about as full as most batches of as many documents."""

FILLS = ("#4477AA", "#CCBB44", "#AA3377", "#66CCEE", "#228833", "#EE6677")
"""As in the pictures of `packhorse.pictures`."""
INK = "#7a828f"
"""In the middle between black and white, so that both themes show it."""
BAR, ROW, TOP, PANEL, RIGHT, WIDTH = 6, 8, 40, 350, 390, 740


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The sequences of some rows of a plan."""

    packed: tuple[tuple[int, ...], ...]
    """Lengths of the sequences of each row."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of all sequences, row by row."""
        return tuple(length for row in self.packed for length in row)

    @property
    def padded_share(self) -> float:
        """The share of tokens in rows of one sequence, as long as the longest."""
        return sum(self.lengths) / (len(self.lengths) * max(self.lengths))

    @property
    def packed_share(self) -> float:
        """The share of tokens in packed rows."""
        return sum(self.lengths) / (len(self.packed) * MAX_SEQ_LEN)

    @property
    def times_fewer(self) -> float:
        """Positions that padded rows compute, relative to packed rows."""
        return len(self.lengths) * max(self.lengths) / (len(self.packed) * MAX_SEQ_LEN)


def measure() -> None:
    """Writes the lengths of documents of the demo's corpus, the functions and classes of Python's standard library."""
    from packhorse.demo.corpus import python_corpus

    lengths = [len(text.encode()) for text in islice(python_corpus(), 0, None, EVERY)]
    facts = {
        "corpus": f"every {EVERY}th document of `packhorse demo`, a token a byte",
        "python": sys.version.split()[0],
        "lengths": lengths,
    }
    LENGTHS.write_text(json.dumps(facts) + "\n", encoding="utf-8")


def batch_of(lengths: list[int]) -> Batch:
    """Packs all documents that fit a row, and returns some rows of the plan."""
    fitting = np.array([length for length in lengths if length <= MAX_SEQ_LEN])
    plan = pack_sequences(fitting, MAX_SEQ_LEN, seed=SEED)
    rows = np.split(fitting[plan.indices], plan.bin_ends[:-1])
    chosen = np.random.default_rng(SEED).choice(len(rows), PACKED_ROWS, replace=False)
    return Batch(packed=tuple(tuple(rows[row].tolist()) for row in chosen.tolist()))


def percent(share: float) -> str:
    """Returns a share as text, rounded down, so that only a full row is 100 %."""
    return f"{math.floor(1000 * share) / 10} %"


def draw(batch: Batch) -> str:
    """Returns the SVG."""
    height = TOP + ROW * len(batch.lengths)
    sentence = (
        f"{len(batch.lengths)} sequences as padded rows hold {percent(batch.padded_share)} tokens; "
        f"packed into {len(batch.packed)} rows they hold {percent(batch.packed_share)}"
    )
    parts = [
        "<!-- Made by deploy/docs/padding.py -->\n"
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(sentence)}" font-family="system-ui,sans-serif" fill="{INK}">',
        '<defs><pattern id="padding" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<path d="M0 0v6" stroke="{INK}" stroke-opacity=".75" stroke-width="1.6"/></pattern></defs>',
        _heading(0, "Padded", len(batch.lengths), batch.padded_share),
        _heading(RIGHT, "Packed", len(batch.packed), batch.packed_share),
    ]
    longest, number = max(batch.lengths), 0
    for row, lengths in enumerate(batch.packed):
        start = 0
        for length in lengths:
            fill = FILLS[number % len(FILLS)]
            parts += [_bar(0, number, 0, length, fill), _bar(0, number, length, longest, "url(#padding)")]
            parts.append(_bar(RIGHT, row, start, start + length, fill))
            start, number = start + length, number + 1
        parts.append(_bar(RIGHT, row, start, MAX_SEQ_LEN, "url(#padding)"))
    y = TOP + ROW * len(batch.packed) + 70
    parts += [
        f'<text x="{RIGHT}" y="{y}" font-size="54" font-weight="700">{batch.times_fewer:.1f} ×</text>',
        f'<text x="{RIGHT}" y="{y + 36}" font-size="21">fewer positions to compute,</text>',
        f'<text x="{RIGHT}" y="{y + 62}" font-size="21">for the same tokens</text>',
    ]
    return "\n".join([*filter(None, parts), "</svg>\n"])


def _heading(x: int, name: str, num_rows: int, share: float) -> str:
    return (
        f'<text x="{x}" y="28" font-size="21"><tspan font-weight="700">{name}</tspan>: '
        f"{num_rows} rows, {percent(share)} tokens</text>"
    )


def _bar(x: int, row: int, start: int, end: int, fill: str) -> str:
    """Returns tokens of a row as a bar, nothing if there are none."""
    left, right = (round(x + PANEL * at / MAX_SEQ_LEN, 1) for at in (start, end))
    width = round(right - left - 1, 1)  # a gap separates neighbours without colour
    return f'<rect x="{left}" y="{TOP + ROW * row}" width="{width}" height="{BAR}" fill="{fill}"/>' if width > 0 else ""


if __name__ == "__main__":
    if "--measure" in sys.argv[1:]:
        measure()
    PICTURE.write_text(draw(batch_of(json.loads(LENGTHS.read_text())["lengths"])), encoding="utf-8")
