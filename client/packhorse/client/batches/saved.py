"""Dataclasses of arrays, pickled as bytes and text alone.

Owns that form, which `torch.load` reads with `weights_only=True`: it refuses NumPy's own. Leaves which classes it may
make to whoever registers them (see `packed_batch`).
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

_Kind = TypeVar("_Kind")

_Array = tuple[str, bytes]
"""Its dtype and its content; arrays have one dimension."""


def reduced(instance: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns what a dataclass's `__reduce__` returns: its fields, with arrays of one dimension as bytes."""
    arrays: dict[int, _Array] = {}  # an array that two fields share is written once, and shared afterwards

    def plain(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        return arrays.setdefault(id(value), (value.dtype.str, value.tobytes()))

    return restored, (type(instance), {field.name: plain(getattr(instance, field.name)) for field in fields(instance)})


def restored(kind: type[_Kind], values: dict[str, Any]) -> _Kind:
    """Makes an instance of a dataclass from what `reduced` wrote."""
    arrays: dict[int, Any] = {}

    def whole(value: Any) -> Any:
        if not isinstance(value, tuple):
            return value
        if id(value) not in arrays:
            dtype, content = value
            arrays[id(value)] = np.frombuffer(content, dtype=dtype).copy()  # a copy may be written to
        return arrays[id(value)]

    return kind(**{name: whole(value) for name, value in values.items()})
