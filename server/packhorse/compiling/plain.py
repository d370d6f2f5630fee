"""The plain form of a compiled loop: the same loop run by Python.

Owns running a loop, with all loops that it calls, uncompiled but with the same results: integers wrap silently. Leaves
the choice between the two forms to `loops`.
"""

from collections.abc import Callable
from functools import cache, wraps
from types import FunctionType
from typing import Any

import numpy as np


def plain_form(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the Python form of a loop. Loops that it calls run as Python too, and integers wrap silently.

    It also takes arrays in place of numbers, if it only uses operators.

    Example:
        >>> from packhorse.compiling import inlined
        >>> @inlined
        ... def doubled(number):
        ...     return number * np.uint32(2)
        >>> plain_form(doubled)(np.array([1, 2**31], dtype=np.uint32)).tolist()
        [2, 0]

    Args:
        function: a loop that a decorator of `packhorse.compiling` returned, or an undecorated one.
    """
    return with_wrapping_integers(_uncompiled(getattr(function, "py_func", function)))


def with_wrapping_integers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function in which NumPy's integers wrap silently, and which returns Python's numbers, as kernels do."""

    @wraps(function)
    def wrapped(*args: Any) -> Any:
        with np.errstate(over="ignore"):
            return _as_kernels_return(function(*args))

    return wrapped


def _as_kernels_return(value: Any) -> Any:
    """Returns a value with NumPy's numbers turned into Python's, also inside tuples."""
    if isinstance(value, tuple):
        return tuple(map(_as_kernels_return, value))
    return value.item() if isinstance(value, np.generic) else value


@cache
def _uncompiled(function: FunctionType) -> FunctionType:
    """Returns a copy of a function that finds uncompiled loops under the names of the compiled ones that it calls."""
    scope = dict(function.__globals__)
    for name in function.__code__.co_names:  # of globals that it uses; those of attributes do no harm
        called = getattr(scope.get(name), "py_func", None)
        if called is not None:
            scope[name] = _uncompiled(called)
    return FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
