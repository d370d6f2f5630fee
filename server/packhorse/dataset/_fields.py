"""Turning dataclasses into JSON objects, and checking that a JSON object has a dataclass's fields and types.

Owns what the annotations of a dataclass allow in JSON, and the mark of fields that came in a later release. Leaves the
ranges of values, and building the dataclasses, to `manifest`.
"""

import math
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

LATER = {"is_later": True}
"""Metadata of a field that objects of earlier releases lack. The field is written only if it is not its default."""


def as_object(value: Any) -> Any:
    """Turns a dataclass, and dataclasses inside it, into values that `json.dumps` takes.

    A `LATER` field that has its default is left out, so that files of earlier releases stay valid byte for byte.
    """
    if is_dataclass(value):
        items = ((each, getattr(value, each.name)) for each in fields(value))
        return {each.name: as_object(item) for each, item in items if each.metadata != LATER or item != each.default}
    if isinstance(value, Mapping):
        return {name: as_object(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_object(item) for item in value]
    return value


def check_fields(kind: type, content: object, path: str = "") -> None:
    """Checks that an object has exactly a dataclass's fields, with values of their types; nested objects too.

    It may lack `LATER` fields.

    Args:
        kind: the dataclass. Its fields are of int, float, bool, str, Literal, dict[str, …], tuple[…, ...], dataclasses,
            and unions.
        content: what `json.loads` returned.
        path: the prefix of fields' names in messages, such as "options."; empty for the outermost object.

    Raises:
        ValueError: a field is missing, unknown, or of another type, or a `LATER` field states its default. A bool does
            not pass for an int, and a float must be finite.
    """
    if not isinstance(content, dict):
        raise ValueError(f"{path.removesuffix('.') or 'it'} is not an object")
    names = [each.name for each in fields(kind)]
    defaults = {each.name: each.default for each in fields(kind) if each.metadata == LATER}
    missing = [name for name in names if name not in content and name not in defaults]
    if missing:
        raise ValueError(f"lacks {_listed(missing, path)}")
    unknown = sorted(content.keys() - set(names))
    if unknown:
        raise ValueError(f"has fields that this release does not know: {_listed(unknown, path)}")
    hints = get_type_hints(kind)
    for name, value in content.items():
        _check_value(hints[name], value, path + name)
        if name in defaults and value == defaults[name]:
            stated = "null" if value is None else value
            raise ValueError(f"states {path + name} {stated}, which is the default and must be left out")


def _check_value(hint: Any, value: object, name: str) -> None:
    if not _fits(hint, value, name):
        raise ValueError(f"{name} is {repr(value)[:60]}, which is no {getattr(hint, '__name__', hint)}")


def _fits(hint: Any, value: object, name: str) -> bool:
    """Returns whether a value is of an annotation's type; for an object, raises the ValueError of `check_fields`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin in (Union, types.UnionType):
        if value is None:
            return types.NoneType in arguments
        return any(_fits(argument, value, name) for argument in arguments if argument is not types.NoneType)
    if origin is dict:
        return isinstance(value, Mapping) and all(_fits(arguments[1], item, name) for item in value.values())
    if origin is tuple:
        return isinstance(value, list) and all(_fits(arguments[0], item, name) for item in value)
    if hint is float:
        return type(value) is float and math.isfinite(value)
    if hint is str:
        return isinstance(value, str) and _is_text(value)
    if hint in (int, bool, types.NoneType):
        return type(value) is hint
    check_fields(hint, value, f"{name}.")
    return True


def _is_text(value: str) -> bool:
    """Returns whether a string can be encoded in UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:  # it holds half of a surrogate pair, and can neither be printed nor sent
        return False
    return True


def _listed(names: list[str], path: str) -> str:
    """Returns up to six field names for a message."""
    listed = ", ".join(repr(path + name)[:60] for name in names[:6])
    return listed + (", …" if len(names) > 6 else "")
