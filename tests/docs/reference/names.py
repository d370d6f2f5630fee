"""One public name, described: a function with its parameters, a class with its fields and methods."""

import dataclasses
import inspect
import sys
from enum import Enum
from typing import Any

from reference.docstrings import Docstring, attribute_docs, read_docstring
from reference.markdown import UndocumentedError, table


def shown_default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    if isinstance(value, Enum):
        return f"`{value.value!r}`"
    text = repr(value)
    return f"`{text}`" if " at 0x" not in text and len(text) < 60 else "see its text"


def parameter_rows(where: str, function: Any, docs: dict[str, str]) -> list[tuple[str, str, str]]:
    if "arguments" in docs:  # those of another function
        return [("`**arguments`", "further ones", docs["arguments"])]
    rows = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self" or parameter.name.startswith("_"):
            continue
        if parameter.name not in docs:
            raise UndocumentedError(f"{where}: parameter {parameter.name} stands in no docstring")
        starred = parameter.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        stars = {inspect.Parameter.VAR_KEYWORD: "**", inspect.Parameter.VAR_POSITIONAL: "*"}.get(parameter.kind, "")
        default = "further ones" if starred else shown_default(parameter.default)
        rows.append((f"`{stars}{parameter.name}`", default, docs[parameter.name]))
    return rows


def described(where: str, found: Any) -> str:
    """One public name."""
    doc = read_docstring(where, found.__doc__)
    parts = [doc.summary + "\n"]
    if isinstance(found, type):
        parts += class_parts(where, found, doc)
    elif callable(found):
        rows = parameter_rows(where, found, doc.parameters)
        if rows:
            parts.append(table(("parameter", "default", "meaning"), rows))
        if doc.returns:
            parts.append(f"Returns: {doc.returns}\n")
    if doc.raises:
        parts.append(
            "Raises: " + " ".join(f"`{name}`: {text.rstrip('.')}." for name, text in doc.raises.items()) + "\n"
        )
    return "\n".join(parts)


def class_parts(where: str, found: type, doc: Docstring) -> list[str]:
    if issubclass(found, Exception):
        return []
    classes = described_with(found)
    made_by = vars(found).get("__init__")
    if made_by is not None:
        makers = [vars(cls)["__init__"].__doc__ for cls in classes if "__init__" in vars(cls)]
        for made in filter(None, makers):
            doc.parameters |= read_docstring(where, made).parameters
    docs = attribute_docs(found) | doc.parameters
    if issubclass(found, Enum):
        missing = [member.name for member in found if member.name not in docs]
        if missing:
            raise UndocumentedError(f"{where}.{missing[0]} has no text under it")
        rows = [(f"`{member.value!r}`", docs[member.name]) for member in found]
        return [table(("value", "meaning"), rows)]
    fields = [name for name in getattr(found, "__annotations__", {}) if not name.startswith("_") and name in docs]
    is_record = dataclasses.is_dataclass(found) or hasattr(found, "_fields") or hasattr(found, "__required_keys__")
    parts = []
    if is_record or made_by is None:
        if fields:
            parts.append(table(("field", "meaning"), [(f"`{name}`", docs[name]) for name in fields]))
    elif doc.parameters:  # others are made by functions, not by their users
        rows = parameter_rows(where, found.__init__, docs)
        if rows:
            parts.append(table(("parameter", "default", "meaning"), rows))
    members = {name: member for cls in classes for name, member in vars(cls).items()}
    methods = [(name, method) for name, method in members.items() if is_public_method(name, method)]
    if methods and not is_record:
        parts.append(table(("method", "what it does"), [method_row(f"{where}.{name}", name, m) for name, m in methods]))
    return parts


def described_with(found: type) -> list[type]:
    """A class behind those bases of ours that no page describes, themselves or by what they are made of."""
    bases = [base for base in found.__mro__[1:] if base.__module__.startswith("packhorse.")]
    return [*(base for base in reversed(bases) if not any(map(is_exported, base.__mro__))), found]


def is_exported(cls: type) -> bool:
    package = sys.modules.get(cls.__module__.rpartition(".")[0])
    return cls.__module__.startswith("packhorse.") and cls.__name__ in getattr(package, "__all__", ())


def is_public_method(name: str, method: Any) -> bool:
    return not name.startswith("_") and (inspect.isfunction(method) or isinstance(method, property | classmethod))


def method_row(where: str, name: str, method: Any) -> tuple[str, str]:
    doc = read_docstring(where, method.__doc__)
    if isinstance(method, property):
        return f"`{name}`", doc.summary
    function = method.__func__ if isinstance(method, classmethod) else method
    names = [
        {inspect.Parameter.VAR_KEYWORD: "**", inspect.Parameter.VAR_POSITIONAL: "*"}.get(p.kind, "") + p.name
        for p in list(inspect.signature(function).parameters.values())[1:]
    ]
    return f"`{name}({', '.join(names)})`", doc.summary
