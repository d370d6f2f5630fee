"""How a dataclass of arrays is pickled, so that `torch.load` with `weights_only=True` reads it: `reduced`, `restored`.

Saved files name `restored` by its module, so `packed_batch` must know its earlier name if it moves. Leaves which
classes may be read to `packed_batch`.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

_Kind = TypeVar("_Kind")

_Array = tuple[Any, ...]
"""An array as it is pickled: dtype as text; content as bytes, None if there are none; then its sizes if it has several
dimensions."""


def reduced(instance: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns the result of `__reduce__` for a dataclass of arrays, with every array as bytes.

    `torch.load` with `weights_only=True` reads this form; it refuses NumPy's own.
    """
    arrays: dict[int, _Array] = {}  # by id: an array that two fields share is written once, and shared when read

    def without_array(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        shape = value.shape if value.ndim > 1 else ()
        content = value.tobytes() or None  # `torch.load` refuses empty bytes
        return arrays.setdefault(id(value), (value.dtype.str, content, *shape))

    return restored, (
        type(instance),
        {field.name: without_array(getattr(instance, field.name)) for field in fields(instance)},
    )


def restored(kind: type[_Kind], values: dict[str, Any]) -> _Kind:
    """Makes a dataclass of the values that `reduced` returned."""
    arrays: dict[int, Any] = {}  # by id of the tuple: pickle keeps one tuple for an array that two fields share

    def with_array(value: Any) -> Any:
        if not isinstance(value, tuple):  # no field of these dataclasses is a tuple itself
            return value
        if id(value) not in arrays:
            dtype, content, *shape = value
            array = np.frombuffer(content or b"", dtype=dtype).copy()  # unlike the bytes, a copy can be written to
            arrays[id(value)] = array.reshape(shape) if shape else array
        return arrays[id(value)]

    return kind(**{name: with_array(value) for name, value in values.items()})
