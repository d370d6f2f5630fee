"""Imports that only the `sft` extra installs, with an error that names it."""

import importlib
from typing import Any

_PACKAGES = ("jinja2", "tokenizers")


def require(module: str) -> Any:
    """Imports a module when it is first needed.

    Raises:
        ImportError: it, or what it imports, is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES:
            raise
        raise ImportError(
            f"{package} is needed here and not installed; install it with: pip install 'packhorse[sft]'", name=package
        ) from None
