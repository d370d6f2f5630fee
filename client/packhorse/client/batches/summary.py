"""A batch in one line of text, and how full its rows are. Leaves pictures to `packhorse.pictures`."""

from collections.abc import Mapping
from typing import Any

from packhorse.topology.checks import counted


def fullness_text(num_rows: int, capacity: int, num_sequences: int, num_tokens: int) -> str:
    """Returns a text that says how full some rows are.

    Example:
        >>> fullness_text(8, 2048, 41, 16301)
        '8 rows of 2,048 tokens: 41 sequences, 16,301 tokens (99.49 % full)'
    """
    share = 100 * num_tokens / max(num_rows * capacity, 1)
    return (
        f"{counted(num_rows, 'row')} of {capacity:,} tokens: {counted(num_sequences, 'sequence')}, "
        f"{counted(num_tokens, 'token')} ({share:.2f} % full)"
    )


def summarize(batch: Mapping[str, Any]) -> str:
    """Returns a batch in one line: its rows if it has a layout, its cursor, and its keys.

    No tensor is read, so nothing waits for a device.
    """
    layout = batch.get("layout")
    parts = cursor_texts(batch)
    if layout is not None:
        parts.insert(0, fullness_text(layout.num_rows, layout.row_tokens, layout.num_sequences, layout.num_tokens))
    keys = ", ".join(f"{name} {_kind(value)}" for name, value in batch.items() if name not in ("layout", "cursor"))
    return f"<{type(batch).__name__}: {', '.join(parts)}{'; ' if parts else ''}{keys}>"


def cursor_texts(batch: Mapping[str, Any]) -> list[str]:
    """Returns two texts that say where training is after a batch; none for a batch without a cursor."""
    cursor = batch.get("cursor")
    if not isinstance(cursor, Mapping):
        return []
    return [f"epoch {cursor['epoch']}", f"next position {cursor['position']:,}"]


def _kind(value: Any) -> str:
    """Returns the dtype, shape and device of a tensor or array; of other values, the value or its type's name."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return repr(value) if isinstance(value, int | float | str) else type(value).__name__
    device = getattr(getattr(value, "device", None), "type", "cpu")
    where = "" if device == "cpu" else f" on {value.device}"
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}{where}"
