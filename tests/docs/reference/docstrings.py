"""Docstrings of Google's style, and the texts under a class's fields, read into parts."""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator

from reference.markdown import UndocumentedError, cell

_SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Example|Examples|Attributes|Legend):(.*)$")
_ENTRY = re.compile(r"^(\*{0,2}[\w.]+)(?: \([^)]*\))?: (.*)$")


@dataclasses.dataclass
class Docstring:
    """A docstring of Google's style, in parts."""

    summary: str
    parameters: dict[str, str]
    returns: str
    raises: dict[str, str]


def read_docstring(where: str, text: str | None) -> Docstring:
    if not text:
        raise UndocumentedError(f"{where} has no docstring")
    sections: dict[str, list[str]] = {"": []}
    current = ""
    for line in inspect.cleandoc(text).splitlines():
        if (found := _SECTION.match(line)) and not found[2]:
            current = found[1]
            sections[current] = []
        else:
            sections[current].append(line)
    summary = "\n".join(sections[""]).split("\n\n")[0]
    return Docstring(
        summary=cell(summary),
        parameters=dict(entries(sections.get("Args", []))),
        returns=cell(textwrap.dedent("\n".join(sections.get("Returns", sections.get("Yields", []))))),
        raises=dict(entries(sections.get("Raises", []))),
    )


def entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """`name: text` with the lines that go on further in."""
    name, text = "", []
    for line in textwrap.dedent("\n".join(lines)).splitlines():
        if found := _ENTRY.match(line):
            if name:
                yield name, cell(" ".join(text))
            name, text = found[1].lstrip("*"), [found[2]]
        else:
            text.append(line)
    if name:
        yield name, cell(" ".join(text))


def attribute_docs(found: type) -> dict[str, str]:
    """The texts under a class's fields."""
    docs: dict[str, str] = {}
    for base in reversed(found.__mro__):
        if not base.__module__.startswith("packhorse."):
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError):
            continue
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            if not is_text or not isinstance(text.value.value, str):
                continue
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                docs[field.target.id] = cell(text.value.value)
            elif isinstance(field, ast.Assign) and isinstance(field.targets[0], ast.Name):
                docs[field.targets[0].id] = cell(text.value.value)
    return docs
