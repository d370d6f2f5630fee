"""A module is public or private by its name alone: a public one defines something that `__init__` exports."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

PACKAGES = ("jobs", "dataset", "prepare", "tokenize")


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


@pytest.mark.parametrize("name", PACKAGES)
def test_modules_without_an_underscore_are_those_that_hold_something_public(name: str) -> None:
    package = import_module(f"packhorse.{name}")
    files = [path for path in Path(package.__path__[0]).glob("*.py") if path.stem != "__init__"]
    public = {path.stem for path in files if not path.stem.startswith("_")}
    exporting = {path.stem for path in files if defined_in(path) & set(package.__all__)}
    assert public == exporting
