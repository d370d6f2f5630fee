"""A compiled loop's plain form: the same loop, run by Python or by NumPy.

Owns running a loop uncompiled, with everything that it calls. Leaves when that happens to `loops`.
"""

from collections.abc import Callable
from functools import cache, wraps
from types import FunctionType
from typing import Any

import numpy as np


def plain_form(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the Python form of a loop: what it calls is in Python form too, and integers wrap silently.

    It takes whatever Python's operators take: a helper for numbers also takes arrays.

    Example:
        >>> from packhorse.compiling import inlined
        >>> @inlined
        ... def doubled(number):
        ...     return number * np.uint32(2)
        >>> plain_form(doubled)(np.array([1, 2**31], dtype=np.uint32)).tolist()
        [2, 0]

    Args:
        function: decorated by one of `packhorse.compiling`, or plain.
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
    if isinstance(value, tuple):
        return tuple(map(_as_kernels_return, value))
    return value.item() if isinstance(value, np.generic) else value


@cache
def _uncompiled(function: FunctionType) -> FunctionType:
    scope = dict(function.__globals__)
    for name in function.__code__.co_names:
        called = getattr(scope.get(name), "py_func", None)
        if called is not None:
            scope[name] = _uncompiled(called)
    return FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
