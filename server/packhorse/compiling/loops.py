"""The decorators that declare every compiled loop, and what they do if Numba is not installed.

Owns which form of a loop runs. Leaves compiling and the cache to `caching`, and plain forms to `plain`.
"""

import logging
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from packhorse.compiling.plain import plain_form, with_wrapping_integers

try:
    from packhorse.compiling import ahead, caching
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("numba"):
        raise
    HAS_NUMBA = False
else:
    HAS_NUMBA = True

_LOG = logging.getLogger(__name__)


def _without_numba(function: Callable[..., Any], form: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """Returns what runs a loop's form, which is made when it first runs: it may call what its module defines later."""

    @wraps(function)
    def run(*args: Any) -> Any:
        if not _warned:
            _warned.append(function.__name__)
            _LOG.warning(
                "Numba is not installed, so loops run uncompiled, 10 to 100 times slower; install it with: "
                "pip install 'packhorse[server]'"
            )
        return form()(*args)

    return run


_warned: list[str] = []


def kernel(function: Callable[..., Any]) -> Any:
    """Compiles a loop that runs without the GIL, and keeps it on disk.

    Whoever needs it first compiles it. If the disk takes nothing, one warning says so, and each process compiles it
    again. Without Numba it runs as Python.

    Example:
        >>> @kernel
        ... def total(numbers):
        ...     total = 0
        ...     for number in numbers:
        ...         total += number
        ...     return total

    Args:
        function: takes arrays, numbers, and named tuples of them.
    """
    return caching.compiled(function) if HAS_NUMBA else _without_numba(function, cache(lambda: plain_form(function)))


def kernel_or(plain: Callable[..., Any] | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Declares a kernel for which no request waits: where the cache lacks it, its plain form runs meanwhile.

    That is so in processes that called `compile_ahead`; in others it is compiled as any `kernel`.

    Args:
        plain: does the same with the same arguments, in NumPy; None to run the loop itself as Python does.
    """

    def declare(function: Callable[..., Any]) -> Any:
        @cache
        def form() -> Callable[..., Any]:
            return plain_form(function) if plain is None else with_wrapping_integers(plain)

        if not HAS_NUMBA:
            return _without_numba(function, form)
        compiled = caching.compiled(function)
        compile_for = compiled._compile_for_args  # called where no compiled form takes these types; returns what does

        def compiled_or_plain(*args: Any) -> Any:
            return form() if ahead.runs_plain(compile_for, args) else compile_for(*args)

        compiled._compile_for_args = compiled_or_plain
        compiled.plain = form
        return compiled

    return declare


def kernel_part(function: Callable[..., Any]) -> Any:
    """Declares a loop that only kernels call: it is compiled with each of them, and kept on disk as a part of them."""
    return caching.compiled_part(function) if HAS_NUMBA else function


def inlined(function: Callable[..., Any]) -> Any:
    """Declares a helper whose lines become those of the kernel that calls it."""
    return caching.inlined(function) if HAS_NUMBA else function
