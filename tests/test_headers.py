"""A file's first docstring says where else to look, and what it names is there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.cli import COMMANDS

REPOSITORY = Path(__file__).parents[1]
ROOTS = tuple(REPOSITORY / root / "packhorse" for root in ("proto", "server", "client"))
FILES = sorted(path for root in ROOTS for path in root.rglob("*.py") if root / "v1" not in path.parents)
_CLAUSE_ENDS = re.compile(r"(?<=[.;:])\s+|\n\n")
_LEAVES = re.compile(r"\b[Ll]eaves\b.*?\bto\b(?P<rest>.*)", re.DOTALL)
_ELSEWHERE = re.compile(r"\b(?:is|are|stands?|documented) in `(?P<name>[a-z_][\w./]*)`|`(?P<owner>[a-z_][\w.]*)`'s?\b")
_NAME = re.compile(r"`([A-Za-z_][\w./]*|packhorse [a-z]+)`")


def names_left_to(header: str) -> Iterator[str]:
    """The modules, classes and commands to which a header sends its reader."""
    for clause in _CLAUSE_ENDS.split(header):
        if (leaves := _LEAVES.search(clause)) is not None:
            yield from _NAME.findall(leaves["rest"])
        yield from (found["name"] or found["owner"] for found in _ELSEWHERE.finditer(clause))


def is_module(path: Path) -> bool:
    return path.with_suffix(".py").is_file() or path.is_dir()


def is_there(name: str, file: Path) -> bool:
    """Whether a name, written in a file's header, is a module, a package, a command or a class of the tree.

    A module is named by its path from a package around the file, by its dotted name, or by its stem alone where no
    other module of `packhorse.PACKAGE` has the same.
    """
    if name.startswith("packhorse "):
        return name.removeprefix("packhorse ") in COMMANDS
    *parts, last = name.removeprefix("packhorse.").removesuffix(".py").replace("/", ".").split(".")
    if last[0].isupper():
        return is_class(last) and (not parts or is_there(".".join(parts), file))
    root = next(root for root in ROOTS if root in file.parents)
    around = [folder for folder in file.parents if root in folder.parents]
    inside = Path(*parts, last)
    if any(is_module(folder / inside) for folder in (*around, *ROOTS)):
        return True
    package = around[-1]
    return sum(is_module(folder / inside) for folder in (package, *package.rglob("*/"))) == 1


def is_class(name: str) -> bool:
    return any(re.search(rf"^class {name}\b", path.read_text(encoding="utf-8"), re.MULTILINE) for path in FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_what_a_header_names_is_there(file: Path) -> None:
    header = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    assert header, f"{file} has no docstring that says what it owns"
    missing = [name for name in names_left_to(header) if not is_there(name, file)]
    assert not missing, f"the header of {file.relative_to(REPOSITORY)} names {missing}, and there is no such module"


def test_a_module_that_is_gone_is_noticed() -> None:
    header = "Owns calls. Leaves threads to `lanes`, a table to `packhorse.dataset` and waves to `openings`."
    assert list(names_left_to(header)) == ["lanes", "packhorse.dataset", "openings"]
    file = next(path for path in FILES if path.name == "servicer.py")
    assert is_there("lanes", file)
    assert is_there("packhorse.dataset", file)
    assert not is_there("openings", file)
