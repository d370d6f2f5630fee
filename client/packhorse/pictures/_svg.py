"""Drawing rows as an inline SVG, without scripts or styles, readable on light and dark pages.

Text and lines have the colour of the page's text. Fills are of medium lightness, in colours that people with any colour
vision can distinguish, and gaps separate sequences. Leaves facts of rows, and which sequences are drawn as one bar, to
`_rows`; drawing as text is in `_text`.
"""

import zlib
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse.pictures._rows import Bar, SeenRow, SeenSequence, bars


class _Colours(NamedTuple):
    """Colours of a bar."""

    fill: str
    """Colour of the bar."""
    ink: str
    """Colour of the text on it."""


_FILLS = (
    _Colours("#4477AA", "#FFFFFF"),
    _Colours("#CCBB44", "#1A1A1A"),
    _Colours("#AA3377", "#FFFFFF"),
    _Colours("#66CCEE", "#1A1A1A"),
    _Colours("#228833", "#FFFFFF"),
    _Colours("#EE6677", "#1A1A1A"),
)
"""Colours of sequences: Paul Tol's "bright" scheme, ordered so that neighbours differ much in lightness."""
_SEVERAL = _Colours("#6E6E6E", "#FFFFFF")
"""Colours of a bar of several short sequences."""

_LABEL_WIDTH, _BARS_WIDTH, _GAP_WIDTH, _MASK_SIZE = 100, 720, 20, 48
"""Widths, from the left: the row's label, its bars, a gap, and the picture of its mask. All sizes are SVG units."""
_WIDTH = _LABEL_WIDTH + _BARS_WIDTH + _GAP_WIDTH + _MASK_SIZE + 2
"""Width of the picture; the 2 are for the border of the masks."""
_BAR_HEIGHT, _TARGET_HEIGHT, _ROW_HEIGHT, _LEGEND_HEIGHT = 30, 5, 60, 26
"""Heights of a bar, of the line of targets below it, of a row with the space around it, and of the legend."""
_NARROWEST_WIDTH, _ENOUGH_WIDTH = 4, 32
"""Width below which neighbours are drawn as one bar, and the width at which such a bar ends."""
_LETTER_WIDTH, _CAPTION_MARGIN = 6.3, 10
"""Mean width of a letter, and the least space around a caption, to decide which caption fits."""
_LABEL_END = _LABEL_WIDTH - 12
"""Where labels end."""
_NAMED_IDS = 8
"""Ids that are listed of a bar of several sequences."""
_MOST_COLUMNS = 360
"""The most columns of the line that marks targets."""
_PADDING_LINE = ' stroke="currentColor" stroke-opacity=".3"'
"""Attributes of the line around padding."""


def draw(rows: Sequence[SeenRow]) -> str:
    """Returns the SVG of rows, one below the other, and a legend."""
    # An id of its own for each picture, because a notebook's page may hold several.
    hatch = f"packhorse-hatch-{zlib.crc32(repr([row.facts() for row in rows]).encode()):08x}"
    height = len(rows) * _ROW_HEIGHT + _LEGEND_HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img" '
        f'aria-label="{escape("; ".join(_sentence(row) for row in rows))}" '
        'style="max-width:100%;height:auto;display:block" font-family="system-ui,sans-serif" font-size="11" '
        'fill="currentColor">',
        f'<defs><pattern id="{hatch}" width="7" height="7" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><path d="M0 0v7" stroke="currentColor" stroke-opacity=".38" '
        'stroke-width="1.6"/></pattern></defs>',
    ]
    for index, row in enumerate(rows):
        parts.append(f'<g transform="translate(0 {index * _ROW_HEIGHT})">')
        parts += _row(row, f"url(#{hatch})")
        parts.append("</g>")
    has_targets = any(row.targets is not None for row in rows)
    parts += _legend(len(rows) * _ROW_HEIGHT, f"url(#{hatch})", has_targets=has_targets)
    return "".join([*parts, "</svg>"])


def _row(row: SeenRow, hatch: str) -> list[str]:
    """Draws a row: its label, its bars, its targets if they are known, and its mask.

    `hatch` is the fill of padding, here and in the functions below: the URL of the picture's pattern.
    """
    scale = _BARS_WIDTH / row.capacity
    parts = [
        f'<text x="{_LABEL_END}" y="17" text-anchor="end" font-weight="600">{escape(row.name)}</text>',
        f'<text x="{_LABEL_END}" y="31" text-anchor="end" opacity=".65">{row.fullness:.1%} full</text>',
    ]
    row_bars = list(bars(row, _NARROWEST_WIDTH / scale, _ENOUGH_WIDTH / scale))
    for bar in row_bars:
        parts += _bar(bar, scale, hatch)
    if row.targets is not None:
        parts += _targets(row.targets)
    return parts + _mask(row_bars, row.capacity, hatch)


def _bar(bar: Bar, scale: float, hatch: str) -> list[str]:
    """Draws a bar: a sequence with the rest of its room, several short sequences, or padding.

    `scale` is SVG units for a token.
    """
    x, width = _LABEL_WIDTH + bar.start * scale, (bar.end - bar.start) * scale
    gap = min(1.5, width / 4)  # between bars, and never so wide that a narrow bar vanishes
    if not bar.sequences:
        return [_rect(x, width - gap, hatch, f"padding: {bar.end - bar.start:,} tokens", is_padding=True)]
    fill, ink = _colours(bar)
    if len(bar.sequences) > 1:
        return [_rect(x, width - gap, fill, _about_several(bar)), *_caption(x, width, ink, (f"×{len(bar.sequences)}",))]
    (sequence,) = bar.sequences
    own_width = min(sequence.num_tokens * scale, width)  # without the rest of its room
    parts = [_rect(x, own_width - gap, fill, _about(sequence, bar.first))]
    if width - own_width > 1:
        padding = f"padding in the room of id {sequence.id}: {sequence.room - sequence.num_tokens:,} tokens"
        parts.append(_rect(x + own_width, width - own_width - gap, hatch, padding, is_padding=True))
    length = f"{sequence.num_tokens:,}"
    captions = (f"id {sequence.id} · {length} tokens", f"{sequence.id} · {length}", str(sequence.id))
    return parts + _caption(x, own_width, ink, captions)


def _rect(x: float, width: float, fill: str, title: str, *, is_padding: bool = False) -> str:
    """Draws a rectangle with rounded corners, and a text that appears when the mouse is over it."""
    line = _PADDING_LINE if is_padding else ""
    radius = f"{min(3.0, width / 3):.1f}".removesuffix(".0")
    return (
        f'<rect x="{x:.1f}" y="2" width="{width:.1f}" height="{_BAR_HEIGHT}" rx="{radius}" fill="{fill}"{line}>'
        f"<title>{escape(title)}</title></rect>"
    )


def _caption(x: float, width: float, ink: str, captions: Sequence[str]) -> list[str]:
    """Draws the first caption that fits into a width; nothing if none does."""
    for caption in captions:
        if len(caption) * _LETTER_WIDTH + _CAPTION_MARGIN <= width:
            middle = x + width / 2
            return [
                f'<text x="{middle:.1f}" y="21" text-anchor="middle" fill="{ink}" pointer-events="none">'
                f"{escape(caption)}</text>"
            ]
    return []


def _mask(row_bars: Sequence[Bar], capacity: int, hatch: str) -> list[str]:
    """Draws who attends to whom in a row: a block for each bar on the diagonal, hatched for padding."""
    parts = [
        f'<g transform="translate({_LABEL_WIDTH + _BARS_WIDTH + _GAP_WIDTH} 2)"><title>who attends to whom: each '
        "sequence to itself; solid where attention is causal</title>"
    ]
    for bar in row_bars:
        corner, size = bar.start * _MASK_SIZE / capacity, (bar.end - bar.start) * _MASK_SIZE / capacity
        if bar.sequences:
            parts += _block(corner, size, _colours(bar).fill)
        else:
            parts.append(_square(corner, size, hatch) + "/>")
    border = f"M0 0h{_MASK_SIZE}v{_MASK_SIZE}h-{_MASK_SIZE}z"
    return [*parts, f'<path d="{border}" fill="none" stroke="currentColor" stroke-opacity=".35"/></g>']


def _block(corner: float, size: float, fill: str) -> list[str]:
    """Draws a sequence's block of the mask: a light square for all pairs of tokens, a triangle for causal ones."""
    return [
        f'{_square(corner, size, fill)} fill-opacity=".35"/>',
        f'<path d="M{corner:.2f} {corner:.2f}v{size:.2f}h{size:.2f}z" fill="{fill}"/>',
    ]


def _square(corner: float, size: float, fill: str) -> str:
    """Begins a square on the mask's diagonal; more attributes and "/>" follow."""
    return f'<path d="M{corner:.2f} {corner:.2f}h{size:.2f}v{size:.2f}h-{size:.2f}z" fill="{fill}"'


def _targets(targets: NDArray[np.bool_]) -> list[str]:
    """Draws the line below a row that marks its targets; it is fainter in columns where fewer tokens are targets.

    Shares of targets are rounded up to thirds, and each third is one path with its own opacity.
    """
    num_columns = min(_MOST_COLUMNS, len(targets))
    edges = np.linspace(0, len(targets), num_columns + 1).astype(np.int64)  # of columns, in tokens
    num_before = np.concatenate(([0], np.cumsum(targets)))  # targets before each token
    shares = np.diff(num_before[edges]) / np.diff(edges)
    levels = np.ceil(shares * 3).astype(np.int64)  # [columns]: 0 for no target, to 3
    column_width = _BARS_WIDTH / num_columns
    parts = []
    for level, opacity in ((1, ".3"), (2, ".6"), (3, ".9")):
        is_on = np.concatenate(([False], levels == level, [False]))  # False on both sides, so that every run ends
        starts, ends = np.flatnonzero(~is_on[:-1] & is_on[1:]), np.flatnonzero(is_on[:-1] & ~is_on[1:])
        if len(starts):
            lines = "".join(
                f"M{_LABEL_WIDTH + start * column_width:.4g} 0h{(end - start) * column_width:.4g}"
                for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
            )
            parts.append(
                f'<path d="{lines}" transform="translate(0 {_BAR_HEIGHT + 8})" stroke="currentColor" '
                f'stroke-opacity="{opacity}" stroke-width="{_TARGET_HEIGHT}"/>'
            )
    return [f"<g><title>targets: {int(targets.sum()):,} tokens are predicted</title>", *parts, "</g>"]


def _legend(y: int, hatch: str, *, has_targets: bool) -> list[str]:
    """Draws the legend at height `y`."""
    # In a shape, "@" stands for its left edge.
    entries = [
        (f'<rect x="@" y="2" width="18" height="11" rx="2" fill="{_FILLS[0].fill}"/>', "a sequence: id · tokens"),
        (f'<rect x="@" y="2" width="18" height="11" rx="2" fill="{hatch}"{_PADDING_LINE}/>', "padding"),
    ]
    if has_targets:
        line = f'<path d="M@ 8h18" stroke="currentColor" stroke-opacity=".9" stroke-width="{_TARGET_HEIGHT}"/>'
        entries.append((line, "targets"))
    square = f'<path d="M@ 2h11v11h-11z" fill="{_FILLS[2].fill}" fill-opacity=".35"/>'
    triangle = f'<path d="M@ 2v11h11z" fill="{_FILLS[2].fill}"/>'
    entries.append((square + triangle, "mask: attention within a sequence (solid: causal)"))
    parts = [f'<g transform="translate({_LABEL_WIDTH} {y})" opacity=".8">']
    x, shape_width, gap = 0, 24, 18
    for shape, text in entries:
        parts.append(shape.replace("@", str(x)) + f'<text x="{x + shape_width}" y="12">{text}</text>')
        x += shape_width + round(len(text) * _LETTER_WIDTH) + gap
    return [*parts, "</g>"]


def _colours(bar: Bar) -> _Colours:
    """Returns a bar's colours, which are not those of its neighbours."""
    return _SEVERAL if len(bar.sequences) > 1 else _FILLS[bar.first % len(_FILLS)]


def _about_several(bar: Bar) -> str:
    """Returns the text that appears when the mouse is over a bar of several sequences."""
    count = len(bar.sequences)
    num_tokens = sum(sequence.num_tokens for sequence in bar.sequences)
    ids = ", ".join(str(sequence.id) for sequence in bar.sequences[:_NAMED_IDS])
    return f"{count} short sequences, {num_tokens:,} tokens together: ids {ids}{'…' if count > _NAMED_IDS else ''}"


def _about(sequence: SeenSequence, index: int) -> str:
    """Returns the text that appears when the mouse is over a sequence."""
    lines = [f"sequence {index}: id {sequence.id}, {sequence.num_tokens:,} tokens"]
    if sequence.first_token:
        lines[0] += f" from its token {sequence.first_token:,} on"
    if sequence.group is not None:
        lines[0] += f", group {sequence.group}"
    return "\n".join([*lines, *filter(None, (sequence.key, sequence.redaction, sequence.origin, sequence.text))])


def _sentence(row: SeenRow) -> str:
    """Returns a row in words, for screen readers."""
    return f"{row.name}: {len(row.sequences)} sequences, {row.num_tokens} of {row.capacity} tokens"
