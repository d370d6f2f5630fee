"""`Fact`: the base of dataclasses that are read from protobuf messages.

Owns how each field is filled from the message's field of the same name. Leaves the classes themselves to `facts`.
"""

from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self


class Fact:
    """A frozen dataclass that is read from a protobuf message.

    Its fields have the names of the message's fields. A repeated field becomes a tuple. An `optional` or message field
    that is unset becomes None. Any other field that is zero or empty gets the default of the class, if it has one.

    Example:
        >>> from packhorse.types import Stage
        >>> from packhorse.v1 import packing_pb2 as pb
        >>> Stage.from_proto(pb.Stage(digest="3fa1", shares=["1"]))
        Stage(first_position=0, digest='3fa1', shares=('1',), bins_per_draw=1)
    """

    __slots__ = ()

    MESSAGE: ClassVar[Any]
    """Class of the protobuf message that it is read from."""
    _classes: ClassVar[dict[str, type["Fact"]]] = {}
    """Full name of a message → the class that reads it, for messages inside messages."""

    def __init_subclass__(cls) -> None:
        """Adds the class to `_classes`."""
        Fact._classes[cls.MESSAGE.DESCRIPTOR.full_name] = cls

    @classmethod
    def computed(cls, message: Any) -> dict[str, Any]:
        """Returns values, by field name, that cannot be copied from a field of the same name; none by default."""
        return {}

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        """Returns an object of this class with the values of a message of type `MESSAGE`."""
        values = cls.computed(message)
        copied = _fields_of(cls)  # type: ignore[arg-type] # a class is hashable
        return cls(**{field.name: field.value(message) for field in copied if field.name not in values}, **values)


class _MessageField(NamedTuple):
    """How a field is read from a message."""

    name: str
    has_presence: bool
    """Whether the message tells unset from zero, as it does for `optional` fields and for messages inside it."""
    is_repeated: bool
    read_nested: Callable[[Any], Any] | None
    """Reads a message inside the message; None if no class does, as for plain values."""
    default: Any
    """The dataclass field's default, or MISSING."""

    def value(self, message: Any) -> Any:
        """Returns the field's value in a message."""
        if self.has_presence and not message.HasField(self.name):
            return None
        value = getattr(message, self.name)
        if self.is_repeated:
            return tuple(map(self.read_nested, value) if self.read_nested else value)
        if self.read_nested:
            return self.read_nested(value)
        return value if value or self.has_presence or self.default is MISSING else self.default


@cache
def _fields_of(cls: Any) -> list[_MessageField]:
    """Returns how to read each field that a class shares with its message; the class's `computed` gives the others."""
    empty_message, found = cls.MESSAGE(), []
    for field in fields(cls):
        if (declared := empty_message.DESCRIPTOR.fields_by_name.get(field.name)) is None:
            continue
        nested = declared.message_type and Fact._classes.get(declared.message_type.full_name)
        # A repeated field has no presence either, but an empty message gives a container for it and not a plain value.
        is_repeated = not declared.has_presence and not isinstance(
            getattr(empty_message, field.name), bool | int | float | str | bytes
        )
        read = nested.from_proto if nested else None
        found.append(_MessageField(field.name, declared.has_presence, is_repeated, read, field.default))
    return found
