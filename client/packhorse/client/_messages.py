"""From Python arguments to protocol messages, refusing what a field cannot hold by the field's name.

Owns what the protocol's types alone decide; leaves ranges to the service, which refuses with the same exception.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from packhorse.client.errors import InvalidRequestError

_Message = TypeVar("_Message")


def message(kind: Callable[..., _Message], *, within: str = "", **fields: Any) -> _Message:
    """Returns a message of the given fields; an InvalidRequestError names the one that does not fit.

    Args:
        kind: the message's class.
        within: the field that will hold this message, with a dot.
        fields: by name.
    """
    try:
        return kind(**fields)
    except (ValueError, TypeError, OverflowError):  # protobuf does not tell which field
        for name, value in fields.items():
            try:
                kind(**{name: value})
            except (ValueError, TypeError, OverflowError) as error:
                raise invalid(within + name, f"{bounded(error)} (got {shortened(value)})") from None
        raise


def enum_name(field: str, choices: type[StrEnum], value: object, prefix: str) -> str:
    """Returns the protocol's name of a choice, given as a member or its value in any case."""
    try:
        return prefix + choices(str(value).lower()).name
    except ValueError:
        raise invalid(field, f"{shortened(value)} is none of {', '.join(choices)}") from None


def integers(field: str, values: ArrayLike | Iterable[int]) -> list[int]:
    """Returns a list of Python ints; anything that is not a flat row of integers is refused, not rounded."""
    try:
        array = np.asarray(values if isinstance(values, np.ndarray) else list(values))  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:  # no row at all, or rows of several lengths
        raise invalid(field, f"must be a flat list of 64-bit integers ({bounded(error)})") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise invalid(field, f"must be a flat list of 64-bit integers (got {array.dtype} of shape {array.shape})")
    return [int(value) for value in array.tolist()]


def invalid(field: str, what: str) -> InvalidRequestError:
    """The exception that names a field."""
    return InvalidRequestError(f"{field}: {what}", {"field": field})


def shortened(value: object) -> str:
    """Returns a value as an error quotes it: its first 40 characters."""
    return bounded(repr(value), 40)


def bounded(text: object, most: int = 1000) -> str:
    """Returns a text of at most `most` characters, and an ellipsis where there were more."""
    text = str(text)
    return text if len(text) <= most else f"{text[:most]}…"
