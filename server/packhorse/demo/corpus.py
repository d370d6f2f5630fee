"""The demo's corpus, which every machine has: the functions and classes of the installed Python's standard library.

Owns what a document of Python source is. Leaves tokenizing to `packhorse.tokenize`.
"""

import ast
import io
import os
import sysconfig
import textwrap
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

_EXCLUDED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__"})
_TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})
_SMALL_CLASS_LINES = 40
"""The most lines of a class that is one document."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_COMPOUND = (ast.If, ast.Try, ast.TryStar, ast.With, ast.ExceptHandler)
"""Statements at a module's or class's level that are searched for functions and classes."""


def python_corpus(limit_documents: int | None = None) -> Iterator[str]:
    """Yields the source text of every function and class of the standard library, its tests included.

    A function that is not inside another one is a document, with its decorators and inner functions. A class of at most
    40 lines is a document; a longer class is cut into its methods and inner classes. No text is in two documents. The
    library comes before its tests; both are ordered by path, and then by line. Files that cannot be parsed are skipped.

    Args:
        limit_documents: the most documents; None for all of them.

    Raises:
        ValueError: limit_documents is negative.
    """
    if limit_documents is not None and limit_documents < 0:
        raise ValueError(f"limit_documents is {limit_documents}; it must be at least 0, or None for no limit")
    return islice(_corpus(Path(sysconfig.get_path("stdlib"))), limit_documents)


def source_documents(source: bytes) -> Iterator[str]:
    """Yields the functions and classes of one module, in its declared encoding, as `python_corpus` cuts them.

    Raises:
        SyntaxError: the text is not Python, or declares an unknown encoding.
        UnicodeDecodeError: the text is not in its declared encoding.
        ValueError: the text holds a null byte.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    # Lines of bytes: str.splitlines would also break at form feeds, which the parser's line numbers do not count.
    lines = source.splitlines(keepends=True)
    for node in _documents_in(tree.body):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        yield textwrap.dedent(b"".join(lines[first - 1 : node.end_lineno]).decode(encoding))


def _corpus(stdlib: Path) -> Iterator[str]:
    """Yields the documents of every file that can be parsed."""
    for path in _source_files(stdlib):
        try:
            # A list, because a generator would yield some documents of a file before it fails.
            documents = list(source_documents(path.read_bytes()))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            # The parser raises MemoryError if nesting is too deep; the standard library's tests have such files.
            continue
        yield from documents


def _source_files(stdlib: Path) -> list[Path]:
    """Returns every .py file below a folder, tests last, without installed packages."""
    found: list[Path] = []
    for folder, subfolders, names in os.walk(stdlib):
        subfolders[:] = [name for name in subfolders if name not in _EXCLUDED_FOLDERS]
        found += [Path(folder, name) for name in names if name.endswith(".py")]

    def order(path: Path) -> tuple[bool, tuple[str, ...]]:
        *folders, name = path.relative_to(stdlib).parts
        return not _TEST_FOLDERS.isdisjoint(folders), (*folders, name)

    return sorted(found, key=order)


def _documents_in(body: Iterable[ast.AST]) -> Iterator[_Function | ast.ClassDef]:
    """Yields the syntax trees of the documents in a module or class."""
    for node in body:
        if isinstance(node, _Function):
            yield node
        elif isinstance(node, ast.ClassDef):
            if (node.end_lineno or node.lineno) - node.lineno < _SMALL_CLASS_LINES:
                yield node
            else:
                yield from _documents_in(node.body)
        elif isinstance(node, _COMPOUND):
            yield from _documents_in(ast.iter_child_nodes(node))
