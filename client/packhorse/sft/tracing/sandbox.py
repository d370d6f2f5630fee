"""What templates get in place of Python's `dict` and Jinja's `namespace`, so that they reach no attributes of Python.

Leaves the rest of the sandbox to Jinja, and the environments to `sft.tracing.environment`.
"""

from typing import Any

import jinja2
import jinja2.utils


class SafeDict:
    """The function `dict` of templates; not Python's class, whose attributes a template should not reach."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """Returns what `dict` returns."""
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """Returns what `dict.fromkeys` returns."""
        return dict.fromkeys(*args)


class SafeNamespace(jinja2.utils.Namespace):
    """Jinja's `namespace`, without access to Python's own attributes."""

    # Without the parameter `self`, so that a template may use this name for a variable.
    def __init__(*args: Any, **kwargs: Any) -> None:
        names = dict(*args[1:], **kwargs)
        for name in names:
            _check_name(name)
        jinja2.utils.Namespace.__init__(args[0], names)

    def __setitem__(self, name: str, value: Any) -> None:
        """Sets a variable, for a template's `{% set namespace.name = value %}`."""
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    """Raises a SecurityError for a name that begins with an underscore, as Python's own attributes do."""
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace takes no name that begins with an underscore: {name!r}")
