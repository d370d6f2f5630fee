"""What would tire a reader of the house: crowded folders and files, long functions, many parameters, circles.

Owns what can be counted and hurts whoever reads; the size of the whole is nobody's limit.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import packhorse.client

REPOSITORY = Path(__file__).parents[1]
ROOTS = tuple(REPOSITORY / root / "packhorse" for root in ("proto", "server", "client"))

MOST_MODULES_OF_A_FOLDER = 15
MOST_PARAMETERS = 12
MOST_LINES_OF_A_FUNCTION = 60
"""Its docstring left out."""
MOST_EXPORTED = 40

MOST_CLUSTERS_OF_A_FILE = 2
LEAST_LINES_OF_A_CLUSTER = 15

LONG = {
    "packhorse/prepare/input/parquet_pages/_level_kernel.py:add_lists": 75,
}
"""Function → lines, where there are still more."""

CLUSTERED = {
    "packhorse/packing/on_demand/list_kernels.py": "the compiled loops of one family of packers",
    "packhorse/prepare/_kernels.py": "the compiled loops of one pass over rows",
    "packhorse/packing/seqpack.py": "functions under the names of one published package",
    "packhorse/dataset/files/toml_files.py": "text, fields and lines of one kind of file",
}
"""File → why more than two clusters of its definitions, of which none uses another, are one idea."""


@cache
def files() -> tuple[Path, ...]:
    return tuple(sorted(path for root in ROOTS for path in root.rglob("*.py") if root / "v1" not in path.parents))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """What a module consists of, the module itself first."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_kept() -> Iterator[None]:
    yield
    nodes.cache_clear()


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with its name, `packhorse/client/api.py:connect`."""
    for path in files():
        name = "/".join(path.relative_to(REPOSITORY).parts[1:])
        for node in nodes(path):
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
    for node in nodes(path):
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


def clusters_of(path: Path) -> list[set[str]]:
    """Definitions of a module that use each other, directly or over others; each cluster of at least fifteen lines."""
    defined: dict[str, ast.stmt] = {}
    module = nodes(path)[0]
    assert isinstance(module, ast.Module)
    for node in module.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                defined[name] = node
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                defined[name] = node
    cluster = {name: {name} for name in defined}
    for name, node in defined.items():
        for inner in ast.walk(node):
            used = inner.id if isinstance(inner, ast.Name) else inner.value if isinstance(inner, ast.Constant) else None
            if isinstance(used, str) and used in defined and cluster[used] is not cluster[name]:
                cluster[name] |= cluster[used]
                for each in cluster[used]:
                    cluster[each] = cluster[name]
    distinct = {id(names): names for names in cluster.values()}.values()
    lines = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in defined.items()}
    return [names for names in distinct if sum(lines[name] for name in names) >= LEAST_LINES_OF_A_CLUSTER]


def test_a_file_holds_one_idea_or_two() -> None:
    found = {
        "/".join(path.relative_to(REPOSITORY).parts[1:]): clusters_of(path)
        for path in files()
        if path.stem != "__init__"
    }
    many = {name: clusters for name, clusters in found.items() if len(clusters) > MOST_CLUSTERS_OF_A_FILE}
    assert {name: clusters for name, clusters in many.items() if name not in CLUSTERED} == {}
    assert CLUSTERED.keys() <= many.keys(), "a file holds fewer ideas now: take its entry away"


def test_clusters_are_told_apart(tmp_path: Path) -> None:
    lines = "\n".join("    x = 1" for _ in range(20))
    file = tmp_path / "file.py"
    file.write_text(
        f"LIMIT = 3\ndef a():\n{lines}\n    b()\ndef b():\n    return LIMIT\ndef c():\n{lines}\ndef d(): ...\n"
    )
    assert sorted(sorted(names) for names in clusters_of(file)) == [["LIMIT", "a", "b"], ["c"]]
