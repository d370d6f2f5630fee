"""A value as JSON's types only, and the words by which errors name a type or a fault of JSON.

Owns copying values, so that a template touches no object of the user, and the mark that no text may hold. Leaves which
values a message holds to `sft.messages`.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

WORDS_MARK = "\ufdd2"
"""A code point that is in no text (a noncharacter of Unicode). Added to a text, it shows where a template writes it."""

_NAMES: dict[type, str] = {
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    Mapping: "an object",
    type(None): "null",
}
"""JSON's types → their names in errors; bool is before int, because a Python bool is an int."""


def plain_data(value: Any, where: str) -> Any:
    """Copies a value as JSON's types, so that a template gets no object with methods of its own.

    Raises:
        ValueError: the value contains another type, or text that has no UTF-8 form or holds WORDS_MARK; the error
            begins with `where`.
    """
    if isinstance(value, str):
        text = str.__str__(value)  # a plain str, also of a subclass
        if not text.isascii():
            _check_text(text, where)
        return text
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, np.generic):
        return plain_data(value.item(), where)
    if isinstance(value, dict | Mapping):
        return {plain_data(key, where): plain_data(item, where) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain_data(item, where) for item in value]
    raise ValueError(f"{where} holds a value {called(value)}; chat templates take text, numbers, lists and mappings")


def called(value: Any) -> str:
    """Returns the name of a value's type, for errors.

    Example:
        >>> called([]), called(5)
        ('a list', 'a number')
    """
    for kind, name in _NAMES.items():
        if isinstance(value, kind):
            return name
    return f"of type {type(value).__name__}"


def json_fault(error: json.JSONDecodeError) -> str:
    """Returns the fault of a line of JSON, and its column.

    Example:
        >>> try:
        ...     json.loads('{"a')
        ... except json.JSONDecodeError as error:
        ...     json_fault(error)
        'Unterminated string starting at column 2'
    """
    return f"{error.msg.removesuffix(' at')} at column {error.colno}"


def _check_text(text: str, where: str) -> None:
    """Raises a ValueError for text that has no UTF-8 form, or contains WORDS_MARK."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where} has no UTF-8 form: {error.reason} at character {error.start}") from None
    if WORDS_MARK in text:
        raise ValueError(f"{where} holds U+{ord(WORDS_MARK):04X}, which is no character of text; remove it")
