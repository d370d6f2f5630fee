"""`draw_batch`: a batch, drawn as its rows.

Owns reading a batch, and how many of its rows are drawn. Leaves showing them to `picture`. This module does not import
torch; it reads a batch's tensors by their own methods.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from packhorse.client.batches.summary import cursor_texts, fullness_text
from packhorse.pictures._rows import SeenRow, SeenSequence
from packhorse.pictures.beginnings import FIRST_TOKENS, Decode, shortened
from packhorse.pictures.picture import Picture

if TYPE_CHECKING:
    from packhorse.client import PackLayout

_MOST_ROWS = 16
"""Rows of a batch that are drawn; the others are counted."""
_IGNORED = -100
"""The label of a token that is no target. It equals IGNORE_INDEX of `packhorse.client.batches`, which would import
torch."""


def draw_batch(batch: Mapping[str, Any], *, decode: Decode | None = None) -> Picture:
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
    return Picture(
        title=", ".join(["batch", *cursor_texts(batch)]),
        rows=tuple(_rows_of(batch, layout, decode)),
        num_rows=layout.num_rows,
        summary=fullness_text(layout.num_rows, layout.row_tokens, layout.num_sequences, layout.num_tokens),
    )


def _rows_of(batch: Mapping[str, Any], layout: "PackLayout", decode: Decode | None) -> Iterator[SeenRow]:
    """Yields the rows of a batch that are drawn."""
    tokens, labels, ids = (_host(batch[name]) if name in batch else None for name in ("input_ids", "labels", "ids"))
    groups = layout.group_ids
    row_starts = [0, *layout.row_ends.tolist()]  # index of each row's first sequence, then the number of sequences
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
        yield SeenRow(name=f"row {row}", capacity=layout.row_tokens, sequences=tuple(sequences), targets=targets)


def _host(tensor: Any) -> np.ndarray[Any, Any]:
    """Returns a tensor, or an array, as an array in host memory."""
    return tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)
