"""The one table by which the core finds packages of the shelf, which use the core and may be absent.

Owns the table of hooks, and loading what they name. Leaves commands, which have a table of their own, to
`packhorse.cli`. What the shelf is, and which packages are on it, is in ARCHITECTURE.md.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any

__all__ = ["HOOKS", "from_shelf", "has_package", "is_offered"]

HOOKS: Mapping[str, str] = {
    "dataset_facts": "packhorse.analysis:dataset_facts",
    "fold_batch": "packhorse.rollouts.tree_batch:folded",
    "trl_async": "packhorse.rollouts.trl_async:trl_async_rows",
    "draw_batch": "packhorse.pictures:draw_batch",
    "recorded_lines": "packhorse.tokenize:recorded_lines",
    "reference_packers": "packhorse.reference_packers:REFERENCE_PACKERS",
    "status_page": "packhorse.analysis.status_page:StatusPage",
}
"""Name of each hook → PACKAGE:NAME of what the shelf has for it."""


def is_offered(hook: str) -> bool:
    """Returns whether this installation has the package that `from_shelf` would load. Loads nothing.

    Example:
        >>> if is_offered("draw_batch"):
        ...     draw = from_shelf("draw_batch")

    Args:
        hook: a key of `HOOKS`.
    """
    return has_package(HOOKS[hook].partition(":")[0])


def has_package(package: str) -> bool:
    """Returns whether this installation has a package or module, without importing it or the packages above it.

    Example:
        >>> has_package("packhorse.shelf"), has_package("packhorse.left_out.commands"), has_package("left_out")
        (True, False, False)
    """
    parts = package.split(".")
    folders: Sequence[str] | None = None  # sys.path
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        spec = PathFinder.find_spec(name, folders)
        if spec is None or sys.modules.get(name, spec) is None:  # None in sys.modules forbids an import
            return False
        folders = spec.submodule_search_locations or []
    return True


def from_shelf(hook: str) -> Any:
    """Loads and returns the function, class or value of the shelf that a hook names.

    Example:
        >>> from_shelf("draw_batch").__module__
        'packhorse.pictures.batches'

    Args:
        hook: a key of `HOOKS`.

    Raises:
        ImportError: this installation lacks the package; the message names it.
    """
    package, _, name = HOOKS[hook].partition(":")
    try:
        return getattr(import_module(package), name)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ImportError(f"this installation has no {package}, which it needs for that") from None
