"""The decorators that declare every compiled loop: `kernel`, `kernel_or`, `kernel_part` and `inlined`.

Owns the choice of the form of a loop that runs: compiled, or plain if Numba is not installed or has not compiled it
yet. Leaves compiling and the cache to `caching`, when a plain form runs meanwhile to `ahead`, and making plain forms to
`plain`.
"""

import logging
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from packhorse.compiling.plain import plain_form, with_wrapping_integers

try:
    from packhorse.compiling import ahead, caching
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("numba"):  # another module is missing, which is a fault
        raise
    HAS_NUMBA = False
else:
    HAS_NUMBA = True

_LOG = logging.getLogger(__name__)


def _without_numba(function: Callable[..., Any], get_plain: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """Returns a function that runs the plain form of a loop, and warns once that Numba is missing.

    `get_plain` returns the plain form. It is called only when the loop runs, because the loop may call functions that
    its module defines after it.
    """

    @wraps(function)
    def run(*args: Any) -> Any:
        if not _warned:
            _warned.append(function.__name__)
            _LOG.warning(
                "Numba is not installed, so loops run uncompiled, 10 to 100 times slower; install it with: "
                "pip install 'packhorse[server]'"
            )
        return get_plain()(*args)

    return run


_warned: list[str] = []
"""Name of the loop for which this process warned that Numba is missing; at most one."""


def kernel(function: Callable[..., Any]) -> Any:
    """Declares a loop that Numba compiles. It runs without the GIL, and its compiled form is cached on disk.

    The first call compiles it. If the cache cannot be written, one warning says so, and each process compiles it
    again. If Numba is not installed, the loop runs as Python.

    Example:
        >>> @kernel
        ... def total(numbers):
        ...     total = 0
        ...     for number in numbers:
        ...         total += number
        ...     return total

    Args:
        function: the loop; its arguments are arrays, numbers, and named tuples of them.
    """
    return caching.compiled(function) if HAS_NUMBA else _without_numba(function, cache(lambda: plain_form(function)))


def kernel_or(plain: Callable[..., Any] | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Returns a decorator that declares a kernel for which no request waits: its plain form runs until it is compiled.

    This holds in processes that called `compile_ahead`. In others the first call compiles it, as for `kernel`.

    Args:
        plain: a function in NumPy with the same arguments and results; None to run the loop itself as Python.
    """

    def declare(function: Callable[..., Any]) -> Any:
        """Returns the dispatcher of a loop, changed so that a call may run the plain form."""

        @cache
        def get_plain() -> Callable[..., Any]:
            return plain_form(function) if plain is None else with_wrapping_integers(plain)

        if not HAS_NUMBA:
            return _without_numba(function, get_plain)
        compiled = caching.compiled(function)
        compile_for = compiled._compile_for_args  # Numba calls it for types of arguments that it has not compiled

        def compiled_or_plain(*args: Any) -> Any:
            """Returns the form that Numba then calls with these arguments."""
            return get_plain() if ahead.runs_plain(compile_for, args) else compile_for(*args)

        compiled._compile_for_args = compiled_or_plain
        compiled.plain = get_plain  # for tests that compare both forms
        return compiled

    return declare


def kernel_part(function: Callable[..., Any]) -> Any:
    """Declares a loop that only kernels call. It is compiled into each of them, and cached with them."""
    return caching.compiled_part(function) if HAS_NUMBA else function


def inlined(function: Callable[..., Any]) -> Any:
    """Declares a helper whose lines become those of the kernel that calls it."""
    return caching.inlined(function) if HAS_NUMBA else function
