"""Writes the reference pages in `client/guides` from the code; with --check it only compares.

Owns what a page of reference looks like. What stands there comes from the command line's help, from signatures and
docstrings, from the metrics' registry and from the protocol. What has no description is an error, which names it.
"""

import argparse
import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin

import click

sys.path.append(str(Path(__file__).parent))

from pages import GUIDES, ROOT

GENERATED = "<!-- Written by `make reference` from the code; not edited by hand. -->"
LIBRARY = ("prepare", "packing", "epoch", "topology", "formats", "tokenize", "sft")
STACKS = {
    "transformers": ("PackedTrainer", "PackedTrainerMixin", "cursor_of_checkpoint"),
    "trl": ("PackedSFTTrainer",),
    "torchdata": ("PackedNode",),
    "stateful": ("PackedStatefulDataLoader",),
}
_SECTION = re.compile(r"^(Args|Returns|Yields|Raises|Example|Examples|Attributes|Legend):(.*)$")
_ENTRY = re.compile(r"^(\*{0,2}[\w.]+)(?: \([^)]*\))?: (.*)$")


class UndocumentedError(Exception):
    """Something public has no description."""


def cell(text: str) -> str:
    """A text as it may stand in a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# Commands


def commands(group: click.Group, name: str = "packhorse") -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name."""
    context = click.Context(group)
    for inner in group.list_commands(context):
        command = group.get_command(context, inner)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {inner}")
        else:
            yield f"{name} {inner}", command


def option_row(where: str, option: click.Option) -> tuple[str, str, str]:
    if not option.help:
        raise UndocumentedError(f"{where} {option.opts[0]} has no help text")
    context = click.Context(click.Command(where))
    record = option.get_help_record(context)
    assert record is not None
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if not option.is_flag:
        metavar = option.make_metavar(context).replace("|", " | ")
        names += " " + cell(re.sub(r"(INTEGER|FLOAT)( RANGE)?", "N", metavar))
    extras = option.get_help_extra(context)
    facts = []
    if "required" in extras:
        facts.append("required")
    if "default" in extras:
        facts.append(f"default: {extras['default']}")
    elif not option.is_flag and isinstance(option.default, int | float | str | Path) and "[default:" not in option.help:
        facts.append(f"default: {option.default}")
    if "range" in extras:
        facts.append(extras["range"])
    facts += [f"`{name}`" for name in extras.get("envvars", ())]
    return names, cell("; ".join(facts)), cell(option.help)


def commands_page() -> str:
    from packhorse.cli import COMMANDS, main

    parts = [
        "# Every command and every flag\n",
        GENERATED + "\n",
        "[The command line](command-line.md) shows each command at work. A variable in the second column gives a "
        "flag's value where the flag is left out.\n",
    ]
    for name, command in commands(main):
        if not command.help:
            raise UndocumentedError(f"{name} has no help text")
        parts.append(f"## {name}\n")
        extra = COMMANDS[name.split()[1]].extra
        parts.append(f"Needs `packhorse[{extra}]`.\n" if extra else "Every install has it.\n")
        parts.append(inspect.cleandoc(command.help).replace("\b\n", "").strip() + "\n")
        arguments = [
            f"`{(p.metavar or p.name or '').upper()}`" for p in command.params if isinstance(p, click.Argument)
        ]
        if arguments:
            parts.append(f"Arguments: {', '.join(arguments)}.\n")
        options = [p for p in command.params if isinstance(p, click.Option)]
        parts.append(table(("flag", "value", "meaning"), [option_row(name, option) for option in options]))
    return "\n".join(parts)


# Python


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
    made_by = vars(found).get("__init__")
    if made_by is not None and made_by.__doc__:
        doc.parameters |= read_docstring(where, made_by.__doc__).parameters
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
    methods = [(name, method) for name, method in vars(found).items() if is_public_method(name, method)]
    if methods and not is_record:
        parts.append(table(("method", "what it does"), [method_row(f"{where}.{name}", name, m) for name, m in methods]))
    return parts


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


def public_names(package: ModuleType) -> tuple[str, ...]:
    """The client's `__all__` leaves out what needs torch."""
    return tuple(getattr(package, "_PUBLIC", package.__all__))


def page_of(title: str, first: str, packages: dict[str, tuple[str, ...]]) -> str:
    parts = [f"# {title}\n", GENERATED + "\n", first + "\n"]
    for package, names in packages.items():
        module = import_module(package)
        parts.append(f"## {package}\n")
        if len(packages) > 1:
            parts.append(cell((module.__doc__ or "").split("\n\n")[0]) + "\n")
        for name in sorted(names, key=str.lower):
            found = getattr(module, name)
            if not (isinstance(found, type) or inspect.isroutine(found)) or get_origin(found):
                continue  # a number, or the name of a type
            parts += [f"### {name}\n", described(f"{package}.{name}", found)]
    return "\n".join(parts)


def client_page() -> str:
    import packhorse.client

    packages = {"packhorse.client": public_names(packhorse.client)}
    packages |= {f"packhorse.client.stacks.{name}": names for name, names in STACKS.items()}
    first = (
        "Names and parameters of what a trainer uses. `help()` of each shows an example as well. What is for machines "
        "that prepare and serve stands in [the library's reference](reference-library.md)."
    )
    return page_of("The client's functions and classes", first, packages)


def library_page() -> str:
    packages = {f"packhorse.{name}": tuple(import_module(f"packhorse.{name}").__all__) for name in LIBRARY}
    first = (
        "Names and parameters of what plans, prepares and tokenizes in Python. A trainer needs "
        "[the client's reference](reference-client.md) instead."
    )
    return page_of("The library's functions and classes", first, packages)


# Metrics, environment, errors


def metrics_page() -> str:
    from packhorse.server.metrics import DATASET_GAUGES, METRIC_NAMES, Metrics
    from packhorse.server.waiting_gauge import _LABELS, _MEANING, WAITING_GAUGE

    metrics = Metrics(list)
    facts: dict[str, tuple[str, str, tuple[str, ...]]] = {
        name: ("gauge", meaning, ("dataset",)) for name, (meaning, _) in DATASET_GAUGES.items()
    }
    facts[WAITING_GAUGE] = ("gauge", _MEANING, tuple(_LABELS))
    for metric in vars(metrics).values():
        if hasattr(metric, "_documentation"):
            suffix = "_total" if metric._type == "counter" else ""
            facts[metric._name + suffix] = (metric._type, metric._documentation, tuple(metric._labelnames))
    missing = METRIC_NAMES - {name for name, fact in facts.items() if fact[1]}
    if missing:
        raise UndocumentedError(f"metric {min(missing)} has no description")
    rows = [
        (f"`{name}`", facts[name][0], ", ".join(f"`{label}`" for label in facts[name][2]), cell(facts[name][1]))
        for name in sorted(METRIC_NAMES)
    ]
    return "\n".join(
        [
            "# Every metric\n",
            GENERATED + "\n",
            "`packhorse serve --metrics-listen HOST:PORT` shows them to Prometheus. What to watch: "
            "[Serving](../../deploy/guides/serving.md#metrics).\n",
            table(("metric", "kind", "labels", "meaning"), rows),
        ]
    )


def environment_page() -> str:
    from packhorse.cli import main
    from packhorse.client.loading._ranks import _SIGNS_IN_ENVIRONMENT

    meanings: dict[str, tuple[list[str], str]] = {}
    for name, command in commands(main):
        for option in command.params:
            variable = getattr(option, "envvar", None)
            if variable:
                variables = [variable] if isinstance(variable, str) else variable
                for one in variables:
                    readers, _ = meanings.setdefault(one, ([], option_row(name, option)[2]))  # type: ignore[arg-type]
                    readers.append(f"`{name} {option.opts[0]}`")
    rows = [(f"`{name}`", ", ".join(readers), meaning) for name, (readers, meaning) in sorted(meanings.items())]
    rows += [
        ("`RANK`, `WORLD_SIZE`", "loaders", "Rank and number of processes, as torchrun and others set them."),
        (
            ", ".join(f"`{name}`" for name in _SIGNS_IN_ENVIRONMENT),
            "loaders",
            "Above 1, they say that ranks share a model. The loader then asks for "
            "[the data-parallel rank](model-parallelism.md).",
        ),
    ]
    return "\n".join(
        [
            "# Every environment variable\n",
            GENERATED + "\n",
            "A flag or an argument comes before its variable.\n",
            table(("variable", "read by", "meaning"), rows),
        ]
    )


def reasons() -> dict[str, tuple[str, str]]:
    """Reason → (gRPC status, what the protocol says of it)."""
    text = (ROOT / "proto/packhorse/v1/packing.proto").read_text()
    body = re.search(r"enum ErrorReason \{(.*?)\n\}", text, re.DOTALL)
    assert body is not None
    found: dict[str, tuple[str, str]] = {}
    comment: list[str] = []
    for line in body[1].strip().splitlines():
        if line.strip().startswith("//"):
            comment.append(line.strip().removeprefix("//").strip())
        elif name := re.match(r"\s*ERROR_REASON_(\w+) =", line):
            status, colon, meaning = " ".join(comment).partition(": ")
            if colon:
                found[name[1]] = (status, meaning)
            elif name[1] != "UNSPECIFIED":
                raise UndocumentedError(f"error reason {name[1]} has no comment in the protocol")
            comment = []
    return found


def errors_page() -> str:
    from packhorse.client import errors
    from packhorse.v1 import packing_pb2

    of_reason = {
        packing_pb2.ErrorReason.Name(number).removeprefix("ERROR_REASON_"): found.__name__
        for number, found in errors.EXCEPTION_OF_REASON.items()
    }
    classes = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, errors.PackhorseError)]
    for found in classes:
        read_docstring(found.__name__, found.__doc__)
    return "\n".join(
        [
            "# Every error reason and exception\n",
            GENERATED + "\n",
            "What to do about each stands in [Troubleshooting](troubleshooting.md).\n",
            "## Reasons of the service\n",
            "A reason travels in `google.rpc.ErrorInfo`, with the domain `packhorse.v1`. Clients branch on it, never "
            "on text.\n",
            table(
                ("reason", "gRPC status", "exception in Python", "meaning"),
                [
                    (f"`{name}`", status, f"`{of_reason[name]}`", cell(meaning[:1].upper() + meaning[1:]))
                    for name, (status, meaning) in reasons().items()
                ],
            ),
            "## Exceptions of the client\n",
            table(
                ("exception", "is a", "meaning"),
                [
                    (
                        f"`{c.__name__}`",
                        ", ".join(f"`{b.__name__}`" for b in c.__bases__),
                        cell(c.__doc__.split("\n\n")[0]),
                    )
                    for c in classes
                ],
            ),
        ]
    )


WRITERS = {
    "reference-commands.md": commands_page,
    "reference-client.md": client_page,
    "reference-library.md": library_page,
    "reference-metrics.md": metrics_page,
    "reference-environment.md": environment_page,
    "reference-errors.md": errors_page,
}


def main() -> None:
    """Writes the pages, or compares them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 when a page is stale")
    check = parser.parse_args().check
    stale = []
    for name, write in WRITERS.items():
        text = write().rstrip() + "\n"
        page = GUIDES / name
        if not page.exists() or page.read_text() != text:
            stale.append(name)
            if not check:
                page.write_text(text)
    if check and stale:
        sys.exit(f"stale: {', '.join(stale)}; run `make reference` and commit what it writes")


if __name__ == "__main__":
    main()
