"""The shelf: what stands beside the core and uses it. The core names it here only.

Owns the table of what the core offers to do if a package of the shelf is there, and loading it. Commands have a table
of their own, `packhorse.cli.COMMANDS`.
"""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

__all__ = ["HOOKS", "from_shelf", "has_package", "is_offered"]

HOOKS: Mapping[str, str] = {
    "dataset_facts": "packhorse.analysis:dataset_facts",
    "fold_batch": "packhorse.rollouts.tree_batch:folded",
    "trl_async": "packhorse.rollouts.tree_row:trl_async_rows",
    "draw_batch": "packhorse.pictures:draw_batch",
    "recorded_lines": "packhorse.tokenize:recorded_lines",
    "reference_packers": "packhorse.reference_packers:REFERENCE_PACKERS",
    "status_page": "packhorse.analysis.status_page:StatusPage",
}
"""Hook → PACKAGE:NAME on the shelf."""


def is_offered(hook: str) -> bool:
    """Tells whether this installation has what `from_shelf` would load. Loads nothing.

    Example:
        >>> if is_offered("draw_batch"):
        ...     draw = from_shelf("draw_batch")

    Args:
        hook: a key of `HOOKS`.
    """
    return has_package(HOOKS[hook].partition(":")[0])


def has_package(package: str) -> bool:
    """Tells whether this installation has a package or module, whose parents may be missing as well.

    Example:
        >>> has_package("packhorse.shelf"), has_package("packhorse.left_out.commands")
        (True, False)
    """
    parts = package.split(".")
    return all(find_spec(".".join(parts[:depth])) is not None for depth in range(2, len(parts) + 1))


def from_shelf(hook: str) -> Any:
    """Returns what a package of the shelf offers to the core.

    Example:
        >>> from_shelf("draw_batch").__module__
        'packhorse.pictures.picture'

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
