"""A module is public or private by its name alone: a public one defines something that `__init__` exports."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import packhorse.client

PACKAGES = ("jobs", "packing", "epoch", "dataset", "prepare", "tokenize")
REPOSITORY = Path(__file__).parents[1]
OF_STACKS = "packhorse.client.stacks."  # imported one by one, since each needs its stack
ROOMS = ("batches", "loading", "masks", "presets", "rollouts", "seeing", "service", "sources")


def defined_in(path: Path) -> set[str]:
    names = set()
    for statement in ast.parse(path.read_text()).body:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{alias.name}" for alias in names)


@pytest.mark.parametrize("name", [*PACKAGES, *(f"client.{room}" for room in ROOMS)])
def test_modules_without_an_underscore_are_those_that_hold_something_public(name: str) -> None:
    package = import_module(f"packhorse.{name}")
    exported = set(getattr(package, "__all__", packhorse.client._PUBLIC))  # three rooms leave exporting to the client
    files = [path for path in Path(package.__path__[0]).glob("*.py") if path.stem != "__init__"]
    public = {path.stem for path in files if not path.stem.startswith("_")}
    exporting = {path.stem for path in files if defined_in(path) & exported}
    assert public == exporting


@pytest.mark.parametrize("name", [*PACKAGES, "client"])
def test_outsiders_import_the_package_and_not_its_modules(name: str) -> None:
    package = f"packhorse.{name}."
    module = import_module(f"packhorse.{name}")
    exported = getattr(module, "_PUBLIC", module.__all__)
    for path in (path for root in ("proto", "server", "client") for path in (REPOSITORY / root).rglob("*.py")):
        if f"/packhorse/{name}/" in path.as_posix():
            continue
        for imported in imports_of(path):
            if imported.startswith(package) and not imported.startswith(OF_STACKS):
                assert imported.removeprefix(package) in exported, path
