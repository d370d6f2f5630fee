"""What would tire a reader of the house: crowded folders, long functions, many parameters, circles of imports.

Owns what can be counted and hurts whoever reads; the size of the whole is nobody's limit.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import packhorse.client

REPOSITORY = Path(__file__).parents[1]
ROOTS = tuple(REPOSITORY / root / "packhorse" for root in ("proto", "server", "client"))

MOST_MODULES_OF_A_FOLDER = 15
MOST_PARAMETERS = 12
MOST_LINES_OF_A_FUNCTION = 60
"""Its docstring left out."""
MOST_EXPORTED = 40

LONG = {
    "packhorse/prepare/kernels.py:add_lists": 75,
}
"""Function → lines, where there are still more."""


@cache
def files() -> tuple[Path, ...]:
    return tuple(sorted(path for root in ROOTS for path in root.rglob("*.py") if root / "v1" not in path.parents))


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with its name, `packhorse/client/api.py:connect`."""
    for path in files():
        name = "/".join(path.relative_to(REPOSITORY).parts[1:])
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{name}:{node.name}", node


def num_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in arguments)


def num_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    docstring = function.body[0] if ast.get_docstring(function) is not None else None
    of_docstring = 0 if docstring is None else (docstring.end_lineno or 0) - docstring.lineno + 1
    return (function.end_lineno or 0) - function.lineno + 1 - of_docstring


def test_modules_of_a_folder() -> None:
    modules: dict[str, int] = {}
    for path in files():
        if path.stem not in ("__init__", "__main__"):
            folder = path.parent.relative_to(REPOSITORY).as_posix()
            modules[folder] = modules.get(folder, 0) + 1
    assert {folder: count for folder, count in modules.items() if count > MOST_MODULES_OF_A_FOLDER} == {}


def test_parameters() -> None:
    many = {name: count for name, each in functions() if (count := num_parameters(each)) > MOST_PARAMETERS}
    assert not many


def test_lines_of_a_function() -> None:
    long = {name: count for name, each in functions() if (count := num_lines(each)) > MOST_LINES_OF_A_FUNCTION}
    assert {name: count for name, count in long.items() if count > LONG.get(name, 0)} == {}
    assert LONG.keys() <= long.keys(), "a function is short now: take its entry away"


def test_names_at_the_client() -> None:
    assert len(packhorse.client.__all__) <= MOST_EXPORTED


def imports_of(path: Path) -> Iterator[str]:
    """What a module imports, within functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_circles() -> None:
    """Modules that import each other, however far around; packages' `__init__` only re-export and are left out."""
    names = {".".join(path.relative_to(REPOSITORY).with_suffix("").parts[1:]): path for path in files()}
    arrows = {
        name: {
            other
            for imported in imports_of(path)
            for other in (imported, imported.rpartition(".")[0])
            if other in names and not other.endswith("__init__") and other != name
        }
        for name, path in names.items()
        if not name.endswith("__init__")
    }
    while leaves := {name for name, targets in arrows.items() if not targets & arrows.keys()}:
        arrows = {name: targets for name, targets in arrows.items() if name not in leaves}
    assert not arrows, f"these modules import each other: {sorted(arrows)}"
