"""Importing packages that only an extra installs, with an error that names the extra."""

import importlib
from typing import Any

ARROW = "client,arrow"
"""Extras that install pyarrow for a trainer: only some sources of tokens need it."""


def require(module: str, extra: str = "prepare") -> Any:
    """Imports a module when it is first needed.

    Example:
        >>> require("math").isqrt(50)
        7

    Args:
        module: the module's full name.
        extra: the extra of packhorse that installs it.

    Raises:
        ImportError: it is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:  # it is there, but one that it imports is not
            raise
        raise ImportError(
            f"{package} is needed here and not installed; install it with: pip install 'packhorse[{extra}]'",
            name=package,
        ) from None
