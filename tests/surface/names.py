"""Every public name: of Python, with members and parameters, of commands, of environment variables, of metrics.

Owns how each is written in a record. What is public is what the reference shows, and comes from where it comes from.
"""

import dataclasses
import enum
import inspect
import pkgutil
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

import click
from reference.commands import commands
from reference.metrics import metrics_page
from reference.packages import LIBRARY, ROOMS, SHELF, STACKS

from packhorse.deprecations import DECLARED

MORE = ("packhorse.analysis", "packhorse.client.errors", "packhorse.dataset", "packhorse.export.files")
"""Public packages without a page of the reference, or with one of another form: guides import from them."""


def public_packages() -> dict[str, tuple[str, ...]]:
    """Package → its public names."""
    rooms = (f"packhorse.client.{room}" for room in ROOMS)
    beside = (f"packhorse.{name}" for name in (*SHELF, *LIBRARY))
    found = {name: tuple(import_module(name).__all__) for name in ("packhorse.client", *rooms, *beside)}
    found |= {name: tuple(own_names(name)) for name in MORE}
    return found | {f"packhorse.trainers.{name}": names for name, names in STACKS.items()}


def own_names(package: str) -> Iterator[str]:
    """The public names of a module, if it does not list them."""
    module = import_module(package)
    listed = getattr(module, "__all__", None)
    yield from listed or (
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == package
    )


def python_names() -> Iterator[str]:
    """`packhorse.client.connect`, behind it each parameter in brackets, and each member after a dot."""
    for package, names in public_packages().items():
        module = import_module(package)
        for name in names:
            yield from names_of(f"{package}.{name}", getattr(module, name))


def names_of(path: str, value: Any) -> Iterator[str]:
    """One name with its members and parameters."""
    yield path
    yield from parameters_of(path, value)
    if isinstance(value, type):
        for member in members_of(value):
            yield f"{path}.{member}"
            held = inspect.getattr_static(value, member, None)
            yield from parameters_of(f"{path}.{member}", getattr(held, "__func__", held))


def parameters_of(path: str, value: Any) -> Iterator[str]:
    if not (inspect.isroutine(value) or (isinstance(value, type) and is_made_by_us(value))):
        return
    with suppress(ValueError, TypeError):  # no signature
        for each in inspect.signature(value).parameters.values():
            is_named = each.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
            if is_named and each.name not in ("self", "cls") and not each.name.startswith("_"):
                yield f"{path}({each.name})"


def is_made_by_us(cls: type) -> bool:
    """Whether what a class is made of is ours, and not that of a training stack or of Python's enums, by version."""
    if issubclass(cls, enum.Enum):
        return False
    maker = next(base for base in cls.__mro__ if {"__init__", "__new__"} & vars(base).keys())
    return maker.__module__.startswith("packhorse.")


def members_of(cls: type) -> set[str]:
    """Public members that are ours, of the class or of its bases; not those of torch and the standard library."""
    ours = [base for base in cls.__mro__ if base.__module__.startswith("packhorse.")]
    found = {name for base in ours for name in (*vars(base), *vars(base).get("__annotations__", {}))}
    if dataclasses.is_dataclass(cls):
        found |= {field.name for field in dataclasses.fields(cls)}
    return {name for name in found if not name.startswith("_")}


def command_names() -> Iterator[str]:
    """`packhorse serve`, `packhorse serve --listen`, each choice of a flag, and the variables that flags read."""
    from packhorse.cli import main

    for name, command in commands(main):
        yield name
        for option in command.params:
            if isinstance(option, click.Option):
                yield from (f"{name} {flag}" for flag in (*option.opts, *option.secondary_opts))
                if isinstance(option.type, click.Choice):
                    yield from (f"{name} {option.opts[0]} {choice}" for choice in option.type.choices)
            variables = getattr(option, "envvar", None) or ()
            yield from [variables] if isinstance(variables, str) else variables


def metric_names() -> Iterator[str]:
    """`packhorse_streams`, and behind it each label in braces."""
    for line in metrics_page().splitlines():
        if line.startswith("| `"):
            name, _, labels, *_ = (cell.strip() for cell in line.strip("| ").split(" | "))
            yield name.strip("`")
            yield from (f"{name.strip('`')}{{{label.strip('` ')}}}" for label in labels.split(",") if label.strip("` "))


def old_names() -> Iterator[str]:
    """What still works and stands in no signature and no `__all__` any more: old parameters and names of packages."""
    for name in DECLARED:
        with suppress(ImportError, AttributeError, ValueError), warnings.catch_warnings(action="ignore"):
            pkgutil.resolve_name(name.partition("(")[0])
            yield name


def public_names() -> set[str]:
    """All of them, as this tree has them."""
    found = {*python_names(), *command_names(), *metric_names()}
    return found | set(old_names())  # which commands and packages declare when they are imported
