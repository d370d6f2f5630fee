"""How a message becomes a value of Python: field by field, by name.

Owns `Fact`, the base of every class that has a message; leaves the facts themselves to `dataset` and `takedown`.
"""

from dataclasses import MISSING, Field, fields
from typing import Any, ClassVar, Self


class Fact:
    """A frozen dataclass that is read from a message.

    Its fields have the names of the message's fields. A field that is unset, or zero, has the default of the class.

    Example:
        >>> from packhorse.types import Stage
        >>> from packhorse.v1 import packing_pb2 as pb
        >>> Stage.from_proto(pb.Stage(digest="3fa1", shares=["1"]))
        Stage(first_position=0, digest='3fa1', shares=('1',), bins_per_draw=1)
    """

    __slots__ = ()

    MESSAGE: ClassVar[Any]
    """Class of its message."""
    _classes: ClassVar[dict[str, type["Fact"]]] = {}

    def __init_subclass__(cls) -> None:
        """Remembers which class reads which message, for messages inside messages."""
        Fact._classes[cls.MESSAGE.DESCRIPTOR.full_name] = cls

    @classmethod
    def computed(cls, message: Any) -> dict[str, Any]:
        """Returns what the message holds in another form, by field of the class; nothing by default."""
        return {}

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        """Returns the facts of a message, which is one of `MESSAGE`."""
        values = cls.computed(message)
        own: tuple[Field[Any], ...] = fields(cls)  # type: ignore[arg-type] # each subclass is a dataclass
        return cls(**{each.name: _value(message, each) for each in own if each.name not in values}, **values)


def _value(message: Any, field: Field[Any]) -> Any:
    told = message.DESCRIPTOR.fields_by_name[field.name]
    value = getattr(message, field.name)
    if told.has_presence and not message.HasField(field.name):
        return None
    nested = told.message_type and Fact._classes[told.message_type.full_name].from_proto
    if not told.has_presence and not isinstance(value, bool | int | float | str | bytes):
        return tuple(map(nested, value) if nested else value)
    if nested:
        return nested(value)
    return value if value or told.has_presence or field.default is MISSING else field.default
