"""Imports of packages that only the `prepare` extra installs, with an error that names it."""

import importlib
from typing import Any


def require(module: str) -> Any:
    """Imports a module of the extra when it is first needed.

    Raises:
        ImportError: it is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise ImportError(
            f"{package} is needed here and not installed; install it with: pip install 'packhorse[prepare]'",
            name=package,
        ) from None
