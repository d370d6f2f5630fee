"""What a batch looks like: a summary in one line, and a picture of its rows.

Owns reading a batch; leaves drawing to `picture`. Needs no torch by itself: it only asks tensors that are there.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from packhorse.client.pictures._rows import SeenRow, SeenSequence
from packhorse.client.pictures.picture import MOST_ROWS, Picture, fullness_of

_IGNORED = -100
FIRST_TOKENS = 24
"""So many of a sequence's first tokens are shown."""
_MOST_LETTERS = 80


def draw_batch(batch: Mapping[str, Any], *, decode: Callable[[list[int]], str] | None = None) -> Picture:
    """Draws a batch: its sequences to scale, padding, the tokens that are predicted, and the mask.

    A batch that is the last value of a notebook's cell shows the same picture by itself.

    Example:
        >>> from packhorse.client import PackedDataset
        >>> from packhorse.client.pictures import draw_batch
        >>> batch = next(iter(PackedDataset("embedded:datasets", "corpus", "corpus.idx", batch_size=1)))
        >>> print(draw_batch(batch).text(width=60))
        batch, epoch 0, next position 1
        1 row of 8 tokens: 2 sequences, 8 tokens (100.00 % full)
        row 0  │───────── 0 (5) ──────────│──── 1 (3) ────│  8 of 8
                      ▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔      ▔▔▔▔▔▔▔▔▔▔

    Args:
        batch: with all keys of a PackedBatch; a preset's own keys do not say where sequences lie.
        decode: turns tokens into text, e.g. `tokenizer.decode`; None for no text.

    Raises:
        ValueError: the batch carries no layout.
    """
    layout = batch.get("layout")
    if layout is None:
        raise ValueError(
            "this batch carries no 'layout', which says where sequences lie; draw a batch made without a preset"
        )
    tokens, labels, ids = (_host(batch[name]) if name in batch else None for name in ("input_ids", "labels", "ids"))
    rows, groups = [], layout.group_ids
    num_rows = min(layout.num_rows, MOST_ROWS)
    row_begins = [0, *layout.row_ends.tolist()]
    for row in range(num_rows):
        sequences = []
        for i in range(row_begins[row], row_begins[row + 1]):
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
        title=", ".join(["batch", *_standing(batch)]),
        rows=tuple(rows),
        num_rows=layout.num_rows,
        summary=fullness_of(layout.num_rows, layout.row_tokens, layout.num_sequences, layout.num_tokens),
    )


def summarize(batch: Mapping[str, Any]) -> str:
    """Returns a batch in one line: its rows where it says them, where training stands, and its keys.

    No tensor is read, so nothing waits for a device.
    """
    layout = batch.get("layout")
    parts = _standing(batch)
    if layout is not None:
        shape = fullness_of(layout.num_rows, layout.row_tokens, layout.num_sequences, layout.num_tokens)
        parts.insert(0, shape)
    keys = ", ".join(f"{name} {_kind(value)}" for name, value in batch.items() if name not in ("layout", "cursor"))
    return f"<{type(batch).__name__}: {', '.join(parts)}{'; ' if parts else ''}{keys}>"


def shortened(decode: Callable[[list[int]], str] | None, tokens: Sequence[int]) -> str:
    """Returns what tokens say, in one line of at most 80 letters; nothing without a decoder."""
    if decode is None or not len(tokens):
        return ""
    text = " ".join(decode(list(tokens)).split())
    return text if len(text) <= _MOST_LETTERS else text[: _MOST_LETTERS - 1] + "…"


def _standing(batch: Mapping[str, Any]) -> list[str]:
    cursor = batch.get("cursor")
    if not isinstance(cursor, Mapping):
        return []
    return [f"epoch {cursor['epoch']}", f"next position {cursor['position']:,}"]


def _host(tensor: Any) -> np.ndarray[Any, Any]:
    return tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)


def _kind(value: Any) -> str:
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return repr(value) if isinstance(value, int | float | str) else type(value).__name__
    device = getattr(getattr(value, "device", None), "type", "cpu")
    where = "" if device == "cpu" else f" on {value.device}"
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}{where}"
